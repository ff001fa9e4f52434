"""`navarch serve`: every service, and a nats-server where none is named, as one command.

It owns the data directory while it runs: a lock keeps a second one out, `serve.json` tells the
other commands where the bus is, and what a killed predecessor left running is ended first.
"""

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from schemas import subjects
from schemas.settings import Settings
from services.bus.nats.embedded_server import EmbeddedServer
from services.cli.fleet_discovery import NATS_URL_VARIABLE, SERVE_FILE, Running, settings_of
from services.cli.supervisor import (
    Supervisor,
    Tell,
    end,
    end_predecessor,
    environment_for,
    process_ids,
    start_instance_stopper,
    stop_instances,
)
from services.primitives.atomic_files import write_whole
from services.primitives.errors import NavarchError
from services.primitives.race import race

LOCK_FILE: Final = "serve.lock"
NATS_FOLDER: Final = "nats"
READY_SECONDS_MAX: Final = 60.0


class Serving:
    """A fleet served out of a data directory. Enter it; leaving it stops everything in order."""

    def __init__(
        self,
        settings: Settings,
        config: Path | None,
        environment: Mapping[str, str],
        tell: Tell,
        replicas: int = 1,
    ) -> None:
        """Serve `settings`, which were read from `config`, with so many of each service."""
        self.directory = Path(settings.data_dir)
        self.config = config
        self._tell = tell
        self._stopper: asyncio.subprocess.Process | None = None
        self._environment = environment_for(config, environment)
        named = environment.get(NATS_URL_VARIABLE, "")
        self.supervisor = Supervisor(
            server=None if named else EmbeddedServer(self.directory / NATS_FOLDER),
            environment=self._environment,
            http_port=settings.http.port,
            tell=tell,
            changed=self._write,
            replicas=replicas,
        )

    async def __aenter__(self) -> Self:
        """Start everything; wait for nothing but the bus."""
        if ended := await end_predecessor(self.directory):
            what = "process" if ended == 1 else "processes"
            self._tell("serve", f"ended {ended} {what} of a killed `navarch serve`")
        self._stopper = await start_instance_stopper(self.directory, self._environment)
        try:
            await self.supervisor.start()
        except BaseException:
            await self.__aexit__()
            raise
        self._write()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await self.supervisor.stop(lambda: stop_instances(self.directory))
        if self._stopper is not None:
            await end(self._stopper)
        (self.directory / SERVE_FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        """Tell the other commands what runs; the file is whole at every moment."""
        supervisor = self.supervisor
        stopper = process_ids(self._stopper.pid) if self._stopper is not None else ()
        running = Running(
            nats_url=supervisor.url,
            pid=os.getpid(),
            config=str(self.config.resolve()) if self.config else "",
            pids=supervisor.pids,
            http={name: child.http for name, child in supervisor.children.items() if child.http},
            processes=supervisor.processes,
            stopper=stopper,
        )
        text = msgspec.json.format(msgspec.json.encode(running), indent=2) + b"\n"
        write_whole(self.directory / SERVE_FILE, text)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the data directory, or say who does."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK_FILE).open("a+", encoding="utf-8")
    except OSError as error:
        raise NavarchError(
            f"{directory.resolve()} cannot be written ({error.strerror}): name another data_dir"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise NavarchError(
                f"another navarch serve (pid {holder}) runs in {directory.resolve()}: stop it, or "
                "name another data_dir in the configuration"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def serve(config: Path | None, replicas: int = 1) -> int:
    """Serve until told to stop; return the exit code."""
    from services.cli.configuration_check import check_configuration  # noqa: PLC0415
    from services.runtime.process_http import check_port  # noqa: PLC0415

    settings = settings_of(config)
    check_configuration(settings, config)
    check_port(settings.http, config)
    tell = teller()
    with locked(Path(settings.data_dir)):
        asyncio.run(_serve(Serving(settings, config, os.environ, tell, replicas), tell))
    return 0


async def _serve(serving: Serving, tell: Tell) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with serving:
        telling = asyncio.create_task(_tell_where(serving, tell))
        _, failed = await race(stopping.wait(), serving.supervisor.failed())
        telling.cancel()
        if not failed.cancelled():
            failed.result()
        tell("serve", "stopping")
    tell("serve", "stopped")


async def _tell_where(serving: Serving, tell: Tell) -> None:
    """Say where everything is, as soon as it is known."""
    supervisor = serving.supervisor
    tell("serve", f"the bus is {supervisor.url}")
    tell("serve", f"watch it: nats --server {supervisor.url} sub '{subjects.ROOT}.>'")
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            await supervisor.ready()
    except TimeoutError:
        late = [name for name, child in supervisor.children.items() if not child.ready.is_set()]
        tell("serve", f"not ready after {READY_SECONDS_MAX:g} s: {', '.join(late)}; see above")
        await supervisor.ready()
    tell("serve", "every service is ready; try: navarch status, navarch list, navarch events")
    tell("serve", f"metrics: {supervisor.children['metrics'].http}/metrics")


# --- printing ------------------------------------------------------------------------------------


def teller() -> Tell:
    """Print log lines: in colour on a terminal, as JSON lines for programs."""
    if not sys.stdout.isatty():
        return _print_json
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, soft_wrap=True)

    def show(name: str, line: str) -> None:
        console.print(_rich(name, line), markup=False)

    return show


def _print_json(name: str, line: str) -> None:
    if not line.startswith("{"):
        line = _own_line(name, line)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _own_line(name: str, text: str) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": now, "level": "INFO", "service": name, "msg": text})


LEVELS: Final = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}
NAME_CHARS: Final = 14


def _rich(name: str, line: str) -> Any:
    from rich.text import Text  # noqa: PLC0415

    try:
        told = json.loads(line)
    except ValueError:
        told = {"msg": line}
    if not isinstance(told, dict):
        told = {"msg": line}
    style = LEVELS.get(str(told.pop("level", "")), "")
    moment = str(told.pop("time", ""))[11:23]
    message = str(told.pop("msg", ""))
    told.pop("service", None)
    rest = " ".join(f"{key}={value}" for key, value in told.items())
    return Text.assemble(
        (f"{moment:<12} ", "dim"),
        (f"{name:<{NAME_CHARS}} ", "bold" if name == "serve" else "cyan"),
        (message, style),
        (f"  {rest}" if rest else "", "dim"),
    )
