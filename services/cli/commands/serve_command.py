"""`navarch serve`: every service as one command, and a nats-server unless one is named.

It locks the data directory while it runs. The other commands find the bus by its `serve.json`.
Processes that a killed serve left running are ended first.
"""

import asyncio
import errno
import fcntl
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from schemas import subjects
from schemas.permissions import GATEWAY
from schemas.settings import NatsSettings, Settings
from schemas.time_text import utc_text
from services.bus.nats.embedded_server import EmbeddedServer, file_limit
from services.bus.nats.file_limits import FILES_MIN, low_limit
from services.cli.fleet_discovery import LOCK_FILE, NATS_URL_VARIABLE, SERVE_FILE, ServeState
from services.cli.served_bus import (
    NO_GATEWAY,
    GatewayPort,
    ServedBus,
    configured_variables,
    gateway_port,
    gateway_variables,
    has_gateway,
    public_address,
    service_environment,
    token_file,
)
from services.cli.supervisor import (
    HTTP_PORT_VARIABLE,
    READY_SECONDS_MAX,
    Child,
    Execute,
    LogSink,
    Supervisor,
    end_predecessor,
    execute,
    process_ids,
    start_instance_stopper,
    stop_instances,
    stop_process,
)
from services.cli.temporary_fleet import DATA_FOLDER, temporary_directory
from services.gateway.gateway_start import PORT_VARIABLE
from services.operator_text.safe_text import escape, escape_line
from services.primitives.atomic_files import write_secret
from services.primitives.errors import NavarchError
from services.primitives.race import race
from services.runtime.configuration_watch import content_digest
from services.runtime.reload_requests import ReloadRequests
from services.runtime.served_process import COPY_FILE, SERVED_VARIABLE, ReloadState
from services.settings.configuration_text import COPY_VARIABLE, FILE_VARIABLE, read_text
from services.settings.plugin_loader import NO_FILE
from services.settings.settings_file import DEFAULTS, load_settings, parse_settings

OWNER_ONLY: Final = 0o700
NATS_FOLDER: Final = "nats"
LOG_FILE: Final = "services.log"
"""Of a temporary fleet, beside its data directory."""
OPEN_WARNING: Final = "--open: no credentials are needed, so every local user controls the fleet"


class ServedFleet:
    """A fleet run from a data directory: entering starts it, leaving stops it in order."""

    def __init__(
        self,
        settings: Settings,
        config: Path | None,
        environment: Mapping[str, str],
        log: LogSink,
        replicas: int = 1,
        *,
        is_open: bool = False,
        temporary: bool = False,
        gateway: bool = False,
        text: str = "",
        execute: Execute = execute,
    ) -> None:
        """Serve `settings`, which were read from `config`, with `replicas` of each service.

        `text`: of `config`, if it was read already. `is_open`: without credentials. `temporary`:
        what is stored is removed at the end, and need not survive a power cut. `gateway`: with the
        HTTP API. `execute`: runs the services.
        """
        self.settings = settings
        self.directory = Path(settings.data_dir)
        self.config = config
        self._log = log
        self._stopper: asyncio.subprocess.Process | None = None
        self._base = dict(environment)
        self._base[SERVED_VARIABLE] = str((self.directory / SERVE_FILE).resolve())
        self._text = text or (read_text(config) if config is not None else "")
        if config is not None:
            self._base[FILE_VARIABLE] = str(config.absolute())
            self._base[COPY_VARIABLE] = str((self.directory / COPY_FILE).resolve())
        self._configured = configured_variables(settings, self._text)
        self._is_open = is_open
        self._gateway_port = gateway_port(settings, environment) if gateway else GatewayPort("")
        self.reload = ReloadState(in_force=content_digest(self._text.encode()))
        url = environment.get(NATS_URL_VARIABLE, "")
        if url and is_open:
            raise NavarchError(
                f"--open is for the nats-server that serve starts, and {NATS_URL_VARIABLE} names "
                "another: omit one of them"
            )
        address = ("", -1) if is_open else public_address(settings)
        self.bus = None if url else ServedBus(self.directory, is_open, *address)
        store = self.directory / NATS_FOLDER
        self.supervisor = Supervisor(
            server=EmbeddedServer(
                store,
                port=self.bus.port,
                config=self.bus.config,
                sync=not temporary,
                certificate=self.bus.certificate,
            )
            if self.bus is not None
            else None,
            url=url,
            environment=self._variables,
            log=log,
            on_change=self._write_state,
            replicas=replicas,
            gateway=gateway,
            execute=execute,
        )

    async def __aenter__(self) -> Self:
        """Start everything; wait only for the bus."""
        self._write_copy()
        if ended := await end_predecessor(self.directory):
            what = "process" if ended == 1 else "processes"
            self._log("serve", f"ended {ended} {what} of a killed `navarch serve`")
        if self.bus is not None and (moved := self._prepare(self.bus)):
            self._log("serve", moved)
        self._stopper = await start_instance_stopper(self.directory, self._environment(""))
        try:
            await self.supervisor.start()
        except BaseException:
            await self.__aexit__()
            raise
        self._write_state()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop everything."""
        await self.supervisor.stop(lambda: stop_instances(self.directory))
        if self._stopper is not None:
            await stop_process(self._stopper)
        for name in (SERVE_FILE, COPY_FILE):
            (self.directory / name).unlink(missing_ok=True)

    @property
    def nats(self) -> NatsSettings:
        """Return how an operator connects to the bus."""
        nats = msgspec.structs.replace(self.settings.nats, url=self.supervisor.url)
        if self.bus is None:
            return nats
        return msgspec.structs.replace(
            nats,
            creds_file=self.bus.operator_file,
            tls_ca_file=self.bus.authority_file or nats.tls_ca_file,
        )

    @property
    def dashboard(self) -> str:
        """Return the dashboard's address and where its token is; empty: there is no gateway."""
        if GATEWAY not in self.supervisor.children:
            return ""
        token = token_file(self.settings)
        needs = f"; its token is in {token}" if token.exists() else ""
        return f"{self.supervisor.children[GATEWAY].http}/{needs}"

    @property
    def port_remark(self) -> str:
        """Return why the dashboard has another port than usual; empty: it has not."""
        return self._gateway_port.remark

    def take(self, settings: Settings, text: str) -> None:
        """Give them to every process that starts from now on; `text`: of their file."""
        before, after = self.settings.gateway, settings.gateway
        if self._gateway_port.port and (before.host, before.port) != (after.host, after.port):
            self._gateway_port = gateway_port(settings, self._base)
        self._configured = configured_variables(settings, text)
        self.settings, self._text = settings, text
        self._write_copy()

    def publish(self, reload: ReloadState) -> None:
        """Let other processes read it."""
        self.reload = reload
        self._write_state()

    def _variables(self, child: Child) -> dict[str, str]:
        found = self._environment(child.service)
        # All services share one configuration, but only one can listen on its port.
        found[HTTP_PORT_VARIABLE] = str(self.settings.http.port if child.name == "metrics" else 0)
        if child.service == GATEWAY:
            port, is_open = self._gateway_port.port, self._is_open
            found |= gateway_variables(self.settings, self._base, port, is_open=is_open)
        return found

    def _environment(self, service: str) -> dict[str, str]:
        found = service_environment(service, self._base, self._configured)
        return found | (self.bus.variables(service) if self.bus is not None else {})

    def _prepare(self, bus: ServedBus) -> str:
        return bus.prepare(self.directory / NATS_FOLDER, self.settings.fleet, datetime.now(UTC))

    def _write_copy(self) -> None:
        """Write what the processes read: the file may change before one of them is restarted."""
        if self.config is not None:
            write_secret(self.directory / COPY_FILE, self._text)

    def _write_state(self) -> None:
        """Write SERVE_FILE atomically, for the other commands."""
        supervisor = self.supervisor
        stopper = process_ids(self._stopper.pid) if self._stopper is not None else ()
        running = ServeState(
            nats_url=supervisor.url,
            creds_file=self.bus.operator_file if self.bus is not None else "",
            tls_ca_file=self.bus.authority_file if self.bus is not None else "",
            pid=os.getpid(),
            directory=str(self.directory.absolute()),
            config=str(self.config.absolute()) if self.config else "",
            pids=supervisor.pids,
            http={name: child.http for name, child in supervisor.children.items() if child.http},
            processes=supervisor.processes,
            stopper=stopper,
            reload=self.reload,
        )
        text = msgspec.json.format(msgspec.json.encode(running), indent=2).decode() + "\n"
        write_secret(self.directory / SERVE_FILE, text, synced=False)


@asynccontextmanager
async def temporary_fleet(
    prefix: str,
    configuration: Callable[[Path], str],
    *,
    is_open: bool = False,
    gateway: bool = False,
) -> AsyncIterator[ServedFleet]:
    """Serve a fleet from a temporary directory, and remove it; its services log to LOG_FILE there.

    `configuration` gets the data directory and returns the text of the configuration file.
    `gateway`: with the HTTP API, where it is installed.
    """
    with temporary_directory(prefix) as directory:
        config, data = directory / "navarch.yaml", directory / DATA_FOLDER
        config.write_text(configuration(data), encoding="utf-8")
        # It must not use the fleet that the caller's environment names.
        kept = (k for k in os.environ if k == PORT_VARIABLE or not k.startswith("NAVARCH_"))
        environment = {name: os.environ[name] for name in kept}
        settings = load_settings(config, environment)
        file = directory / LOG_FILE
        with file.open("a", encoding="utf-8", buffering=1) as log, lock_directory(data):

            def write_log(name: str, line: str) -> None:
                log.write(f"{name} {line}\n")

            async with ServedFleet(
                settings,
                config,
                environment,
                write_log,
                is_open=is_open,
                temporary=True,
                gateway=gateway and has_gateway(),
            ) as serving:
                yield serving


@contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock the data directory; the error names the process that holds the lock."""
    try:
        # Records, logs and keys of the fleet are in it.
        directory.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
        directory.chmod(OWNER_ONLY)
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


def serve(config: Path | None, replicas: int = 1, *, is_open: bool = False) -> int:
    """Serve until a signal stops it; return the exit code."""
    from services.cli.configuration_check import (  # noqa: PLC0415
        check_configuration,
        check_served_ports,
    )
    from services.runtime.http_listener import check_port  # noqa: PLC0415

    requests = ReloadRequests()
    text = read_text(config) if config is not None else DEFAULTS
    settings = parse_settings(str(config or NO_FILE), text, os.environ)
    check_configuration(settings, config)
    check_served_ports(settings, config)
    check_port(settings.http, config)
    if not os.environ.get(NATS_URL_VARIABLE) and file_limit() < FILES_MIN:
        raise NavarchError(
            f"nats-server may open {file_limit()} files, and needs {FILES_MIN:,} at least: raise "
            "the hard limit of this shell (`ulimit -Hn`) or `LimitNOFILE=` of its unit"
        )
    log = stdout_log()
    with lock_directory(Path(settings.data_dir)):
        fleet = ServedFleet(
            settings,
            config,
            os.environ,
            log,
            replicas,
            is_open=is_open,
            gateway=has_gateway(),
            text=text,
        )
        asyncio.run(_serve(fleet, requests, log))
    return 0


async def _serve(serving: ServedFleet, requests: ReloadRequests, log: LogSink) -> None:
    from services.cli.agent_download import downloads  # noqa: PLC0415
    from services.cli.served_reload import ServedReload  # noqa: PLC0415

    def log_entry(level: str, text: str) -> None:
        log("serve", _entry("serve", text, level))

    reload = ServedReload(serving, requests, os.environ, log_entry)
    async with requests.taken() as stopping, serving, downloads(serving):
        starting = asyncio.create_task(_log_start(serving, log))
        _, *lasting = await race(stopping.wait(), serving.supervisor.failed(), reload.run())
        starting.cancel()
        for each in lasting:
            if not each.cancelled():
                each.result()
        log("serve", "stopping")
    log("serve", "stopped")


async def _log_start(serving: ServedFleet, log: LogSink) -> None:
    """Log the addresses of the bus and the metrics, and when every service is ready."""
    supervisor = serving.supervisor
    log("serve", f"the bus is {supervisor.url}")
    if serving.bus is not None:
        if serving.bus.is_open:
            log("serve", _entry("serve", OPEN_WARNING, "WARN"))
        if few := low_limit(file_limit()):
            log("serve", _entry("serve", few, "WARN"))
        log("serve", f"watch it: {serving.bus.command(supervisor.url)} sub '{subjects.ROOT}.>'")
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            await supervisor.ready()
    except TimeoutError:
        late = [name for name, child in supervisor.children.items() if not child.ready.is_set()]
        log("serve", f"not ready after {READY_SECONDS_MAX:g} s: {', '.join(late)}; see above")
        await supervisor.ready()
    log("serve", "every service is ready; try: navarch status, navarch list, navarch events")
    log("serve", f"metrics: {supervisor.children['metrics'].http}/metrics")
    if not serving.dashboard:
        log("serve", _entry("serve", NO_GATEWAY, "WARN"))
        return
    if serving.port_remark:
        log("serve", _entry("serve", serving.port_remark, "WARN"))
    log("serve", f"dashboard: {serving.dashboard}; HTTP API: below /api/v1")


def stdout_log() -> LogSink:
    """A sink that prints log lines: in colour on a terminal, as JSON lines for programs."""
    write = _print_json
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415

        console = Console(highlight=False, soft_wrap=True)

        def write(name: str, line: str) -> None:
            console.print(_log_text(name, line), markup=False)

    def log(name: str, line: str) -> None:
        try:
            write(name, line)
        except OSError as error:
            # The fleet goes on without its reader, its terminal, or space on the disk.
            if error.errno in (errno.EIO, errno.EPIPE):
                with Path(os.devnull).open("w", encoding="utf-8") as nothing:
                    os.dup2(nothing.fileno(), sys.stdout.fileno())

    return log


def _print_json(name: str, line: str) -> None:
    if not line.startswith("{"):
        line = _entry(name, line)
    sys.stdout.write(f"{escape_line(line)}\n")
    sys.stdout.flush()


def _entry(name: str, text: str, level: str = "INFO") -> str:
    now = utc_text(datetime.now(UTC))
    return json.dumps({"time": now, "level": level, "service": name, "msg": text})


LEVELS: Final = {"WARN": "yellow", "ERROR": "red"}
NAME_CHARS: Final = 14


def _log_text(name: str, line: str) -> Any:
    from rich.text import Text  # noqa: PLC0415

    try:
        fields = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        fields = {"msg": line}
    style = LEVELS.get(str(fields.pop("level", "")), "")
    clock = str(fields.pop("time", ""))[11:23]
    message = str(fields.pop("msg", ""))
    fields.pop("service", None)
    rest = escape_line(" ".join(f"{key}={value}" for key, value in fields.items()))
    return Text.assemble(
        (f"{clock:<12} ", "dim"),
        (f"{name:<{NAME_CHARS}} ", "bold" if name == "serve" else "cyan"),
        (escape(message), style),
        (f"  {rest}" if rest else "", "dim"),
    )
