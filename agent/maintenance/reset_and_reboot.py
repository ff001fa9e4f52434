"""Resets GPUs and reboots the host on command.

The agent decides nothing: a saga sends the command with a key, and a repeat with the same key is
idempotent. Both are refused unless the node is cordoned, and a reset while a process uses the GPUs.
"""

import asyncio
import logging
import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agent.faults.fault_builder import GpuMap
from agent.json_file import read_json, write_json
from agent.maintenance.diagnostics.findings import ToolOutput
from agent.maintenance.diagnostics.tool_runner import ToolHung, run_tool
from agent.observations import DETAIL_CHARS_MAX
from agent.settings import AgentConfig
from agent.sources.nvml import GpuProcess
from schemas.agent_commands import ActionResult, RebootRequest, ResetRequest
from schemas.messages import encode
from services.bus.port import Headers
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

RESET_SECONDS_MAX: Final = 180.0
"""Time limit of one call of the tool; at most two are made."""
ANSWER_SECONDS: Final = 0.5
"""Delay between the reply and the reboot, so that the reply is sent."""
REBOOT_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.25
REBOOTS: Final = (("systemctl", "reboot"), ("shutdown", "-r", "now"))
"""Reboot commands; the first one installed is used."""
DONE_MAX: Final = 32
NAMED_MAX: Final = 8
"""Processes that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDependencies:
    """Dependencies of resets and reboots."""

    clock: Clock
    environment: Mapping[str, str]
    boot_id: str
    root: bool
    """Whether this process may reboot the host."""
    gpus: Callable[[], GpuMap]
    cordoned: Callable[[], Awaitable[bool | None]]
    """Whether this node is cordoned; None: unknown."""
    processes: Callable[[], Awaitable[tuple[GpuProcess, ...]]]
    """Processes on the GPUs that NVML lists."""
    release: Callable[[], AbstractAsyncContextManager[None]]
    """While it is held, the agent does not use the GPUs."""


class CompletedActionsFile:
    """Results by key, for commands repeated after a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._results: dict[str, ActionResult] | None = None

    def get(self, key: str) -> ActionResult | None:
        """Result of a key; None: not performed."""
        if self._results is None:
            self._results = read_json(self._path, dict[str, ActionResult], {})
        return self._results.get(key)

    def put(self, key: str, acted: ActionResult) -> None:
        """Store a result and drop the oldest."""
        self.get(key)
        kept = list(((self._results or {}) | {key: acted}).items())[-DONE_MAX:]
        self._results = dict(kept)
        write_json(self._path, self._results)


class ResetAndReboot:
    """Answers `reset-gpu` and `reboot`."""

    def __init__(self, config: AgentConfig, dependencies: ActionDependencies) -> None:
        self._config = config
        self._dependencies = dependencies
        self._done = CompletedActionsFile(Path(config.state_dir) / "completed_actions.json")
        self._turn = asyncio.Lock()
        self._going: asyncio.Task[None] | None = None
        self._failed = ""
        """Why the last reboot failed."""

    # --- reset ----------------------------------------------------------------------------------

    async def reset(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        """Reset the named GPUs, or all; reply with the result."""
        request = msgspec.json.decode(data, type=ResetRequest)
        async with self._turn:
            acted = self._done.get(request.key)
            if acted is None:
                acted = await self._reset(request)
                if not acted.refused:
                    self._done.put(request.key, acted)
        return encode(acted)

    async def _reset(self, request: ResetRequest) -> ActionResult:
        command = reset_command(self._config, self._dependencies.environment)
        if not command:
            return self._result(ok=False, detail="nvidia-smi is not on this host")
        if refused := await self._refusal():
            return self._result(ok=False, refused=refused)
        known = {gpu.uuid for gpu in self._dependencies.gpus().gpus}
        chosen = tuple(uuid for uuid in request.gpus if uuid in known)
        if request.gpus and not chosen:
            # An order for another machine is not one for all GPUs of this one.
            return self._result(ok=False, detail="this host has none of the GPUs that are named")
        log.warning("resets %s", ", ".join(chosen) or "all GPUs", extra={"id": request.key})
        async with self._dependencies.release():
            ok, detail = await self._try(command, chosen)
            if not ok and chosen:
                # Some GPUs can only be reset together with their NVLink peers.
                one = f"{', '.join(chosen)} alone: {detail}; "
                ok, detail = await self._try(command, ())
                detail = f"{one}all together: {detail}"
        log.warning("reset %s: %s", "done" if ok else "failed", detail)
        return self._result(ok=ok, detail=detail)

    async def _try(self, command: Sequence[str], chosen: Sequence[str]) -> tuple[bool, str]:
        which = ("-i", ",".join(chosen)) if chosen else ()
        try:
            output = await run_tool(
                (*command, "--gpu-reset", *which),
                seconds_max=RESET_SECONDS_MAX,
                environment=self._dependencies.environment,
            )
        except ToolHung as error:
            return False, str(error)
        except OSError as error:
            return False, f"cannot be started: {error}"
        return output.code == 0, _output_text(output)

    async def _refusal(self) -> str:
        """Why a reset must not be done now; empty: it may."""
        cordoned = await self._dependencies.cordoned()
        if cordoned is None:
            return "whether this node is cordoned cannot be known now; ask again later"
        if not cordoned:
            return "this node is not cordoned: cordon it first, and drain it"
        running = await self._dependencies.processes()
        if running:
            named = ", ".join(f"{each.pid} on GPU {each.index}" for each in running[:NAMED_MAX])
            what = "process uses" if len(running) == 1 else "processes use"
            return f"{len(running)} {what} the GPUs ({named}): they must end first"
        return ""

    def _result(self, *, ok: bool, detail: str = "", refused: str = "") -> ActionResult:
        return ActionResult(
            ok=ok,
            detail=detail[:DETAIL_CHARS_MAX],
            refused=refused,
            boot_id=self._dependencies.boot_id,
            at=self._dependencies.clock.now(),
        )

    # --- reboot ---------------------------------------------------------------------------------

    async def reboot(self, data: bytes, headers: Headers) -> bytes:  # noqa: ARG002
        """Reply, then reboot this host; in another boot only reply."""
        request = msgspec.json.decode(data, type=RebootRequest)
        return encode(await self._reboot(request))

    async def _reboot(self, request: RebootRequest) -> ActionResult:
        if request.boot_id != self._dependencies.boot_id:
            return self._result(ok=True, detail="it has another boot already")
        if self._failed:
            return self._result(ok=False, detail=self._failed)
        if self._going is not None:
            return self._result(ok=True, detail="it is going down")
        command, problem = reboot_command(
            self._config, self._dependencies.environment, root=self._dependencies.root
        )
        if problem:
            return self._result(ok=False, detail=problem)
        cordoned = await self._dependencies.cordoned()
        if not cordoned:
            known = "is not cordoned: cordon it first" if cordoned is False else "may not be so"
            return self._result(ok=False, refused=f"this node {known}, and drain it")
        log.warning("reboots this host: %s", shlex.join(command), extra={"id": request.key})
        self._going = asyncio.create_task(self._go_down(command))
        return self._result(ok=True, detail=f"going down: {shlex.join(command)}")

    async def _go_down(self, command: Sequence[str]) -> None:
        await self._dependencies.clock.sleep(ANSWER_SECONDS)
        try:
            process = _spawn(command, self._dependencies.environment)
        except OSError as error:
            self._failed = f"{shlex.join(command)}: {error}"
        else:
            self._failed = await self._await_end(command, process)
        if self._failed:
            log.error("this host could not be rebooted: %s", self._failed)

    async def _await_end(self, command: Sequence[str], process: "subprocess.Popen[bytes]") -> str:
        """Wait for the command and return its error, unless the host goes down first."""
        until = self._dependencies.clock.monotonic() + REBOOT_SECONDS_MAX
        while process.poll() is None:
            if self._dependencies.clock.monotonic() >= until:
                return f"{shlex.join(command)}: not done in {REBOOT_SECONDS_MAX:g} s"
            await self._dependencies.clock.sleep(LOOK_SECONDS)
        assert process.stdout is not None
        with process.stdout:
            printed = process.stdout.read(DETAIL_CHARS_MAX)
        if process.returncode == 0:
            return ""
        printed_text = printed.decode("utf-8", "replace").strip()
        return f"{shlex.join(command)} ends with {process.returncode}: {printed_text}"


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a process that outlives this one."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def reset_command(config: AgentConfig, environment: Mapping[str, str]) -> tuple[str, ...]:
    """The command that resets GPUs; empty: not on this host."""
    named = tuple(shlex.split(config.reset_command)) or ("nvidia-smi",)
    found = shutil.which(named[0], path=environment.get("PATH"))
    return (found, *named[1:]) if found else ()


def reboot_command(
    config: AgentConfig, environment: Mapping[str, str], *, root: bool
) -> tuple[tuple[str, ...], str]:
    """The command that reboots this host, or why this agent cannot."""
    path = environment.get("PATH")
    if config.reboot_command:
        named = tuple(shlex.split(config.reboot_command))
        if found := shutil.which(named[0], path=path):
            return (found, *named[1:]), ""
        return (), f"{named[0]} of NAVARCH_REBOOT_COMMAND is not on this host"
    if not root:
        return (), "the agent is not root; run it as root, or set NAVARCH_REBOOT_COMMAND"
    for program, *arguments in REBOOTS:
        if found := shutil.which(program, path=path):
            return (found, *arguments), ""
    return (), "neither systemctl nor shutdown is here; set NAVARCH_REBOOT_COMMAND"


def _output_text(output: ToolOutput) -> str:
    """A tool's output in one line, with its exit status if it failed."""
    printed = " ".join(f"{output.text} {output.errors}".split())
    return printed if output.code == 0 else f"exit status {output.code}: {printed}"
