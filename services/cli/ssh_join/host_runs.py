"""Runs the steps on machines over SSH, many at once; each machine's result is a sentence."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from schemas.duration import Duration
from services.cli.ssh_join import host_steps, upgrade_steps
from services.cli.ssh_join.agent_wheels import AgentWheels
from services.cli.ssh_join.host_steps import HostState, Step, Target
from services.primitives.errors import NavarchError
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.ssh_connections import SshConnections
from services.provisioner.providers.ssh_inventory import InventoryMachine, SshOptions
from services.settings.packaged_files import resource
from services.settings.placeholders import UNIT

AT_ONCE_MAX: Final = 32
CONNECT_SECONDS: Final = 15
COMMAND_SECONDS: Final = 300
KEYS: Final = ("id_ed25519", "id_ecdsa", "id_rsa")
PLANNED: Final = {
    "install": "install the agent in /opt/navarch",
    "join": "join",
    "start": "start the agent",
}
TokenOf = Callable[[str], Awaitable[str]]
"""Node -> a token for it."""


class HostResult(NamedTuple):
    """Says what happened on a machine."""

    target: Target
    ok: bool
    text: str


class HostRuns:
    """Enters machines and runs the steps there."""

    def __init__(
        self, pins: Path, key_file: str, wheels: AgentWheels, pool: str, known: Collection[str] = ()
    ) -> None:
        """Enter with a key; `pins`: the file of host keys.

        `known`: the nodes of the pool.
        """
        self._options = SshOptions(
            key_file=key_file,
            connect_timeout=Duration(CONNECT_SECONDS),
            command_timeout=Duration(COMMAND_SECONDS),
        )
        self._links = SshConnections(self._options, pins, time.monotonic)
        self._wheels = wheels
        self._pool = pool
        self._known = frozenset(known)
        self._room = asyncio.Semaphore(AT_ONCE_MAX)

    async def join(
        self,
        targets: Sequence[Target],
        token_of: TokenOf,
        report: Callable[[HostResult], None],
        *,
        dry_run: bool = False,
    ) -> list[HostResult]:
        """Make the machines nodes, and report each as soon as its result is there."""

        async def one(target: Target) -> str:
            return await self._join(target, token_of, dry_run=dry_run)

        return await self._each(targets, one, report)

    async def upgrade(
        self,
        targets: Sequence[Target],
        report: Callable[[HostResult], None],
        *,
        dry_run: bool = False,
    ) -> list[HostResult]:
        """Bring agents to the release of the wheels, in waves that stop at one that fails."""

        async def one(target: Target) -> str:
            return await self._upgrade(target, dry_run=dry_run)

        results: list[HostResult] = []
        for wave in [list(targets)] if dry_run else upgrade_steps.waves(targets):
            results += await self._each(wave, one, report)
            if not all(each.ok for each in results) and not dry_run:
                break
        left = targets[len(results) :]
        for each in left:
            report(HostResult(each, ok=False, text="not begun: an agent has not come back"))
        return results + [HostResult(each, ok=False, text="") for each in left]

    async def leave(
        self, targets: Sequence[Target], report: Callable[[HostResult], None]
    ) -> list[HostResult]:
        """Remove the agents from machines."""

        async def one(target: Target) -> str:
            await self._run(target, host_steps.LEAVE)
            return "its agent is stopped and removed"

        return await self._each(targets, one, report)

    async def _each(
        self,
        targets: Sequence[Target],
        work: Callable[[Target], Awaitable[str]],
        report: Callable[[HostResult], None],
    ) -> list[HostResult]:
        async def one(target: Target) -> HostResult:
            async with self._room:
                try:
                    result = HostResult(target, ok=True, text=await work(target))
                except (NavarchError, ProviderError) as error:
                    result = HostResult(target, ok=False, text=" ".join(str(error).split()))
            report(result)
            return result

        try:
            return await asyncio.gather(*map(one, targets))
        finally:
            await self._links.close()

    async def _join(self, target: Target, token_of: TokenOf, *, dry_run: bool) -> str:
        state = await self._look(target)
        if state.pending and state.installed and not (state.joined or dry_run):
            # An earlier join has used its token, perhaps; where it cannot go on, another is made.
            with suppress(NavarchError):
                await self._run(target, host_steps.RESUME)
                state = await self._look(target)
                self._known |= {target.node}
        has_wheels, is_known = bool(self._wheels.packed), target.node in self._known
        steps = host_steps.steps_for(
            state, self._pool, target.node, has_wheels=has_wheels, is_known=is_known
        )
        if isinstance(steps, str):
            raise NavarchError(steps)
        if dry_run:
            return f"would {', '.join(PLANNED[each] for each in steps)}"
        for step in steps:
            runs = await self._perform(step, target, state, token_of)
        if "install" in steps and not state.joined:  # no earlier agent runs on
            await self._run(target, upgrade_steps.release_script(self._wheels.release))
        what = "had joined already" if state.joined else f"joined pool {self._pool}"
        return f"{what}; its agent runs {runs}"

    async def _look(self, target: Target) -> HostState:
        state = host_steps.read_look(await self._run(target, host_steps.LOOK))
        if state is None:
            raise NavarchError(f"{target.host} did not say what it is: it needs bash, df and awk")
        return state

    async def _perform(
        self, step: Step, target: Target, state: HostState, token_of: TokenOf
    ) -> str:
        match step:
            case "install":
                await self._install(target, state)
                return ""
            case "join":
                token = await token_of(target.node)
                await self._run(target, host_steps.JOIN, token.encode())
                return ""
            case "start":
                found = host_steps.said_of(await self._run(target, host_steps.START), "runs")
                if not found:
                    raise NavarchError("its agent was not started: journalctl -u navarch-agent")
                return found

    async def _install(self, target: Target, state: HostState) -> None:
        unit = resource(UNIT).read_text(encoding="utf-8")
        script = host_steps.install_script(state.python, unit)
        await self._run(target, script, self._wheels.packed)

    async def _upgrade(self, target: Target, *, dry_run: bool) -> str:
        state, release = await self._look(target), self._wheels.release
        is_known = target.node in self._known
        refused = upgrade_steps.why_not_upgraded(state, self._pool, target.node, is_known=is_known)
        if refused:
            raise NavarchError(refused)
        if state.release == release:
            return f"is at {release} already"
        what = f"from {state.release or 'an unknown release'} to {release}"
        if dry_run:
            return f"would be upgraded {what}"
        await self._install(target, state)
        said = await self._run(target, upgrade_steps.restart_script(release))
        if host_steps.said_of(said, "back") != "yes":
            why = said.strip().rpartition("\n")[2]
            raise NavarchError(f"its agent has not come back at {release}: {why}")
        return f"upgraded {what}"

    async def _run(self, target: Target, script: str, data: bytes = b"") -> str:
        machine = InventoryMachine(
            host=target.host, name=target.node, port=target.port, user=target.user, type=""
        )
        try:
            return await self._links.run(machine, script, patient=True, data=data)
        except ProviderError as error:
            raise NavarchError(host_steps.failure_sentence(str(error))) from error


def own_key() -> str:
    """Return the operator's own private key; NavarchError where there is none."""
    for name in KEYS:
        if (file := Path("~/.ssh").expanduser() / name).exists():
            return str(file)
    raise NavarchError("there is no private key in ~/.ssh: name one with --key")
