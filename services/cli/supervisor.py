"""Runs a nats-server and every service as processes, and restarts those that end.

The delay before a restart doubles up to a limit. Services are stopped before the server, because
they need the bus to finish their work. Each process has its own session, so that Ctrl-C reaches
only this process, which then stops the others. On Linux they end with this process even if it is
killed; elsewhere the next `navarch serve` ends them. The agents of local nodes outlive the
provisioner that started them, so `python -m services.cli.supervisor DIRECTORY` stops them: it is
started beside this process and waits for its end.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas.permissions import GATEWAY
from services.bus.nats.embedded_server import EmbeddedServer
from services.cli.fleet_discovery import (
    LOCAL_FOLDER,
    NATS_URL_VARIABLE,
    SERVE_FILE,
    ProcessId,
    ServeState,
    started_ticks,
)
from services.cli.store_restart import keep_storing
from services.primitives.errors import NavarchError
from services.primitives.module_names import installed_name
from services.primitives.process_lifetime import ending_with_us, starting_after_us
from services.primitives.race import race
from services.runtime.served_process import RELOAD_STATUS

SERVICES: Final = ("pool-manager", "health-monitor", "provisioner", "notifier", "metrics")
SERVER: Final = "nats-server"
REPORTER: Final = "pool-manager"
"""Publishes what is wrong with the configuration: serve itself is no user of the bus."""
HTTP_PORT_VARIABLE: Final = "NAVARCH_HTTP_PORT"

BACKOFF_FIRST_SECONDS: Final = 0.25
BACKOFF_MAX_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 30.0
"""After so long the restart delay is reset."""
STOP_SECONDS_MAX: Final = 12.0
"""Longer than a service's own limit, so that it can finish its work."""
SLOW_START_SECONDS: Final = 10.0
"""After which the operator is informed what the start waits for."""
READY_SECONDS_MAX: Final = 60.0
DRAIN_SECONDS_MAX: Final = 0.5
"""Time to read the last lines of a process that has ended."""
LINE_BYTES_MAX: Final = 256 * 1024

LogSink = Callable[[str, str], None]
"""Takes a service's name and a line that it wrote."""


class _LogLine(msgspec.Struct):
    msg: str = ""
    http: str = ""


_log_line = msgspec.json.Decoder(_LogLine)


Execute = Callable[[tuple[str, ...], Mapping[str, str]], Awaitable[Process]]
"""Runs a module with its arguments in an environment."""


async def execute(
    program: tuple[str, ...], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Run it as `python -m` does; it ends with this process."""
    return await asyncio.create_subprocess_exec(
        *ending_with_us((sys.executable, "-m", *program)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )


@dataclass(slots=True)
class Child:
    """Holds one replica of a service and its current process."""

    name: str
    """The service's name; further replicas add a number."""
    service: str
    process: Process | None = None
    http: str = ""
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Starts, restarts and stops the processes of a fleet."""

    def __init__(
        self,
        *,
        server: EmbeddedServer | None,
        url: str,
        environment: Callable[[Child], Mapping[str, str]],
        log: LogSink,
        on_change: Callable[[], None],
        replicas: int = 1,
        gateway: bool = False,
        execute: Execute = execute,
    ) -> None:
        """`server` None: the bus is at `url`. `environment`: computed at each start of a process.

        `on_change`: a process started or is ready. `gateway`: whether one runs.
        """
        self._execute = execute
        self._environment = environment
        self._server = server
        self._log = log
        self._on_change = on_change
        self._tasks: list[asyncio.Task[None]] = []
        self.url = url
        """Of the bus."""
        self.children = {
            name: Child(name, service)
            for service in SERVICES
            for name in (service, *(f"{service}-{number}" for number in range(2, replicas + 1)))
        }
        if gateway:
            self.children[GATEWAY] = Child(GATEWAY, GATEWAY)

    @property
    def pids(self) -> dict[str, int]:
        """Return the PID of every running process."""
        found = {
            name: child.process.pid
            for name, child in self.children.items()
            if child.process is not None and child.process.returncode is None
        }
        if self._server is not None and self._server.pid:
            found[SERVER] = self._server.pid
        return found

    @property
    def processes(self) -> tuple[ProcessId, ...]:
        """The same processes, with their start times."""
        return process_ids(*self.pids.values())

    async def start(self) -> None:
        """Start the server, then every service."""
        if self._server is not None:
            slow = f"{SERVER} is still reading its store; after a kill that can take minutes"
            notice = asyncio.get_running_loop().call_later(
                SLOW_START_SECONDS, self._log, "serve", slow
            )
            try:
                self.url = await self._server.start()
            finally:
                notice.cancel()
            self._tasks.append(asyncio.create_task(self._keep_server()))
            warn = partial(self._log, "serve")
            self._tasks.append(asyncio.create_task(keep_storing(self._server, warn)))
        for child in self.children.values():
            self._tasks.append(asyncio.create_task(self._keep(child)))

    async def ready(self) -> None:
        """Wait until every service has logged that it is ready."""
        await asyncio.gather(*(child.ready.wait() for child in self.children.values()))

    async def renew(self) -> str:
        """Restart the processes one after the other, each when the one before is ready.

        What is returned is the name of one that is not ready in time; the rest are left as they
        are. Empty: all are ready.
        """
        for child in self.children.values():
            process, was_ready = child.process, child.ready.is_set()
            child.ready.clear()
            if process is not None and process.returncode is None:
                if was_ready:
                    process.send_signal(signal.SIGHUP)
                else:
                    await stop_process(process)
            [ready] = await race(child.ready.wait(), seconds_max=READY_SECONDS_MAX)
            if ready.cancelled():
                return child.name
        return ""

    def report(self) -> None:
        """Let a process report what serve refuses."""
        for child in self.children.values():
            if child.service == REPORTER and child.process is not None and child.ready.is_set():
                child.process.send_signal(signal.SIGHUP)

    async def failed(self) -> None:
        """Wait for an error of the supervision itself, and raise it."""
        await asyncio.gather(*self._tasks)

    async def stop(self, instances: Callable[[], None]) -> None:
        """Stop the services, then call `instances`, then stop the server."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        running = [child.process for child in self.children.values() if child.process is not None]
        await asyncio.gather(*(stop_process(process) for process in running))
        try:
            await asyncio.to_thread(instances)
        finally:
            if self._server is not None:
                await self._server.stop()

    async def _keep_server(self) -> None:
        assert self._server is not None
        loop = asyncio.get_running_loop()
        wait = 0.0
        while True:
            self._on_change()
            started = loop.time()
            status = await self._server.wait()
            wait = _restart_seconds(wait, loop.time() - started)
            self._log("serve", f"{SERVER} ended with {status}; restarting it in {wait:g} s")
            await asyncio.sleep(wait)
            with suppress(NavarchError):
                await self._server.start()

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        wait = 0.0
        while True:
            started = loop.time()
            status = await self._run(child)
            if status == RELOAD_STATUS:
                continue
            wait = _restart_seconds(wait, loop.time() - started)
            self._log("serve", f"{child.name} ended with {status}; restarting it in {wait:g} s")
            await asyncio.sleep(wait)

    async def _run(self, child: Child) -> int:
        """Run a service once and log its output; return its exit status."""
        module = installed_name(f"services.{child.service.replace('-', '_')}")
        variables = {**self._environment(child), NATS_URL_VARIABLE: self.url}
        child.process = await self._execute((module,), variables)
        self._on_change()
        reading = asyncio.create_task(self._read(child))
        try:
            status = await child.process.wait()
            # Processes that the service started may keep the pipe open, so its end may not come.
            await asyncio.wait({reading}, timeout=DRAIN_SECONDS_MAX)
            return status
        finally:
            if child.process.returncode is not None:
                reading.cancel()
            else:
                self._tasks.append(reading)

    async def _read(self, child: Child) -> None:
        assert child.process is not None
        assert child.process.stdout is not None
        while True:
            try:
                line = await child.process.stdout.readline()
            except ValueError:
                self._log("serve", f"{child.name} wrote a line above {LINE_BYTES_MAX} bytes")
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._detect_ready(child, text)
            self._log(child.name, text)

    def _detect_ready(self, child: Child, line: str) -> None:
        try:
            entry = _log_line.decode(line)
        except msgspec.DecodeError:
            return
        if entry.msg == "ready" and entry.http:
            child.http = entry.http
            child.ready.set()
            self._on_change()


def process_ids(*pids: int) -> tuple[ProcessId, ...]:
    """The existing processes of these PIDs, with their start times."""
    ticks = ((pid, started_ticks(pid)) for pid in pids)
    return tuple(ProcessId(pid=pid, started_ticks=each) for pid, each in ticks if each is not None)


async def stop_process(process: Process) -> None:
    """Terminate a process, and kill it if it does not end in time."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def end_processes(processes: tuple[ProcessId, ...]) -> int:
    """End those processes that still run; return their number."""

    def alive() -> list[int]:
        return [each.pid for each in processes if started_ticks(each.pid) == each.started_ticks]

    found = len(alive())
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in alive():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                while alive():  # noqa: ASYNC110 - not our children, so not awaitable
                    await asyncio.sleep(0.02)
    return found


async def end_predecessor(directory: Path) -> int:
    """End the processes of a killed serve; return their number, agents excluded."""
    try:
        before = msgspec.json.decode((directory / SERVE_FILE).read_bytes(), type=ServeState)
    except (FileNotFoundError, msgspec.DecodeError):
        return 0
    await end_processes(before.stopper)  # else it would stop the successor's nodes
    ended = await end_processes(before.processes)
    await asyncio.to_thread(stop_instances, directory)
    return ended


def stop_instances(directory: Path) -> None:
    """Stop the nodes that run as processes on this machine."""
    from services.provisioner.providers.local import stop_all  # noqa: PLC0415

    stop_all(directory / LOCAL_FOLDER)


async def start_instance_stopper(
    directory: Path, environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Start the process that stops the local nodes if this one is killed."""
    module = (sys.executable, "-m", installed_name("services.cli.supervisor"), str(directory))
    return await asyncio.create_subprocess_exec(
        *starting_after_us(module),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


if __name__ == "__main__":
    stop_instances(Path(sys.argv[1]))


def _restart_seconds(last: float, ran_seconds: float) -> float:
    """How long to wait before the next start; `last` 0: this is the first."""
    if not last or ran_seconds > STEADY_SECONDS:
        return BACKOFF_FIRST_SECONDS
    return min(2 * last, BACKOFF_MAX_SECONDS)
