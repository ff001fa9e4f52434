"""The gateway's life: configuration, bus, HTTP; SIGTERM lets what was asked be answered.

It is in the users' account of the bus, so it is none of the services: it keeps nothing there, and
is asked for nothing but its log.
"""

import asyncio
import logging
import os
import secrets
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector

from schemas import subjects
from schemas.gateway_settings import GatewaySettings
from schemas.log_excerpts import SERVICE_EXCERPT_BYTES_MAX
from schemas.permissions import GATEWAY
from schemas.settings import Settings
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.fleet_client import FleetClient
from services.gateway.authentication import Access
from services.gateway.authenticators.chain import AuthenticatorChain, make_authenticators
from services.gateway.caller_rate import CallerRate
from services.gateway.event_streams import EventRelay, EventStreams
from services.gateway.gateway_start import (
    GATEWAY_KEYS,
    bus_options,
    gateway_settings,
    require_tokens,
    tls_options,
)
from services.gateway.http_app import http_app
from services.gateway.inbound.inbound_orders import InboundOrders
from services.gateway.inbound.inbound_routes import inbound_routes
from services.primitives.clock import Clock, SystemClock
from services.primitives.race import race
from services.runtime.configuration_reload import ConfigurationReload
from services.runtime.http_listener import listen
from services.runtime.log_answers import (
    LOG_CHARS_MAX,
    LOG_LINES_MAX,
    LogAnswers,
    LogMemory,
    answer_logs,
    remembered,
)
from services.runtime.plugin_host import PluginHost
from services.runtime.process_http import HttpEndpoint, WebServer
from services.runtime.push_choice import metric_push
from services.runtime.readiness import Readiness

if TYPE_CHECKING:
    from services.gateway.assistant_endpoint import AssistantEndpoint

log = logging.getLogger(__name__)

STOP_SECONDS_MAX: Final = 5
ID_BYTES: Final = 12
KEY_BYTES: Final = 32


async def run(settings: Settings, file: Path | None, reload: ConfigurationReload) -> None:
    """Serve until a signal stops it."""
    clock = SystemClock()
    async with reload.watching(None) as stopping:
        with remembered(LOG_LINES_MAX, LOG_CHARS_MAX, clock.now) as logged:
            await _connected(settings, file, clock, logged, stopping)


async def _connected(
    settings: Settings,
    file: Path | None,
    clock: Clock,
    logged: LogMemory,
    stopping: asyncio.Event,
) -> None:
    own = gateway_settings(settings, os.environ)
    listening = listen(own.host, own.port, GATEWAY_KEYS, file)
    probing = None
    if own.probes_port is not None:
        keys = ("http.host", "gateway.probes_port")
        probing = listen(settings.http.host, own.probes_port, keys, file)
    connecting, _ = await race(NatsBus.connect(bus_options(settings.nats)), stopping.wait())
    if connecting.cancelled():
        return
    bus: NatsBus = connecting.result()
    replica = f"{GATEWAY}-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        logs = LogAnswers(replica, logged, clock, SERVICE_EXCERPT_BYTES_MAX)
        await answer_logs(bus, subjects.GATEWAY_LOGS, logs.answer)
        plugins = PluginHost(GATEWAY, threads=True)
        others = make_authenticators(settings.authenticators, file, clock, plugins)
        chain = AuthenticatorChain(own.tokens, others, clock.now)
        has_others = bool(settings.authenticators)
        require_tokens(own, has_others=has_others, is_open=bus.is_open, file=file)
        try:
            endpoint = settings.metrics.otlp_endpoint
            await _serve(bus, own, chain, clock, endpoint, replica, listening, probing, stopping)
        finally:
            await chain.close()
    finally:
        await bus.close()
        log.info("stopped")


async def _serve(
    bus: NatsBus,
    settings: GatewaySettings,
    chain: AuthenticatorChain,
    clock: Clock,
    otlp_endpoint: str,
    replica: str,
    listening: socket.socket,
    probing: socket.socket | None,
    stopping: asyncio.Event,
) -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    access = Access(chain, CallerRate(settings.requests_per_minute), clock.now)
    relay = EventRelay(bus, clock)
    streams = EventStreams(relay, settings.streams_max, clock.now, registry)
    fleet = FleetClient(bus, user=GATEWAY)
    assistants = assistant_endpoint(fleet, clock)
    routes = [*inbound(settings, fleet, clock)]
    routes += [assistants.route()] if assistants is not None else []
    beside = [assistants.run] if assistants is not None else []
    if (push := metric_push(otlp_endpoint, GATEWAY, replica, registry, clock)) is not None:
        beside.append(push.run)
    addresses = {}
    if probing is not None:
        probes = HttpEndpoint(probing, registry, Readiness(bus).problem)
        addresses["probes"] = probes.url
        beside.append(probes.run)
    app = http_app(bus, fleet, access, streams, clock, registry, routes)
    server = WebServer(
        app,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS_MAX,
        **tls_options(settings),
    )
    host, port = listening.getsockname()[:2]
    scheme = "https" if settings.tls_cert_file else "http"
    addresses["http"] = f"{scheme}://{host}:{port}"
    log.info("ready", extra=addresses)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    relaying = asyncio.create_task(relay.run())
    others = {asyncio.create_task(each()) for each in beside}
    await race(asyncio.shield(serving), asyncio.shield(relaying), stopping.wait())
    if relaying.done():
        # It never ends by itself; the end of the process lets its supervisor restart it.
        relaying.result()
    log.info("stopping")
    relaying.cancel()
    relay.close()
    server.should_exit = True
    await serving
    for each in others:
        each.cancel()
    if others:
        await asyncio.wait(others)


def inbound(settings: GatewaySettings, fleet: FleetClient, clock: Clock) -> list[Any]:
    """Return the configured routes by which PagerDuty and Slack answer alerts."""

    def new_id() -> str:
        return f"inbound-{secrets.token_hex(ID_BYTES)}"

    rate = CallerRate(settings.requests_per_minute)
    orders = InboundOrders(fleet, rate, clock.now, new_id)
    return list(inbound_routes(settings.inbound, orders, clock.now))


def assistant_endpoint(fleet: FleetClient, clock: Clock) -> "AssistantEndpoint | None":
    """The tools of assistants; None where the protocol's package is not installed."""
    if find_spec("mcp") is None:
        return None
    from services.gateway.assistant_endpoint import AssistantEndpoint  # noqa: PLC0415

    def new_id() -> str:
        return f"mcp-{secrets.token_hex(ID_BYTES)}"

    return AssistantEndpoint(fleet, clock.now, new_id, os.urandom(KEY_BYTES))
