"""Metrics: telemetry, records and facts of the fleet as Prometheus series under `/metrics`.

Every replica follows all telemetry and both buckets, so each shows the same gauges: scrape one, or
take `max by`. Facts come through one durable that the replicas share, so each counts a part, and
the sum over replicas is the whole: `sum without (instance) (navarch_xid_errors_total)`. A counter
begins at zero with its process, which `rate` and `increase` know how to read. What repairs have
cost is counted durably (`totals`), and evidence of sick nodes is kept (`collecting`). It decides
nothing about nodes.
"""

import logging
from typing import Any, Final

import msgspec
from prometheus_client import Counter

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.messages import Codec, LimitedDecoder, Message
from schemas.node_events import NODE_EVENT_TYPES, Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import POOL_EVENT_TYPES
from schemas.topology import HEALTH, METRICS_EVENTS, NODES, TELEMETRY
from services.bus.bucket_mirror import BucketView
from services.bus.leases import Lease
from services.bus.port import Bus, Stored
from services.metrics.evidence.evidence_collector import Collector
from services.metrics.evidence.repair_totals import Totals
from services.metrics.fleet.consumer_watch import LEASE, Consumers
from services.metrics.fleet.fleet_metrics import Latest, increments
from services.metrics.fleet.prometheus_collector import Fleet
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.process import Context, Service

log = logging.getLogger(__name__)

_events: Final = Codec((*NODE_EVENT_TYPES, *POOL_EVENT_TYPES))
_telemetry: Final = LimitedDecoder(Telemetry)


class Samples:
    """Keeps each node's newest sample."""

    def __init__(self, bus: Bus, fleet: Fleet, invalid: Counter) -> None:
        """Follow telemetry into `fleet`, counting what cannot be read."""
        self._bus = bus
        self._fleet = fleet
        self._invalid = invalid

    async def run(self) -> None:
        """Follow for ever."""
        async for stored in self._bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "new"):
            self.take(stored)

    def take(self, stored: Stored) -> None:
        """Keep one sample; the subject says whose it is, as only the node may write there."""
        parsed = subjects.parse_node(stored.subject)
        try:
            sample = _telemetry.decode(stored.data)
        except msgspec.DecodeError as error:
            self._invalid.inc()
            log.debug("unreadable", extra={"subject": stored.subject, "error": str(error)})
            return
        if parsed is not None:
            self._fleet.samples[node_key(parsed.pool, parsed.node)] = Latest(sample, stored.time)


class Facts:
    """Counts what happens."""

    def __init__(self, fleet: Fleet) -> None:
        """Count into `fleet`."""
        self._fleet = fleet

    def consumer(self) -> Consumer:
        """The consumer that drives it."""
        return Consumer(
            durable=METRICS_EVENTS,
            decode=_decode,
            handle=self.handle,
            key=lambda stored: stored.subject,
        )

    async def handle(self, received: Received[Message]) -> None:
        """Count one fact."""
        for increment in increments(received.message):
            self._fleet.add(increment)


def _decode(stored: Stored) -> Any:
    return _events.decode(stored.data)


async def build(context: Context) -> Service:
    """Mirror the fleet, count its facts, and offer both to the scraper."""
    fleet = Fleet(context.clock.now)
    nodes = BucketView(context.bus, NODES, NodeRecord, fleet.forget)
    health = BucketView(context.bus, HEALTH, HealthRecord)
    fleet.nodes, fleet.health = nodes.records, health.records
    registry = context.instruments.registry
    registry.register(fleet)
    totals = Totals(context.bus, context.clock)
    registry.register(totals)
    invalid = Counter(
        "navarch_telemetry_invalid_total", "Samples that could not be read", registry=registry
    )
    lease = Lease(context.bus, context.clock, LEASE, context.replica)
    lag = Consumers(context.bus, context.clock, lease, context.settings.lag, registry)
    return Service(
        description="The fleet's numbers for Prometheus",
        consumers=[Facts(fleet).consumer(), Collector(context.bus, context.clock).consumer()],
        tasks=[
            *(nodes.run, health.run, Samples(context.bus, fleet, invalid).run),
            *(lease.keep, lag.run, totals.run),
        ],
        close=lease.release,
    )
