"""Receives CloudEvents over HTTP, and runs one replica's sinks on a real or a memory bus."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from schemas.event_sink_settings import EventSinkSpec
from schemas.event_subjects import Event, event_subject
from schemas.messages import encode
from schemas.node_events import Verdict
from schemas.settings import Settings
from services.bus.leases import Lease
from services.bus.port import Bus
from services.notifier.event_sinks.event_sinks import EventSinks, configured_sinks
from services.notifier.event_sinks.sink_delivery import EventSink, SinkMeters
from services.primitives.clock import Clock, SystemClock
from services.runtime.failure_register import FailureRegister
from tests.support.serving import serving

BATCHED = "application/cloudevents-batch+json"
Answer = Callable[[list[BaseCloudEvent]], int]


class FastClock(SystemClock):
    """A clock that runs many times faster: hours pass in seconds."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._began = super().monotonic()
        self._at = datetime.now(UTC)

    def monotonic(self) -> float:
        return (super().monotonic() - self._began) * self._times

    def now(self) -> datetime:
        return self._at + timedelta(seconds=self.monotonic())

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._times)


@dataclass(slots=True)
class EventReceiver:
    """Takes events as the SDK of CloudEvents reads them; what it cannot read it refuses."""

    url: str = ""
    down: bool = False
    answer: Answer = lambda _: 202
    tries: int = 0
    requests: list[list[BaseCloudEvent]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def ids(self) -> list[str]:
        """The IDs of all events that were taken, repetitions too."""
        return [str(each.get_id()) for request in self.requests for each in request]

    async def take(self, request: Request) -> Response:
        self.tries += 1
        async with self.changed:
            self.changed.notify_all()
        if self.down:
            return PlainTextResponse("down", status_code=503)
        body, headers = await request.body(), dict(request.headers)
        try:
            events = read_request(headers, body)
        except Exception as error:  # noqa: BLE001 - whatever the SDK raises
            return PlainTextResponse(f"no CloudEvent: {error}", status_code=400)
        code = self.answer(events)
        if code < 300:
            self.requests.append(events)
            self.headers.append(headers)
            self.bodies.append(body)
        async with self.changed:
            self.changed.notify_all()
        return PlainTextResponse("", status_code=code)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for what requests bring about."""
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)


def read_request(headers: dict[str, str], body: bytes) -> list[BaseCloudEvent]:
    """The events of one request, in whichever mode."""
    if headers["content-type"] == BATCHED:
        parts = [json.dumps(each).encode() for each in json.loads(body)]
        typed = {"content-type": "application/cloudevents+json"}
        return [from_http(HTTPMessage(typed, each), JSONFormat()) for each in parts]
    return [from_http(HTTPMessage(headers, body), JSONFormat())]


@asynccontextmanager
async def event_receiver() -> AsyncIterator[EventReceiver]:
    receiver = EventReceiver()
    app = Starlette(routes=[Route("/events", receiver.take, methods=["POST"])])
    async with serving(app) as base:
        receiver.url = f"{base}/events"
        yield receiver


@dataclass(slots=True)
class SinkReplica:
    """Runs the sinks of one replica."""

    bus: Bus
    clock: Clock
    settings: Settings
    name: str
    lease_clock: Clock = field(default_factory=SystemClock)
    """The server counts by it."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    failures: FailureRegister = field(init=False)
    _sinks: EventSinks = field(init=False)
    _running: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.failures = FailureRegister(self.registry)

    def start(self, sinks: Sequence[EventSink] | None = None) -> None:
        """Contend for the lease and deliver; `sinks`: in place of those of the configuration."""
        made = configured_sinks(self.settings, self.bus, self.clock) if sinks is None else sinks
        lease = Lease(self.bus, self.lease_clock, "notifier.leader", self.name)
        self._sinks = EventSinks(
            list(made),
            self.settings,
            self.bus,
            self.clock,
            lease,
            self.failures,
            SinkMeters(self.registry),
        )
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._sinks.prepare()
        await self._sinks.run()

    async def stop(self) -> None:
        """End in order."""
        self._running.cancel()
        await asyncio.wait([self._running])
        await self._sinks.close()

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value; 0 where there is none."""
        return self.registry.get_sample_value(name, labels) or 0.0


@asynccontextmanager
async def delivering(
    bus: Bus, clock: Clock | None = None, name: str = "r1", **sinks: EventSinkSpec
) -> AsyncIterator[SinkReplica]:
    """A replica with these sinks, ended in order."""
    settings = Settings(fleet="tests", event_sinks=sinks)
    replica = SinkReplica(bus, clock or FastClock(20), settings, name)
    replica.start()
    try:
        yield replica
    finally:
        await replica.stop()


def verdict(number: int, node: str = "n1", pool: str = "training", **more: Any) -> Verdict:
    known = {"time": datetime(2026, 11, 25, 3, 4, 5, 678000, tzinfo=UTC), "status": "healthy"}
    return Verdict(id=f"verdict-{node}-{number}", pool=pool, node=node, **(known | more))


async def publish(bus: Bus, *events: Event) -> None:
    """Store events, as their services do."""
    for each in events:
        await bus.publish(event_subject(each), encode(each), msg_id=each.id)


def http(url: str, **more: Any) -> EventSinkSpec:
    """A sink's settings, as a file has them."""
    return msgspec.convert({"type": "http", "url": url} | more, EventSinkSpec)
