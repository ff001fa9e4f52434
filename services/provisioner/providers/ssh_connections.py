"""SSH connections to machines that you own: kept open, and opened again when they break.

A machine's host key is the one that the inventory names, or else the first that was seen, which is
kept in a file beside the provisioner's data, in OpenSSH's own format: an operator who reinstalls a
machine removes its line. A machine that could not be reached is skipped by surveys of all machines
for a while, so that a dead one costs its time-out once and not in every survey.
"""

import asyncio
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncssh

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import ssh_errors
from services.provisioner.providers.ssh_inventory import InventoryMachine

SESSIONS_MAX: Final = 4
"""At once over one connection; sshd allows ten."""
KEEPALIVE_SECONDS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class SshLogin:
    """How machines are entered that say nothing else."""

    user: str
    key_file: str
    sudo: bool
    connect_seconds: float
    command_seconds: float
    rest_seconds: float
    """How long one that could not be reached is left alone by those who look at all."""


@dataclass(slots=True)
class _MachineConnection:
    """One machine's connection."""

    machine: InventoryMachine
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SESSIONS_MAX))
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: asyncssh.SSHClientConnection | None = None
    failed: ProviderError | None = None
    failed_at: float = 0.0


class SshConnections:
    """All machines' connections."""

    def __init__(self, access: SshLogin, pins: Path, now: Callable[[], float]) -> None:
        """`pins`: where host keys are kept; `now`: a monotonic clock."""
        self._access = access
        self._pins = pins
        self._now = now
        self._links: dict[str, _MachineConnection] = {}

    async def run(self, machine: InventoryMachine, script: str, *, patient: bool) -> str:
        """Run a script on a machine and return what it writes, or raise ProviderError.

        `patient`: try even one that has just proved to be out of reach.
        """
        link = self._links.get(machine.display_name)
        if link is None or link.machine != machine:
            if link is not None and link.connection is not None:
                link.connection.abort()
            link = self._links[machine.display_name] = _MachineConnection(machine)
        resting = self._now() - link.failed_at < self._access.rest_seconds
        if link.failed is not None and resting and not patient:
            raise link.failed
        async with link.room:
            return await self._run(link, script)

    async def close(self) -> None:
        """Close every connection."""
        open_ = [each.connection for each in self._links.values() if each.connection is not None]
        self._links.clear()
        for connection in open_:
            connection.abort()
        for connection in open_:
            with suppress(asyncssh.Error, OSError):
                await connection.wait_closed()

    async def _run(self, link: _MachineConnection, script: str) -> str:
        access, name = self._access, link.machine.display_name
        user = link.machine.user or access.user
        root = "sudo -n " if access.sudo and user != "root" else ""
        command = f"{root}bash -c {shlex.quote(script)}"
        was_open = link.connection is not None
        try:
            async with asyncio.timeout(access.command_seconds + access.connect_seconds):
                try:
                    ended = await (await self._opened(link)).run(command, check=False)
                except (asyncssh.Error, OSError):
                    if not was_open:
                        raise
                    # It broke while idle; the command may be sent again.
                    self._drop(link)
                    ended = await (await self._opened(link)).run(command, check=False)
        except (asyncssh.Error, OSError, TimeoutError, ValueError) as error:  # ValueError: of keys
            self._drop(link)
            failure = ssh_errors.of_exception(name, error)
            link.failed, link.failed_at = failure, self._now()
            raise failure from error
        link.failed = None
        output = str(ended.stdout or "")
        if ended.exit_status != 0:
            said = f"{output} {ended.stderr or ''!s}"
            if ended.exit_status is None or ended.exit_status < 0:
                self._drop(link)
                raise ProviderError("TRANSIENT", f"{name}: a script was cut off: {said.strip()}")
            raise ssh_errors.of_status(name, ended.exit_status, said)
        return output

    def _drop(self, link: _MachineConnection) -> None:
        if link.connection is not None:
            link.connection.abort()
            link.connection = None

    async def _opened(self, link: _MachineConnection) -> asyncssh.SSHClientConnection:
        async with link.opening:
            if link.connection is not None and not link.connection.is_closed():
                return link.connection
            access, machine = self._access, link.machine
            pinned = machine.host_key or self._pinned(machine)
            connection = await asyncssh.connect(
                machine.host,
                machine.port,
                username=machine.user or access.user,
                client_keys=[_expanded(machine.key_file or access.key_file)],
                known_hosts=([asyncssh.import_public_key(pinned)], [], []) if pinned else None,
                agent_path=None,
                config=None,
                connect_timeout=access.connect_seconds,
                login_timeout=access.connect_seconds,
                keepalive_interval=KEEPALIVE_SECONDS,
            )
            if not pinned:
                self._pin(machine, connection)
            link.connection = connection
            return connection

    def _pinned(self, machine: InventoryMachine) -> str:
        """The key that was seen first; empty: none was."""
        try:
            lines = self._pins.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return ""
        split = (line.partition(" ") for line in lines)
        return next((key for host, _, key in split if host == _place(machine)), "")

    def _pin(self, machine: InventoryMachine, connection: asyncssh.SSHClientConnection) -> None:
        key = connection.get_server_host_key()
        assert key is not None
        shown = key.export_public_key("openssh").decode().split()
        self._pins.parent.mkdir(parents=True, exist_ok=True)
        with self._pins.open("a", encoding="utf-8") as file:
            file.write(f"{_place(machine)} {shown[0]} {shown[1]}\n")


def _expanded(file: str) -> str:
    return str(Path(file).expanduser())


def _place(machine: InventoryMachine) -> str:
    """A machine as OpenSSH's known_hosts has it."""
    return machine.host if machine.port == 22 else f"[{machine.host}]:{machine.port}"  # noqa: PLR2004 - SSH's port
