"""Runs the bus and the services of a configuration in this process, with this program's plugins."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from msgspec.structs import replace

from schemas.plugin_kinds import KINDS
from schemas.settings import Settings
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.fleet_client import FleetClient
from services.health_monitor import service as health_monitor
from services.metrics import service as metrics
from services.notifier import service as notifier
from services.pool_manager import service as pool_manager
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError, NavarchError
from services.primitives.race import unless
from services.provisioner import service as provisioner
from services.runtime.configured_process import Check
from services.runtime.log_answers import LOG_CHARS_MAX, LOG_LINES_MAX, remembered
from services.runtime.plugin_host import PluginHost
from services.runtime.process import Build, check_service, no_check, run_service
from services.runtime.process_metrics import Instruments
from services.settings.plugin_loader import registered
from services.settings.problem_list import ProblemList
from services.settings.settings_file import load_settings

SERVICES: Final[Mapping[str, tuple[Build, Check]]] = {
    "pool-manager": (pool_manager.build, pool_manager.check),
    "provisioner": (provisioner.build, provisioner.check),
    "health-monitor": (health_monitor.build, health_monitor.check),
    "notifier": (notifier.build, notifier.check),
    "metrics": (metrics.build, no_check),
}
GROUPS: Final[Mapping[str, str]] = {
    each.name: each.group for each in KINDS if each.name not in ("authenticator", "health check")
}
"""Kind -> group of entry points, of those whose plugins these services call."""
NATS_FOLDER: Final = "nats"
NAME: Final = "embedding-program"


class EmbeddedFleet:
    """Runs a fleet while it is entered.

    One process is no protection against its end: a fleet in production is `navarch serve`, compose
    or Kubernetes. A service that ends by itself ends the block with what it raised.
    """

    def __init__(
        self,
        config: Path,
        *,
        nats_url: str = "",
        environment: Mapping[str, str] | None = None,
        services: Mapping[str, tuple[Build, Check]] = SERVICES,
    ) -> None:
        """Run the fleet of the file `config`, whose `${NAME}` are of `environment`.

        `nats_url`: of a nats-server that is there, with the credentials of the configuration. By
        default one is started on a free port of this machine, open to its users, which stores below
        `data_dir`. `services`: what runs, by name. Nothing starts before the fleet is entered.
        """
        self._config = config
        self._nats_url = nats_url
        self._environment = environment
        self._services = services
        self._plugins: dict[tuple[str, str], type[Any]] = {}
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._client: FleetClient | None = None
        self._url = ""

    def register(self, kind: str, name: str, plugin: type[Any]) -> None:
        """Have the configuration's `type: NAME` mean this class, in this fleet.

        `kind` is a name of the table in docs/plugins.md, with dashes or without, as `provider`.
        Raise ConfigurationError for a kind that no service here calls; a taken name is refused as
        the fleet starts.
        """
        kind = kind.replace("-", " ")
        if kind not in GROUPS:
            known = ", ".join(GROUPS)
            raise ConfigurationError(f"no service here calls a plugin of kind {kind!r}: {known}")
        self._plugins[kind, name] = plugin

    @property
    def client(self) -> FleetClient:
        """The fleet's queries and requests, over a connection of this program's own."""
        if self._client is None:
            raise NavarchError("the fleet does not run: use `async with fleet`")
        return self._client

    @property
    def url(self) -> str:
        """The address of the bus, for `navarch --nats-url`; empty: the fleet does not run."""
        return self._url

    async def __aenter__(self) -> Self:
        """Start everything; ConfigurationError has all that is wrong in the configuration."""
        async with AsyncExitStack() as stack:
            for (kind, name), plugin in self._plugins.items():
                stack.enter_context(registered(GROUPS[kind], name, plugin))
            # In a thread: a check of plugins runs an event loop of its own.
            settings = await asyncio.to_thread(self._checked)
            url = self._nats_url or await self._server(settings, stack)
            settings = replace(settings, nats=replace(settings.nats, url=url))
            await self._start(settings, stack)
            options = ConnectOptions(settings=settings.nats, name=NAME)
            bus = await NatsBus.connect(options)
            stack.push_async_callback(bus.close)
            self._client, self._url = FleetClient(bus), url
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Have every service finish what it holds, then stop the server."""
        self._client, self._url = None, ""
        return await self._stack.__aexit__(kind, error, trace)

    def _checked(self) -> Settings:
        settings, problems = load_settings(self._config, self._environment), ProblemList()
        for name, (_, check) in self._services.items():
            with problems.collecting():
                check_service(name, check, settings, self._config)
        problems.raise_found()
        # Each service has a port of its own, whatever the one that the file gives to one process.
        return replace(settings, http=replace(settings.http, port=0))

    async def _server(self, settings: Settings, stack: AsyncExitStack) -> str:
        directory = Path(settings.data_dir) / NATS_FOLDER
        directory.mkdir(parents=True, exist_ok=True)
        server = EmbeddedServer(directory)
        stack.push_async_callback(server.stop)
        return await server.start()

    async def _start(self, settings: Settings, stack: AsyncExitStack) -> None:
        """Run the services beside the caller until the stack ends, or one of them does."""
        self._stopping = asyncio.Event()
        ready = [asyncio.Event() for _ in self._services]
        running = asyncio.create_task(self._run(settings, ready))
        stack.push_async_exit(partial(self._end, running))
        await unless(running, asyncio.gather(*(each.wait() for each in ready)))
        program = asyncio.current_task()
        assert program is not None
        running.add_done_callback(lambda _: self._stopping.is_set() or program.cancel())

    async def _run(self, settings: Settings, ready: Sequence[asyncio.Event]) -> None:
        clock = SystemClock()
        try:
            with remembered(LOG_LINES_MAX, LOG_CHARS_MAX, clock.now) as logged:
                async with asyncio.TaskGroup() as group:
                    for (name, (build, _)), up in zip(self._services.items(), ready, strict=True):
                        service = run_service(
                            *(name, build, settings, self._config, clock, Instruments(), {}),
                            *(logged, PluginHost(name, threads=True), self._stopping, up),
                        )
                        group.create_task(service)
        except ExceptionGroup as error:
            raise error.exceptions[0] from error

    async def _end(self, running: asyncio.Task[None], *_: object) -> None:
        """Stop the services; raise what has ended one of them by itself."""
        ended, program = running.done() and not self._stopping.is_set(), asyncio.current_task()
        if ended and program is not None and program.cancelling():
            program.uncancel()  # by the end of the service, which is raised instead
        self._stopping.set()
        await running
