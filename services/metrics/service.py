"""Metrics: telemetry, records and events of the fleet as Prometheus series under `/metrics`.

Every replica follows all telemetry and both buckets, so each shows the same gauges: scrape one, or
take `max by`. The replicas share one durable of events, so each counts a part of them: use
`sum without (instance) (navarch_xid_errors_total)`. A counter starts at zero with its process,
which `rate` and `increase` allow for. The cost of repairs is counted durably (`RepairCollector`),
and evidence of unhealthy nodes is stored (`EvidenceCollector`). It decides nothing about nodes.
"""

import logging
from typing import Final

import msgspec
from prometheus_client import Counter

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import LimitedDecoder, Message
from schemas.metric_catalogue import TELEMETRY_INVALID
from schemas.node_events import Telemetry
from schemas.node_records import NodeRecord, node_key
from schemas.stored_messages import decode_stored
from schemas.topology import HEALTH, INSTANCES, METRICS_EVENTS, NODES, TELEMETRY
from services.bus.bucket_mirror import BucketView
from services.bus.leases import Lease
from services.bus.port import Bus, Stored
from services.metrics.evidence.evidence_collector import EvidenceCollector
from services.metrics.evidence.repair_totals import RepairCollector
from services.metrics.fleet.consumer_watch import LEASE, ConsumerWatch
from services.metrics.fleet.fleet_metrics import LatestSample, increments
from services.metrics.fleet.prometheus_collector import FleetCollector, PoolMirror
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.process import Context, Service
from services.runtime.stop_watch import StopWatch
from services.runtime.tracing import trace_labels

log = logging.getLogger(__name__)

_telemetry: Final = LimitedDecoder(Telemetry)


class Samples:
    """Keeps each node's newest sample."""

    def __init__(self, bus: Bus, fleet: FleetCollector, invalid: Counter) -> None:
        """Follow telemetry into `fleet`; `invalid` counts unreadable samples."""
        self._bus = bus
        self._fleet = fleet
        self._invalid = invalid

    async def run(self) -> None:
        """Follow telemetry until cancelled."""
        async for stored in self._bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "new"):
            self.record(stored)

    def record(self, stored: Stored) -> None:
        """Keep one sample of the node in its subject, where only that node may publish."""
        parsed = subjects.parse_node(stored.subject)
        try:
            sample = _telemetry.decode(stored.data)
        except msgspec.DecodeError as error:
            self._invalid.inc()
            log.debug("unreadable sample", extra={"subject": stored.subject, "error": str(error)})
            return
        if parsed is not None:
            self._fleet.samples[node_key(parsed.pool, parsed.node)] = LatestSample(
                sample, stored.time
            )


def event_consumer(fleet: FleetCollector) -> Consumer:
    """The consumer that counts events into `fleet`."""

    async def handle(received: Received[Message]) -> None:
        for increment in increments(received.message):
            fleet.add(increment, trace_labels(received.stored.headers))

    return Consumer(
        durable=METRICS_EVENTS,
        decode=decode_stored,
        handle=handle,
        key=lambda stored: stored.subject,
    )


async def build(context: Context) -> Service:
    """Mirror the fleet's records, count its events, and register both for the scraper."""
    fleet = FleetCollector(context.clock.now)
    nodes = BucketView(context.bus, NODES, NodeRecord, fleet.forget)
    health = BucketView(context.bus, HEALTH, HealthRecord)
    pools = PoolMirror(context.bus)
    instances = BucketView(context.bus, INSTANCES, InstanceRecord)
    fleet.nodes, fleet.health = nodes.records, health.records
    fleet.read_pools, fleet.instances = pools.read, instances.records
    stops = StopWatch(context.bus)
    await stops.read()
    fleet.stops = stops.state
    fleet.spend_cap = context.settings.spend_cap
    registry = context.instruments.registry
    registry.register(fleet)
    repairs = RepairCollector(context.bus, context.clock, context.instruments.failures)
    registry.register(repairs)
    invalid = Counter(*TELEMETRY_INVALID.declared, registry=registry)
    lease = Lease(context.bus, context.clock, LEASE, context.replica)
    watch = ConsumerWatch(context.bus, context.clock, lease, context.settings.lag, registry)
    return Service(
        description="The fleet's state as Prometheus metrics; evidence of unhealthy nodes",
        consumers=[
            event_consumer(fleet),
            EvidenceCollector(context.bus, context.clock).consumer(),
        ],
        tasks=[
            *(
                nodes.run,
                health.run,
                pools.run,
                stops.run,
                instances.run,
                Samples(context.bus, fleet, invalid).run,
            ),
            *(lease.keep, watch.run, repairs.run),
        ],
        close=lease.release,
    )
