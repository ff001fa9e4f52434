"""All event sinks of the configuration: their durables, who delivers, and labels of events."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from schemas.messages import LimitedDecoder
from schemas.node_records import node_key
from schemas.pool_records import pool_key
from schemas.settings import Settings
from schemas.topology import EVENTS, NODES, POOLS, SINK_PREFIX, sink_durable
from services.bus.bucket_mirror import readable_record
from services.bus.leases import Lease, while_held
from services.bus.port import Bus
from services.bus.topology_setup import set_up_durable, set_up_from_now
from services.notifier.event_sinks.event_filter import filters_of
from services.notifier.event_sinks.sink_delivery import (
    EventSink,
    HttpTarget,
    SinkDelivery,
    SinkMeters,
    SinkReport,
    SubjectTarget,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError, NavarchError
from services.primitives.race import race
from services.runtime.durable_watch import DurableWatch
from services.runtime.failure_register import FailureRegister

log = logging.getLogger(__name__)

OBSERVE_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 5.0
"""Before a sink that could not be set up, or whose delivery failed, is tried again."""
REMOVE_SECONDS: Final = 600.0
"""How long a replica delivers before it removes the durables of sinks that it does not know: in a
rolling restart that may be one whose configuration is older."""
PAGES_MAX: Final = 64


class _Labelled(msgspec.Struct, frozen=True):
    """The part of a node's launch, or of a pool's settings, that is read."""

    labels: dict[str, str] = {}


class _Node(msgspec.Struct, frozen=True):
    launch: _Labelled | None = None


class _Pool(msgspec.Struct, frozen=True):
    spec: _Labelled | None = None


_nodes: Final = LimitedDecoder(_Node)
_pools: Final = LimitedDecoder(_Pool)


async def read_labels(bus: Bus, pool: str, node: str) -> Mapping[str, str]:
    """The labels of a node of a pool; without a node, or where it has no record, of the pool."""
    if node:
        found = readable_record(await bus.get(NODES, node_key(pool, node)), _nodes)
        if found is not None and found.launch is not None:
            return found.launch.labels
    record = readable_record(await bus.get(POOLS, pool_key(pool)), _pools)
    return record.spec.labels if record is not None and record.spec is not None else {}


def configured_sinks(settings: Settings, bus: Bus, clock: Clock) -> list[EventSink]:
    """The sinks that the configuration names."""
    return [
        EventSink(
            name=name,
            spec=spec,
            durable=sink_durable(name, filters_of(spec)),
            target=HttpTarget(spec, clock) if spec.type == "http" else SubjectTarget(name, bus),
        )
        for name, spec in settings.event_sinks.items()
    ]


class EventSinks:
    """Delivers to all of them while this replica holds the lease."""

    def __init__(
        self,
        sinks: list[EventSink],
        settings: Settings,
        bus: Bus,
        clock: Clock,
        lease: Lease,
        failures: FailureRegister,
        meters: SinkMeters,
    ) -> None:
        self._sinks = sinks
        self._fleet = settings.fleet
        self._replicas = settings.nats.replicas
        self._bus = bus
        self._clock = clock
        self._lease = lease
        self._failures = failures
        self._meters = meters

    async def prepare(self) -> None:
        """Create the durables of new sinks: events that are stored from now on are theirs."""
        for each in self._sinks:
            try:
                await self._set_up(each)
            except NavarchError as error:
                # The replica that delivers tries it again, and reports it.
                log.warning("event sink %s: %s", each.name, error)

    async def run(self) -> None:
        """Contend for the lease and deliver while it is held, for ever."""
        await while_held(self._lease, self._clock, self._deliver_for_ever)

    async def close(self) -> None:
        """Close all connections."""
        for each in self._sinks:
            await each.target.close()

    async def _deliver_for_ever(self) -> None:
        work = [self._remove_others(), *(self._serve_for_ever(each) for each in self._sinks)]
        for each in await race(*work):
            if not each.cancelled():
                each.result()

    async def _serve_for_ever(self, sink: EventSink) -> None:
        report = SinkReport(sink.name, self._failures, self._meters)
        try:
            while True:
                try:
                    await self._serve(sink, report)
                except Exception as error:
                    defect = not isinstance(error, NavarchError)
                    log.warning("event sink %s: %s", sink.name, error, exc_info=defect)
                    report.fails(str(error) or type(error).__name__, self._clock.monotonic())
                    report.publish(self._clock.now(), self._clock.monotonic(), 0)
                await self._clock.sleep(AGAIN_SECONDS)
        finally:
            report.end()

    async def _serve(self, sink: EventSink, report: SinkReport) -> None:
        await self._set_up(sink)
        report.works()
        labels = partial(read_labels, self._bus)
        delivery = SinkDelivery(sink, self._fleet, self._bus, self._clock, labels, report)
        watch = DurableWatch(self._bus, self._clock, sink.durable, self._failures, self._replicas)
        for each in await race(delivery.run(), watch.run(), self._observe(sink, report)):
            if not each.cancelled():
                each.result()

    async def _set_up(self, sink: EventSink) -> None:
        make = set_up_durable if sink.spec.begin == "all" else set_up_from_now
        await make(self._bus, sink.durable, self._replicas)

    async def _observe(self, sink: EventSink, report: SinkReport) -> None:
        """Look at how far the sink has come, for ever."""
        call = f"CONSUMER.INFO.{sink.durable.stream}.{sink.durable.name}"
        waiting = 0
        while True:
            try:
                info = await self._bus.admin(call, {})
                waiting = int(info["num_pending"]) + int(info["num_ack_pending"])
            except BusError as error:
                log.info("event sink %s is not looked at: %s", sink.name, error)
            report.publish(self._clock.now(), self._clock.monotonic(), waiting)
            await self._clock.sleep(OBSERVE_SECONDS)

    async def _remove_others(self) -> None:
        """Remove the durables of sinks that the configuration no longer has."""
        while True:
            await self._clock.sleep(REMOVE_SECONDS)
            try:
                await self._remove()
            except BusError as error:
                log.info("durables of event sinks are not looked at: %s", error)

    async def _remove(self) -> None:
        known = {each.durable.name for each in self._sinks}
        for name in await self._durables():
            if name.startswith(SINK_PREFIX) and name not in known:
                await self._bus.admin(f"CONSUMER.DELETE.{EVENTS.name}.{name}", {})
                log.info("removed the position of an event sink", extra={"durable": name})

    async def _durables(self) -> list[str]:
        """The consumers of EVENTS, page by page."""
        found: list[str] = []
        for _ in range(PAGES_MAX):
            page = await self._bus.admin(f"CONSUMER.NAMES.{EVENTS.name}", {"offset": len(found)})
            found += page.get("consumers") or []
            if len(found) >= int(page["total"]) or not page.get("consumers"):
                break
        return found
