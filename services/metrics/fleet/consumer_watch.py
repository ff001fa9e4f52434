"""Checks every durable of the topology: how many messages wait, how long, and whether it lags.

It reads the server and not the consumers, so that a dead consumer is found too. One replica
checks, under a lease: one request per durable every ten seconds, and one more for the age of the
oldest message if any waits. A replica that takes the lease over reads from EVENTS what lags.
"""

import logging
from datetime import datetime
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from schemas import subjects
from schemas.fleet_events import FACTS, ConsumerLag, fleet_codec
from schemas.lag_settings import LagSettings
from schemas.metric_catalogue import CONSUMER_IN_WORK, CONSUMER_OLDEST, CONSUMER_PENDING
from schemas.stream_specs import DurableSpec
from schemas.topology import DURABLES, EVENTS
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.metrics.fleet.consumer_lag import ConsumerBacklog, update_lagging
from services.primitives.clock import Clock
from services.primitives.errors import Refused
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

LEASE: Final = "metrics.lag"
MESSAGE_NOT_FOUND: Final = 10037
LEASE_POLL_SECONDS: Final = 1.0


class ConsumerWatch:
    """Checks the fleet's durables while it holds the lease."""

    def __init__(
        self, bus: Bus, clock: Clock, lease: Lease, bounds: LagSettings, registry: CollectorRegistry
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._lease = lease
        self._bounds = bounds
        self._pending = Gauge(
            *CONSUMER_PENDING.declared,
            registry=registry,
        )
        self._in_work = Gauge(
            *CONSUMER_IN_WORK.declared,
            registry=registry,
        )
        self._oldest = Gauge(
            *CONSUMER_OLDEST.declared,
            registry=registry,
        )
        self._lagging: frozenset[str] | None = None
        """None: unknown, because this replica has not checked yet."""

    async def run(self) -> None:
        """Check at every interval while this replica holds the lease."""
        await repeat_while_held(
            self._lease,
            self._clock,
            self.check,
            every_seconds=float(self._bounds.interval),
            look_seconds=LEASE_POLL_SECONDS,
            on_lost=self._forget,
        )

    async def check(self) -> None:
        """Check every durable once."""
        if self._lagging is None:
            self._lagging = await self._published_lag()
        states = [state for each in DURABLES if (state := await self._state(each)) is not None]
        lagging, events = update_lagging(self._lagging, states, self._bounds, self._clock.now())
        for event in events:
            log.warning("%s: %s", event.status, event.reason, extra={"durable": event.durable})
            await publish_event(self._bus, event)
        self._lagging = lagging

    def _forget(self) -> None:
        """Drop this replica's values: another replica holds the lease and checks."""
        if self._lagging is None:
            return
        self._lagging = None
        for gauge in (self._pending, self._in_work, self._oldest):
            gauge.clear()

    async def _published_lag(self) -> frozenset[str]:
        """The durables that lag according to the last event about each."""
        status: dict[str, str] = {}
        for stored in await self._bus.read(EVENTS.name, subjects.fleet_event(FACTS[ConsumerLag])):
            event = fleet_codec.decode(stored.data)
            if isinstance(event, ConsumerLag):
                status[event.durable] = event.status
        return frozenset(name for name, each in status.items() if each == "lagging")

    async def _state(self, durable: DurableSpec) -> ConsumerBacklog | None:
        """Read one durable from the server; None if it does not exist yet."""
        try:
            info = await self._bus.admin(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
        except Refused as error:
            log.info("no such durable: %s", error)
            return None
        delivered, pending = int(info["delivered"]["stream_seq"]), int(info["num_pending"])
        seconds = await self._oldest_seconds(durable, delivered) if pending else 0.0
        labels = (durable.stream, durable.name)
        self._pending.labels(*labels).set(pending)
        self._in_work.labels(*labels).set(int(info["num_ack_pending"]))
        self._oldest.labels(*labels).set(seconds)
        return ConsumerBacklog(
            stream=durable.stream,
            durable=durable.name,
            messages=pending,
            seconds=seconds,
            sequence=delivered,
        )

    async def _oldest_seconds(self, durable: DurableSpec, delivered: int) -> float:
        """How long the first message after `delivered` has waited."""
        stored: list[datetime] = []
        for each in durable.filters:
            try:
                found = await self._bus.admin(
                    f"STREAM.MSG.GET.{durable.stream}", {"seq": delivered + 1, "next_by_subj": each}
                )
            except Refused as error:
                if error.code != MESSAGE_NOT_FOUND:
                    raise
                continue
            stored.append(msgspec.convert(found["message"]["time"], datetime))
        now = self._clock.now()
        return max(((now - each).total_seconds() for each in stored), default=0.0)
