"""SSH servers in this process act as machines, each with a folder for its home and disk.

What is sent to them runs in a real shell. A machine can be switched off, hang, turn logins away, or
hang up once a command has run.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from services.provisioner.providers.ssh_inventory import InventoryMachine

USER = "admin"


def new_key(file: Path) -> None:
    """A key pair as `ssh-keygen` makes it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(file))
    key.write_public_key(f"{file}.pub")


@dataclass(eq=False)
class Box:
    """Holds the state of one machine."""

    name: str
    home: Path
    host_key: Path
    port: int = 0
    commands: list[str] = field(default_factory=list)
    refuses: bool = False
    """Every login is refused."""
    hangs: set[int] = field(default_factory=set)
    """Which commands from now, counted from 1, are run and never answered."""
    drops: set[int] = field(default_factory=set)
    """Which ones lose their connection once they have run."""
    before: Callable[["Box", str], None] = lambda _box, _command: None
    """Called with each command before it runs."""
    after: Callable[["Box", str], None] = lambda _box, _command: None
    server: asyncssh.SSHAcceptor | None = None
    connections: set[Any] = field(default_factory=set)
    running: set[asyncio.subprocess.Process] = field(default_factory=set)
    logins: int = 0

    def expect(self, *, hang: int = 0, drop: int = 0) -> None:
        """Hang or hang up at the n-th command from now."""
        self.hangs = {len(self.commands) + hang} if hang else set()
        self.drops = {len(self.commands) + drop} if drop else set()

    @property
    def claim(self) -> str:
        """Return how far the machine's claim is, or nothing when it is free."""
        folder = self.home / "claim"
        return " ".join(each for each in ("taken", "held", "going") if (folder / each).exists())

    async def handle(self, process: asyncssh.SSHServerProcess[str]) -> None:
        """Run what was sent."""
        command = process.command or ""
        self.commands.append(command)
        number = len(self.commands)
        self.before(self, command)
        ran = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin"},
            executable="/bin/bash",
            start_new_session=True,
        )
        self.running.add(ran)
        out, err = await ran.communicate()
        self.running.discard(ran)
        self.after(self, command)
        if number in self.drops:
            process.get_extra_info("connection").abort()
            return
        if number in self.hangs:
            await asyncio.Event().wait()
        process.stdout.write(out.decode(errors="replace"))
        process.stderr.write(err.decode(errors="replace"))
        process.exit(ran.returncode or 0)

    async def on(self, key: Path) -> None:
        """Let its SSH server listen, at the port that it had."""
        self.server = await asyncssh.listen(
            "127.0.0.1",
            self.port,
            server_factory=lambda: Gate(self),
            server_host_keys=[str(self.host_key)],
            authorized_client_keys=f"{key}.pub",
            process_factory=self.handle,
        )
        self.port = self.server.get_port()

    async def off(self) -> None:
        """Cut its power: connections end, what runs is killed, its disk stays."""
        for each in list(self.connections):
            each.abort()
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()
            self.server = None
        for process in list(self.running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Gate(asyncssh.SSHServer):
    """Lets the key in, unless logins are refused."""

    def __init__(self, box: Box) -> None:
        self._box = box
        self._connection: Any = None

    def connection_made(self, conn: Any) -> None:
        """Remember it, so that it can be cut."""
        self._connection = conn
        self._box.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection that was lost."""
        del exc
        self._box.connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        """Refuse the connection if logins are refused."""
        self._box.logins += 1
        if self._box.refuses or username != USER:
            raise asyncssh.PermissionDenied("not you")
        return True


class Machines:
    """All of them, and the key that opens them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.key = folder / "key"
        new_key(self.key)
        self.boxes: dict[str, Box] = {}
        for number in range(count):
            name = f"gpu-{number:03d}"
            home = folder / name
            home.mkdir()
            new_key(home / "host-key")
            self.boxes[name] = Box(name, home, home / "host-key")

    def __getitem__(self, number: int) -> Box:
        """One of them, by number."""
        return list(self.boxes.values())[number]

    def inventory(self, **changes: Any) -> tuple[InventoryMachine, ...]:
        """Return the entries that an operator writes in the inventory for these machines."""
        plain = {"type": "h100", "host": "127.0.0.1"}
        return tuple(
            InventoryMachine(name=each.name, port=each.port, **(plain | changes))
            for each in self.boxes.values()
        )

    def claims(self) -> dict[str, str]:
        """Return how far the claim of each machine is, by name, without those that are free."""
        return {name: each.claim for name, each in self.boxes.items() if each.claim}

    async def on(self, box: Box) -> None:
        """Switch one on."""
        await box.on(self.key)


@asynccontextmanager
async def machines(folder: Path, count: int) -> AsyncIterator[Machines]:
    """Run so many machines, all switched on."""
    all_ = Machines(folder, count)
    await asyncio.gather(*map(all_.on, all_.boxes.values()))
    try:
        yield all_
    finally:
        await asyncio.gather(*(each.off() for each in all_.boxes.values()))


def written(inventory: Iterable[InventoryMachine]) -> str:
    """Return the text of an inventory file."""
    lines = ["machines:"]
    for each in inventory:
        lines += [f"  - name: {each.name}", f"    host: {each.host}", f"    port: {each.port}"]
        lines += [f"    type: {each.type}"]
    return "\n".join([*lines, ""])
