"""A service's life: configuration, bus, set-up, loops, HTTP; SIGTERM lets what is held finish."""

import asyncio
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.fleet_events import OrderAnswered
from schemas.headers import SUBJECT
from schemas.log_excerpts import SERVICE_EXCERPT_BYTES_MAX
from schemas.permissions import SERVICES, SETS_UP, durables_of, in_name_of, inbox
from schemas.settings import Settings
from services.bus.nats.connection_expiry import expiring
from services.bus.nats.connection_options import ConnectOptions, credentials
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Bus, Endpoint, Headers
from services.bus.topology_setup import set_up
from services.primitives.clock import Clock, SystemClock
from services.primitives.errors import BusError, ConfigurationError, NavarchError
from services.primitives.race import race
from services.primitives.redaction import redacted
from services.runtime.configuration_reload import ConfigurationReload
from services.runtime.configured_process import Check, run_configured
from services.runtime.consumer_loop import Consumer, ConsumerLoop
from services.runtime.crash_guard import CrashGuard
from services.runtime.durable_watch import DurableWatch
from services.runtime.event_publisher import publish_event
from services.runtime.failure_register import unwritable
from services.runtime.http_listener import check_port, listen
from services.runtime.log_answers import (
    LOG_CHARS_MAX,
    LOG_LINES_MAX,
    LogAnswers,
    LogMemory,
    answer_logs,
    remembered,
)
from services.runtime.plugin_exits import PluginExitFile
from services.runtime.plugin_host import PluginHost
from services.runtime.plugin_metrics import PluginCollector
from services.runtime.process_http import HttpEndpoint
from services.runtime.process_metrics import Instruments
from services.runtime.push_choice import metric_push
from services.runtime.readiness import Readiness
from services.runtime.server_clock import ServerClock
from services.runtime.tracing import Tracing, otlp_processor
from services.settings.plugin_loader import locate
from services.settings.problem_list import ProblemList

CONTENT_CHARS_MAX: Final = 300
REASON_CHARS_MAX: Final = 300
DIGITS: Final = 24
log = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 8.0
PING_SECONDS: Final = 2
"""A server that hangs is left after six seconds; agents, of which there are many, take longer."""
WRITES_SECONDS: Final = 2.0
"""Between two looks, in memory alone, at which streams take nothing."""
EXPIRY_SECONDS: Final = 600.0
"""Between two checks of what expires soon."""
TASKS_SECONDS_MAX: Final = 2.0
"""For the loops beside the consumers: they hold no messages."""


def audited(
    endpoints: Mapping[str, Endpoint],
    service: str,
    now: Callable[[], datetime],
    publish: Callable[[OrderAnswered], Awaitable[None]],
) -> dict[str, Endpoint]:
    """The same endpoints; those that take orders publish what came of each."""

    def wrapped(endpoint: Endpoint) -> Endpoint:
        async def answer(data: bytes, headers: Headers) -> bytes:
            try:
                found = await endpoint(data, headers)
            except Exception as error:
                await record(data, headers, str(error))
                raise
            await record(data, headers, "")
            return found

        return answer

    async def record(data: bytes, headers: Headers, reason: str) -> None:
        event = order_event(headers.get(SUBJECT, ""), data, service, reason, now())
        if event is None:
            return
        try:
            await publish(event)
        except BusError as error:
            log.error("an order is not in the events: %s: %s", event, error)  # noqa: TRY400

    return {
        subject: wrapped(each) if subject.startswith(ORDER_PREFIX) else each
        for subject, each in endpoints.items()
    }


class _Order(msgspec.Struct):
    by: str = ""


def _named(data: bytes) -> str:
    """Whom an order names as the one who gave it."""
    try:
        return msgspec.json.decode(data, type=_Order).by
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


ORDER_PREFIX: Final = subjects.ORDERS.removesuffix("*.*")


def order_event(
    subject: str, data: bytes, service: str, reason: str, now: datetime
) -> OrderAnswered | None:
    """Return the event about an order; None for one that a service gave by itself. Pure."""
    parsed = subjects.parse_order(subject)
    if parsed is None or parsed[1] in SERVICES:
        return None
    order, by = parsed[0], in_name_of(parsed[1], _named(data))
    digest = hashlib.sha256(f"{subject}\0{now.isoformat()}\0".encode() + data).hexdigest()
    return OrderAnswered(
        id=f"order-{digest[:DIGITS]}",
        time=now,
        by=by,
        order=order,
        service=service,
        content=redacted(data[:CONTENT_CHARS_MAX].decode("utf-8", "replace")),
        outcome="refused" if reason else "accepted",
        reason=reason[:REASON_CHARS_MAX],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Everything outside that a service is given."""

    name: str
    replica: str
    """Unique to this process; the holder's name of its leases."""
    bus: Bus
    clock: Clock
    settings: Settings
    settings_file: Path | None
    instruments: Instruments
    tracing: Tracing
    facts: Mapping[str, str] = field(default_factory=dict)
    """What the process says of itself on the bus."""
    plugins: PluginHost = field(default_factory=PluginHost)


Task = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Holds the parts of a service; `build` functions return one."""

    description: str
    consumers: Sequence[Consumer] = ()
    tasks: Sequence[Task] = ()
    """Loops that run as long as the process."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """Questions it answers: subject -> function."""
    close: Task | None = None
    refresh: Task | None = None
    """Called before each scrape of /metrics."""


Build = Callable[[Context], Awaitable[Service]]


def no_check(settings: Settings, file: Path | None) -> None:
    """Check nothing, for a service that loads no plugin and no file."""
    del settings, file


def check_service(name: str, check: Check, settings: Settings, file: Path | None) -> None:
    """Raise ConfigurationError if the configuration would end the service at its start."""
    problems = ProblemList()
    with problems.collecting():
        check(settings, file)
    try:
        credentials(ConnectOptions(settings=settings.nats, name=name))
    except ConfigurationError as error:
        problems.add(locate(error, file))
    problems.raise_found()


def main(name: str, build: Build, check: Check = no_check, clock: Clock | None = None) -> None:
    """Run `python -m services.<name>`; by another clock than the machine's where one is given."""
    run = partial(_run, name, build, clock or SystemClock())
    run_configured(name, partial(check_service, name, check), run)


async def _run(
    name: str,
    build: Build,
    clock: Clock,
    settings: Settings,
    file: Path | None,
    reload: ConfigurationReload,
) -> None:
    check_port(settings.http, file)
    instruments = Instruments()
    async with reload.watching(instruments.failures) as stopping:
        with remembered(LOG_LINES_MAX, LOG_CHARS_MAX, clock.now) as logged:
            plugins = PluginHost(
                name, threads=True, exits=PluginExitFile(Path(settings.data_dir), name, time.time())
            )
            await run_service(
                *(name, build, settings, file, clock, instruments, reload.facts, logged),
                plugins,
                stopping,
            )


async def run_service(
    name: str,
    build: Build,
    settings: Settings,
    file: Path | None,
    clock: Clock,
    instruments: Instruments,
    facts: Mapping[str, str],
    logged: LogMemory,
    plugins: PluginHost,
    stopping: asyncio.Event,
    ready: asyncio.Event | None = None,
) -> None:
    """Connect one service and run it until `stopping` is set; `ready` is set once it serves.

    The settings are checked before. A loop that ends by itself raises what ended it.
    """
    options = ConnectOptions(
        settings=settings.nats, name=name, inbox_prefix=inbox(name), ping_seconds=PING_SECONDS
    )
    connecting, _ = await race(NatsBus.connect(options), stopping.wait())
    if connecting.cancelled():
        return
    bus: NatsBus = connecting.result()
    replica = f"{name}-{os.getpid()}-{secrets.token_hex(3)}"
    logs = LogAnswers(replica, logged, clock, SERVICE_EXCERPT_BYTES_MAX)
    await answer_logs(bus, subjects.service_logs(name), logs.answer)
    await set_up(
        bus,
        clock,
        replicas=settings.nats.replicas,
        durables=durables_of(name),
        waits=bool(settings.nats.creds_file) and name != SETS_UP,
    )
    server_clock = ServerClock(bus, clock, instruments)
    reading, _ = await race(server_clock.known(), stopping.wait())
    if reading.cancelled():
        await bus.close()
        return
    reading.result()
    await plugins.read(bus)
    instruments.registry.register(PluginCollector(plugins))
    context = Context(
        name=name,
        replica=replica,
        bus=bus,
        clock=server_clock,
        settings=settings,
        settings_file=file,
        instruments=instruments,
        tracing=Tracing(name, otlp_processor(settings.tracing.otlp_endpoint)),
        facts=facts,
        plugins=plugins,
    )
    try:
        building, _ = await race(built(build, context), stopping.wait())
        if building.cancelled():
            return
        service: Service = building.result()
        watch_expiry = partial(_watch_expiry, context, bus)
        guard = guard_of(context)
        service = with_failures(context, service, server_clock.run, watch_expiry, guard.run)
        await _serve(context, service, guard, stopping, ready or asyncio.Event())
    finally:
        plugins.close()
        context.tracing.close()
        await bus.close()
        log.info("stopped")


async def built(build: Build, context: Context) -> Service:
    """The service; what it waits for is published, and answered to those who ask what fails."""
    name = context.name.partition("/")[0]  # a simulated replica's has a number
    failures = context.instruments.failures
    await context.bus.answer(subjects.failures_query(name), failures.endpoint())
    await context.bus.answer(subjects.plugins_query(name), context.plugins.endpoint())
    reports = [asyncio.create_task(each(context)) for each in (_publish_failures, _watch_writes)]
    try:
        return await build(context)
    finally:
        await _stop(reports, TASKS_SECONDS_MAX)


async def _publish_failures(context: Context) -> None:
    failures = context.instruments.failures
    await failures.publish_for_ever(context.bus, context.clock, context.name, context.replica)


async def _watch_expiry(context: Context, bus: NatsBus) -> None:
    """Report certificates and credentials that expire soon."""
    within = context.settings.nats.expiry_warning
    while True:
        if bus.connected:
            found = expiring(bus.expiries(), context.clock.now(), within)
            context.instruments.failures.update("expiry", found)
        await context.clock.sleep(EXPIRY_SECONDS)


async def _watch_writes(context: Context) -> None:
    """Report streams that take none of this process's writes."""
    while True:
        found = map(unwritable, context.bus.unwritable_streams().items())
        context.instruments.failures.update("writes", found)
        await context.clock.sleep(WRITES_SECONDS)


def guard_of(context: Context) -> CrashGuard:
    """Return the guard that sets aside messages which end this service's processes."""
    failures = context.instruments.failures
    return CrashGuard(context.bus, context.clock, context.name, context.replica, failures)


def with_failures(context: Context, service: Service, *tasks: Task) -> Service:
    """A service that also reports what fails in it, and recreates its durables."""
    failures = context.instruments.failures
    replicas = context.settings.nats.replicas
    plugins = context.plugins
    watches = (
        DurableWatch(context.bus, context.clock, each.durable, failures, replicas).run
        for each in service.consumers
    )
    return replace(
        service,
        tasks=(
            *(*service.tasks, *tasks, *watches),
            *(partial(_publish_failures, context), partial(_watch_writes, context)),
            *(partial(plugins.run, failures, context.clock), partial(plugins.follow, context.bus)),
        ),
    )


async def _serve(
    context: Context,
    service: Service,
    guard: CrashGuard,
    stopping: asyncio.Event,
    ready: asyncio.Event,
) -> None:
    own = context.settings.http
    http = HttpEndpoint(
        listen(own.host, own.port, ("http.host", "http.port"), context.settings_file),
        context.instruments.registry,
        Readiness(context.bus).problem,
        service.refresh,
    )
    endpoints = audited(
        service.endpoints, context.name, context.clock.now, partial(publish_event, context.bus)
    )
    facts = {**context.facts, "http": http.url}
    with closing(http):
        await context.bus.serve(context.name, service.description, endpoints, facts=facts)
        await _run_loops(context, service, guard, http, stopping, ready)


async def _run_loops(
    context: Context,
    service: Service,
    guard: CrashGuard,
    http: HttpEndpoint,
    stopping: asyncio.Event,
    ready: asyncio.Event,
) -> None:
    push = metric_push(
        context.settings.metrics.otlp_endpoint,
        context.name,
        context.replica,
        context.instruments.registry,
        context.clock,
    )
    sending: Sequence[Task] = (push.run,) if push is not None else ()
    loops = [
        ConsumerLoop(
            context.bus, each, context.clock, context.instruments, context.tracing, guard
        ).run
        for each in service.consumers
    ]
    consuming = [asyncio.ensure_future(each()) for each in loops]
    tasks = [asyncio.ensure_future(each()) for each in (*service.tasks, *sending)]
    serving = asyncio.create_task(http.run())
    waiting = asyncio.create_task(stopping.wait())
    log.info("ready", extra={"http": http.url, "replica": context.replica})
    ready.set()
    try:
        done, _ = await asyncio.wait(
            {waiting, serving, *consuming, *tasks}, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting not in done:
            # A loop that ends is a defect; ending the process lets its supervisor restart it.
            for task in done:
                task.result()
            raise NavarchError("a loop of the service ended by itself")
        log.info("stopping")
    finally:
        # Consumers first: what they finish may wait for what the other loops bring.
        await _stop([waiting, *consuming], STOP_SECONDS_MAX)
        await _stop(tasks, TASKS_SECONDS_MAX)
        if service.close is not None:
            await service.close()
        http.stop()
        await asyncio.wait({serving}, timeout=STOP_SECONDS_MAX)


async def _stop(tasks: "Sequence[asyncio.Future[Any]]", seconds_max: float) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=seconds_max)
