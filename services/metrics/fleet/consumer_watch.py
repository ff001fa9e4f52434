"""Looks at every durable of the topology: how much waits, for how long, and tells of what lags.

The server is asked, and not the consumers, because the one that matters most is the one that is
dead. One replica looks, under a lease: one small question a durable every ten seconds, and another
for the age of the oldest message where any waits. What is told stands in EVENTS, from where whoever
takes the lease over learns what lags already.
"""

import logging
from datetime import datetime
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, Gauge

from schemas import subjects
from schemas.fleet_events import FACTS, ConsumerLag, fleet_codec
from schemas.settings import LagSettings
from schemas.topology import DURABLES, EVENTS, DurableSpec
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.metrics.fleet.consumer_lag import Look, decide
from services.primitives.clock import Clock
from services.primitives.errors import Refused
from services.runtime.event_publisher import publish_event

log = logging.getLogger(__name__)

LEASE: Final = "metrics-lag"
MESSAGE_NOT_FOUND: Final = 10037
LOOK_SECONDS: Final = 1.0
"""Between two looks at the lease."""


class Consumers:
    """Watches the fleet's durables while it holds the lease."""

    def __init__(
        self, bus: Bus, clock: Clock, lease: Lease, bounds: LagSettings, registry: CollectorRegistry
    ) -> None:
        """Tell of what is beyond `bounds`."""
        self._bus = bus
        self._clock = clock
        self._lease = lease
        self._bounds = bounds
        labels = ["stream", "durable"]
        self._pending = Gauge(
            "navarch_consumer_pending",
            "Messages that no replica of the durable's service has taken yet",
            labels,
            registry=registry,
        )
        self._in_work = Gauge(
            "navarch_consumer_in_work",
            "Messages taken and not yet settled",
            labels,
            registry=registry,
        )
        self._oldest = Gauge(
            "navarch_consumer_oldest_seconds",
            "How long the oldest message has waited that no replica has taken yet",
            labels,
            registry=registry,
        )
        self._lagging: frozenset[str] | None = None
        """None: not known yet, as this replica has not looked before."""

    async def run(self) -> None:
        """Look whenever it is due and the lease is ours, for ever."""
        await repeat_while_held(
            self._lease,
            self._clock,
            self.look,
            every_seconds=float(self._bounds.interval),
            look_seconds=LOOK_SECONDS,
            on_lost=self._forget,
        )

    async def look(self) -> None:
        """Look once at every durable."""
        if self._lagging is None:
            self._lagging = await self._told()
        looks = [look for each in DURABLES if (look := await self._of(each)) is not None]
        lagging, events = decide(self._lagging, looks, self._bounds, self._clock.now())
        for event in events:
            log.warning("%s: %s", event.status, event.reason, extra={"durable": event.durable})
            await publish_event(self._bus, event)
        self._lagging = lagging

    def _forget(self) -> None:
        """Another replica looks: what this one saw would only grow old."""
        if self._lagging is None:
            return
        self._lagging = None
        for gauge in (self._pending, self._in_work, self._oldest):
            gauge.clear()

    async def _told(self) -> frozenset[str]:
        """What lags by what was told last."""
        status: dict[str, str] = {}
        for stored in await self._bus.read(EVENTS.name, subjects.fleet_event(FACTS[ConsumerLag])):
            event = fleet_codec.decode(stored.data)
            if isinstance(event, ConsumerLag):
                status[event.durable] = event.status
        return frozenset(name for name, each in status.items() if each == "lagging")

    async def _of(self, durable: DurableSpec) -> Look | None:
        """Ask for one durable; None where there is none yet."""
        try:
            info = await self._bus.admin(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
        except Refused as error:
            log.info("no such durable: %s", error)
            return None
        taken, pending = int(info["delivered"]["stream_seq"]), int(info["num_pending"])
        seconds = await self._waited(durable, taken) if pending else 0.0
        labels = (durable.stream, durable.name)
        self._pending.labels(*labels).set(pending)
        self._in_work.labels(*labels).set(int(info["num_ack_pending"]))
        self._oldest.labels(*labels).set(seconds)
        return Look(
            stream=durable.stream,
            durable=durable.name,
            messages=pending,
            seconds=seconds,
            sequence=taken,
        )

    async def _waited(self, durable: DurableSpec, taken: int) -> float:
        """How long the first message after `taken` has waited."""
        stored: list[datetime] = []
        for each in durable.filters:
            try:
                found = await self._bus.admin(
                    f"STREAM.MSG.GET.{durable.stream}", {"seq": taken + 1, "next_by_subj": each}
                )
            except Refused as error:
                if error.code != MESSAGE_NOT_FOUND:
                    raise
                continue
            stored.append(msgspec.convert(found["message"]["time"], datetime))
        now = self._clock.now()
        return max(((now - each).total_seconds() for each in stored), default=0.0)
