"""Delivers one sink's events to a URL or a subject: in order, at least once, from its durable.

One replica delivers, under the notifier's lease. It acknowledges what was delivered, refused or not
asked for, so the durable's position on the bus is the sink's. What a killed replica held is
delivered again first, before anything newer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NoReturn

from prometheus_client import CollectorRegistry, Counter, Gauge

from schemas import subjects
from schemas.event_sink_settings import EventSinkSpec
from schemas.fleet_queries import CurrentFailure
from schemas.metric_catalogue import SINK_EVENTS, SINK_OLDEST, SINK_PENDING
from schemas.stream_specs import DurableSpec
from services.bus.port import Bus, Delivery, Stored
from services.notifier.cloud_events import (
    BATCH,
    STRUCTURED,
    CloudEvent,
    batch,
    binary_headers,
    signature_headers,
    structured,
)
from services.notifier.event_sinks.event_filter import SinkEvent, has_labels, sink_event, wants
from services.primitives.clock import Clock
from services.primitives.errors import BusError, TooLarge
from services.primitives.race import race
from services.primitives.redaction import redacted
from services.runtime.failure_register import FailureRegister
from services.runtime.http_caller import HttpCaller, RefusedHttpError

Outcome = Literal["delivered", "filtered", "refused", "expired", "too-large", "invalid"]

FAILING_SECONDS: Final = 60.0
"""A receiver that has failed for so long is reported."""
BEHIND: Final = timedelta(minutes=10)
"""A sink whose oldest event has waited for so long is reported."""
SHOWN: Final = timedelta(hours=1)
"""How long an event that was skipped is reported: nothing that happens later undoes it."""
ANSWER_BYTES_MAX: Final = 65_536
SINK_CODES: Final = frozenset({401, 402, 403, 404, 405, 407, 410, 421})
"""These are about the URL or the credentials, and so about every event: they are tried again."""
CLIENT_ERRORS: Final = range(400, 500)
log = logging.getLogger(__name__)

BACKOFF_FIRST_SECONDS: Final = 1.0
BACKOFF_MAX_SECONDS: Final = 60.0
"""A receiver that returns is sent what it lacks within this time."""
DOUBLINGS_MAX: Final = 10
SETTLE_MARGIN_SECONDS: Final = 1.0
SETTLED_MAX: Final = 4_096
"""Events of which it is remembered that they were delivered, should an acknowledgement be lost."""
SEND_SECONDS_MAX: Final = 90.0
"""Longer than any request may take."""

ReadLabels = Callable[[str, str], Awaitable[Mapping[str, str]]]
"""The labels of a pool's node; without a node, of the pool."""
Place = tuple[datetime, int]
"""When an event was stored, and its sequence: the stream may have been created again."""


class SinkMeters:
    """Holds the metrics of all sinks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(*SINK_EVENTS.declared, registry=registry)
        self.pending = Gauge(*SINK_PENDING.declared, registry=registry)
        self.oldest = Gauge(*SINK_OLDEST.declared, registry=registry)


class SinkReport:
    """Reports the delivery of one sink."""

    def __init__(self, name: str, failures: FailureRegister, meters: SinkMeters) -> None:
        self._name = name
        self._about = f"event sink {name}"
        self._failures = failures
        self._meters = meters
        self._failing_since: float | None = None
        self._error = ""
        self._skipped = 0
        self._skipped_at: datetime | None = None
        self._last_skip = ""
        self.oldest: datetime | None = None
        """When the oldest event that waits was stored; None: none does."""

    def count(self, outcome: Outcome) -> None:
        """Count an event that needs no more."""
        self._meters.events.labels(self._name, outcome).inc()

    def works(self) -> None:
        """Take note that the receiver answers."""
        self._failing_since = None

    def fails(self, error: str, at: float) -> None:
        """Take note that nothing can be delivered."""
        self._error = error
        if self._failing_since is None:
            self._failing_since = at

    def skip(self, event: str, reason: str, now: datetime) -> None:
        """Take note of an event that is never delivered."""
        self._skipped += 1
        self._skipped_at, self._last_skip = now, f"{event}: {reason}"

    def publish(self, now: datetime, at: float, pending: int) -> None:
        """Set the metrics, and report what fails; `pending`: events that wait."""
        self._meters.pending.labels(self._name).set(pending)
        waited = now - self.oldest if self.oldest else timedelta(0)
        self._meters.oldest.labels(self._name).set(max(waited.total_seconds(), 0.0))
        if self._skipped_at is not None and now - self._skipped_at >= SHOWN:
            self._skipped, self._skipped_at = 0, None
        found = [self._undelivered(at, waited), self._refused()]
        self._failures.update(self._about, [each for each in found if each is not None])

    def end(self) -> None:
        """Report nothing more: another replica delivers."""
        self._failures.update(self._about, ())
        for gauge in (self._meters.pending, self._meters.oldest):
            gauge.remove(self._name)

    def _undelivered(self, at: float, waited: timedelta) -> CurrentFailure | None:
        if self._failing_since is not None and at - self._failing_since >= FAILING_SECONDS:
            reason = f"events are not delivered: {self._error}"
            remedy = (
                "check its entry under `event_sinks` and its receiver; what waits is delivered in "
                "order once it works, unless it is older than `max_age` by then"
            )
        elif waited >= BEHIND:
            reason = "it is behind: the oldest event has waited for more than 10 minutes"
            remedy = (
                "see navarch_sink_pending_events; `mode: batch` delivers more in the same time, "
                "and `events` and `pools` deliver less"
            )
        else:
            return None
        return CurrentFailure(
            failure="sink-undelivered", about=self._about, reason=reason, remedy=remedy
        )

    def _refused(self) -> CurrentFailure | None:
        if self._skipped_at is None:
            return None
        return CurrentFailure(
            failure="sink-refused",
            about=self._about,
            reason=f"{self._skipped} events were skipped, the last of them {self._last_skip}",
            remedy=(
                "correct the receiver, or leave such events out with `events`; they are not sent "
                "again, and `navarch events` has them"
            ),
        )


class EventRefusalError(Exception):
    """The receiver refuses the content of an event for good."""


class HttpTarget:
    """Posts events to a URL."""

    def __init__(self, spec: EventSinkSpec, clock: Clock) -> None:
        self._spec = spec
        self._http = HttpCaller(
            clock,
            timeout_seconds=spec.timeout,
            headers=spec.headers,
            answer_bytes_max=ANSWER_BYTES_MAX,
            sign=lambda request: signature_headers(spec.secret, clock.now(), request.content),
        )

    @property
    def events_max(self) -> int:
        """Return how many events one request has: one, but for batches."""
        return self._spec.batch.events if self._spec.mode == "batch" else 1

    @property
    def bytes_max(self) -> int:
        """Return the configured limit of a request's bytes."""
        return self._spec.batch.bytes

    async def send(self, events: Sequence[CloudEvent]) -> None:
        """Post a request once."""
        match self._spec.mode:
            case "batch":
                parts: dict[str, Any] = {"content": batch(events), "headers": _typed(BATCH)}
            case "binary":
                (event,) = events
                parts = {"content": bytes(event.data), "headers": binary_headers(event)}
            case _:
                (event,) = events
                parts = {"content": structured(event), "headers": _typed(STRUCTURED)}
        request = self._http.request("POST", self._spec.url, **parts)
        try:
            await self._http.send(request, "url")
        except RefusedHttpError as error:
            _raise_refused(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()


class SubjectTarget:
    """A subject of the bus, stored in SINKS."""

    events_max = 1
    bytes_max = 0

    def __init__(self, name: str, bus: Bus) -> None:
        self._subject = subjects.sink(name)
        self._bus = bus

    async def send(self, events: Sequence[CloudEvent]) -> None:
        """Store them; what was stored in the last ten minutes is not stored again."""
        for each in events:
            msg_id = f"{self._subject} {each.sequence} {each.id}"
            try:
                await self._bus.publish(
                    self._subject, structured(each), msg_id=msg_id, headers=_typed(STRUCTURED)
                )
            except TooLarge as error:
                raise EventRefusalError(str(error)) from error

    async def close(self) -> None:
        """Nothing is open."""


SinkTarget = HttpTarget | SubjectTarget
"""`send` raises EventRefusalError for what cannot be delivered, ever; all else is sent again."""


def _typed(content_type: str) -> dict[str, str]:
    return {"Content-Type": content_type}


def _raise_refused(error: RefusedHttpError) -> NoReturn:
    code = error.answer.status_code
    if code in CLIENT_ERRORS and code not in SINK_CODES:
        raise EventRefusalError(str(error)) from error
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSink:
    """A sink as it is configured."""

    name: str
    spec: EventSinkSpec
    durable: DurableSpec
    target: SinkTarget


@dataclass(slots=True)
class _Held:
    """An event that was received and is not settled."""

    stored: Stored
    deliveries: list[Delivery] = field(default_factory=list)
    """More than one where the server delivered it again meanwhile."""


class SinkDelivery:
    """Delivers what one sink lacks, for as long as it runs."""

    def __init__(
        self,
        sink: EventSink,
        fleet: str,
        bus: Bus,
        clock: Clock,
        read_labels: ReadLabels,
        report: SinkReport,
    ) -> None:
        self._sink = sink
        self._fleet = fleet
        self._bus = bus
        self._clock = clock
        self._read_labels = read_labels
        self._report = report
        self._held: dict[Place, _Held] = {}
        self._arrived = asyncio.Event()
        self._settled: dict[Place, None] = {}
        self._failures = 0

    async def run(self) -> None:
        """Deliver until cancelled; then hand back what was not."""
        # Until then what another replica held when it ended is not up for delivery.
        await self._clock.sleep(self._sink.durable.ack_wait_seconds + SETTLE_MARGIN_SECONDS)
        try:
            for each in await race(self._receive(), self._keep_alive(), self._deliver_for_ever()):
                if not each.cancelled():
                    each.result()
        finally:
            for held in self._held.values():
                for delivery in held.deliveries:
                    with suppress(BusError):
                        await delivery.nak(0)
            self._held.clear()

    async def _receive(self) -> None:
        async for delivery in self._bus.consume(self._sink.durable):
            place = (delivery.stored.time, delivery.stored.sequence)
            if place in self._settled:
                await delivery.ack()
                continue
            self._held.setdefault(place, _Held(delivery.stored)).deliveries.append(delivery)
            self._report.oldest = min(self._held)[0]
            self._arrived.set()

    async def _keep_alive(self) -> None:
        while True:
            await self._clock.sleep(self._sink.durable.ack_wait_seconds / 3)
            for held in list(self._held.values()):
                for delivery in held.deliveries:
                    await delivery.progress()

    async def _deliver_for_ever(self) -> None:
        while True:
            self._arrived.clear()
            try:
                await self._deliver()
            except BusError as error:
                log.info("event sink waits for the bus: %s", error)
                await self._clock.sleep(BACKOFF_FIRST_SECONDS)
            if not self._held:
                await self._arrived.wait()

    async def _deliver(self) -> None:
        """Deliver the oldest of what is held, in one call."""
        chosen: dict[Place, CloudEvent] = {}
        size = 0
        for place in sorted(self._held):
            event, outcome = await self._read(self._held[place].stored)
            if event is None:
                await self._settle(place, outcome)
                continue
            size += len(event.cloud.data)
            if chosen and size > self._sink.target.bytes_max:
                break
            chosen[place] = event.cloud
            if len(chosen) >= self._sink.target.events_max:
                break
        if chosen:
            await self._send(chosen)

    async def _read(self, stored: Stored) -> tuple[SinkEvent | None, Outcome]:
        """The event, or why the sink is not sent it."""
        spec, event = self._sink.spec, sink_event(stored, self._fleet)
        if event is None:
            return None, "invalid"
        if not wants(spec, event):
            return None, "filtered"
        if spec.labels and not has_labels(spec, await self._read_labels(event.pool, event.node)):
            return None, "filtered"
        if (self._clock.now() - stored.time).total_seconds() > spec.max_age:
            return self._skipped(event, "expired", "it was stored longer ago than `max_age`")
        if len(stored.data) > spec.max_bytes:
            return self._skipped(event, "too-large", f"it has {len(stored.data):,} bytes")
        return event, "delivered"

    def _skipped(self, event: SinkEvent, outcome: Outcome, reason: str) -> tuple[None, Outcome]:
        self._report.skip(f"{event.cloud.type} {event.cloud.id}", reason, self._clock.now())
        return None, outcome

    async def _send(self, chosen: dict[Place, CloudEvent]) -> None:
        """Send in one call; where it is refused, each event alone, in the same order."""
        try:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await self._sink.target.send(list(chosen.values()))
        except EventRefusalError as error:
            if len(chosen) > 1:
                for place, event in chosen.items():
                    await self._send({place: event})
                    if place in self._held:
                        return  # the receiver is down now: the others come after it
                return
            (event,) = chosen.values()
            self._report.skip(f"{event.type} {event.id}", redacted(str(error)), self._clock.now())
            outcome: Outcome = "refused"
        except Exception as error:  # noqa: BLE001 - whatever it is, the events are sent again
            await self._wait(error)
            return
        else:
            outcome = "delivered"
        self._failures = 0
        self._report.works()
        for place in chosen:
            await self._settle(place, outcome)

    async def _wait(self, error: Exception) -> None:
        """Leave a receiver that is down alone for a while, longer each time."""
        self._failures += 1
        text = redacted(str(error)) or type(error).__name__
        if self._failures == 1:
            log.warning("event sink %s cannot be sent events: %s", self._sink.name, text)
        self._report.fails(text, self._clock.monotonic())
        asked = float(getattr(error, "after_seconds", 0.0))
        doublings = min(self._failures - 1, DOUBLINGS_MAX)
        backoff = min(BACKOFF_FIRST_SECONDS * 2.0**doublings, BACKOFF_MAX_SECONDS)
        await self._clock.sleep(max(asked, backoff))

    async def _settle(self, place: Place, outcome: Outcome) -> None:
        """Take note that an event needs no more, and acknowledge it."""
        self._settled[place] = None
        if len(self._settled) > SETTLED_MAX:
            del self._settled[next(iter(self._settled))]
        for delivery in self._held.pop(place).deliveries:
            await delivery.ack()
        self._report.count(outcome)
        self._report.oldest = min(self._held)[0] if self._held else None
        if not self._held:
            self._report.works()  # nothing is undelivered
