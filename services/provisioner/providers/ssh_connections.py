"""SSH connections to machines that you own: kept open, and opened again when they break.

A machine's host key is the one in the inventory, else the first one, which is pinned in a file in
the provisioner's data directory, in OpenSSH's format: an operator who reinstalls a machine removes
its line. Surveys of all machines skip an unreachable one for a while, so that it costs its time-out
once and not in every survey.
"""

import asyncio
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncssh

from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers import ssh_errors
from services.provisioner.providers.ssh_inventory import InventoryMachine, SshOptions

SESSIONS_MAX: Final = 4
"""Concurrent sessions of one connection; sshd allows ten."""
KEEPALIVE_SECONDS: Final = 15


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
    """Keeps the connections to all machines."""

    def __init__(self, options: SshOptions, pins: Path, now: Callable[[], float]) -> None:
        """`pins`: the file of host keys; `now`: a monotonic clock."""
        self._options = options
        self._pins = pins
        self._now = now
        self._links: dict[str, _MachineConnection] = {}

    async def run(
        self, machine: InventoryMachine, script: str, *, patient: bool, data: bytes = b""
    ) -> str:
        """Run a script on a machine and return what it writes, or raise ProviderError.

        `patient`: try a machine that has just been unreachable, too. `data`: its standard input.
        """
        link = self._links.get(machine.display_name)
        if link is None or link.machine != machine:
            if link is not None and link.connection is not None:
                link.connection.abort()
            link = self._links[machine.display_name] = _MachineConnection(machine)
        resting = self._now() - link.failed_at < self._options.rest
        if link.failed is not None and resting and not patient:
            raise link.failed
        async with link.room:
            return await self._run(link, script, data)

    async def close(self) -> None:
        """Close every connection."""
        open_ = [each.connection for each in self._links.values() if each.connection is not None]
        self._links.clear()
        for connection in open_:
            connection.abort()
        for connection in open_:
            with suppress(asyncssh.Error, OSError):
                await connection.wait_closed()

    async def _run(self, link: _MachineConnection, script: str, data: bytes) -> str:
        options, name = self._options, link.machine.display_name
        user = link.machine.user or options.user
        root = "sudo -n " if options.sudo and user != "root" else ""
        command = f"{root}bash -c {shlex.quote(script)}"
        given: dict[str, Any] = {"input": data, "encoding": None, "errors": None} if data else {}
        was_open = link.connection is not None
        try:
            async with asyncio.timeout(options.command_timeout + options.connect_timeout):
                try:
                    ended = await (await self._open(link)).run(command, check=False, **given)
                except (asyncssh.Error, OSError):
                    if not was_open:
                        raise
                    # It broke while idle; the command may be sent again.
                    self._drop(link)
                    ended = await (await self._open(link)).run(command, check=False, **given)
        except (asyncssh.Error, OSError, TimeoutError, ValueError) as error:  # ValueError: of keys
            self._drop(link)
            failure = ssh_errors.of_exception(name, error)
            link.failed, link.failed_at = failure, self._now()
            raise failure from error
        link.failed = None
        output = _text(ended.stdout)
        if ended.exit_status != 0:
            text = f"{output} {_text(ended.stderr)}"
            if ended.exit_status is None or ended.exit_status < 0:
                self._drop(link)
                raise ProviderError("TRANSIENT", f"{name}: interrupted script: {text.strip()}")
            raise ssh_errors.of_status(name, ended.exit_status, text)
        return output

    def _drop(self, link: _MachineConnection) -> None:
        if link.connection is not None:
            link.connection.abort()
            link.connection = None

    async def _open(self, link: _MachineConnection) -> asyncssh.SSHClientConnection:
        async with link.opening:
            if link.connection is not None and not link.connection.is_closed():
                return link.connection
            options, machine = self._options, link.machine
            pinned = machine.host_key or self._pinned_key(machine)
            connection = await asyncssh.connect(
                machine.host,
                machine.port,
                username=machine.user or options.user,
                client_keys=[_expand(machine.key_file or options.key_file)],
                known_hosts=([asyncssh.import_public_key(pinned)], [], []) if pinned else None,
                agent_path=None,
                config=None,
                connect_timeout=float(options.connect_timeout),
                login_timeout=float(options.connect_timeout),
                keepalive_interval=KEEPALIVE_SECONDS,
            )
            if not pinned:
                self._pin(machine, connection)
            link.connection = connection
            return connection

    def _pinned_key(self, machine: InventoryMachine) -> str:
        """Return the pinned key; empty: none yet."""
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


def _text(written: Any) -> str:
    return written.decode(errors="replace") if isinstance(written, bytes) else str(written or "")


def _expand(file: str) -> str:
    return str(Path(file).expanduser())


def _place(machine: InventoryMachine) -> str:
    """Return a machine's name in OpenSSH's known_hosts."""
    return machine.host if machine.port == 22 else f"[{machine.host}]:{machine.port}"  # noqa: PLR2004 - SSH's port
