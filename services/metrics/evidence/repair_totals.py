"""Stores the totals of repairs in their bucket, and shows them as metrics.

Every replica follows the events in order and writes by compare-and-set: of two replicas that add
the same event one is refused, reads again and finds it counted. So all show the same values without
a lease, and the values survive restarts.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from schemas import subjects
from schemas.evidence_bundles import TOTALS_KEY, RepairTotals
from schemas.metric_catalogue import LOST_GPU_HOURS, REPAIR_SECONDS
from schemas.node_events import FACTS, Repaired
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, REPAIRS
from services.bus.port import Bus, Stored
from services.bus.record_bucket import RecordBucket, Versioned
from services.metrics.evidence.repair_sums import BUCKETS_SECONDS, add_repair, repair_bucket
from services.metrics.histogram_buckets import add_buckets
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry
from services.runtime.failure_register import FailureRegister
from services.runtime.tracing import trace_labels

log = logging.getLogger(__name__)

Exemplars = dict[tuple[str, str, int], Exemplar]
"""Pool, fault and bucket -> the newest repair."""

EXEMPLARS_MAX: Final = 10_000
RETRY_SECONDS: Final = 0.5
ABOUT: Final = "repair totals"


class RepairCollector(Collector):
    """The totals of all repairs."""

    def __init__(self, bus: Bus, clock: Clock, failures: FailureRegister) -> None:
        """Store them in `bus`; `run` reads them first."""
        self._bus = bus
        self._clock = clock
        self._failures = failures
        self._records = RecordBucket(bus, REPAIRS, RepairTotals)
        self._known = RepairTotals()
        self._revision = 0
        self._exemplars: Exemplars = {}

    async def run(self) -> None:
        """Add every event until cancelled."""
        while not await self._try_to_read():
            await self._clock.sleep(RETRY_SECONDS)
        subject = subjects.node_event_wildcard(FACTS[Repaired])
        after = self._known.sequence
        async for stored in self._bus.follow(EVENTS.name, [subject], "all", after=after):
            while not await self._try_to_add(stored):
                await self._clock.sleep(RETRY_SECONDS)

    async def _try_to_read(self) -> bool:
        async def read() -> None:
            record, revision, _ = await self._records.read(TOTALS_KEY)
            if record is not None:
                self._known, self._revision = record, revision

        return await self._try("repair totals cannot be read; retrying: %s", read)

    async def _try_to_add(self, stored: Stored) -> bool:
        """Add one event; False if it must be retried."""
        event = decode_stored(stored)
        if not isinstance(event, Repaired):
            return True

        async def add() -> None:
            record, revision, _ = await self._records.change(
                TOTALS_KEY,
                # Of a record that was removed, memory has the content.
                lambda totals: add_repair(totals or self._known, event, stored.sequence),
                Versioned(self._known, self._revision),
            )
            self._known, self._revision = record or RepairTotals(), revision
            if trace := trace_labels(stored.headers):
                place, seconds = repair_bucket(event)
                self._exemplars[place] = Exemplar(trace, seconds, stored.time.timestamp())
                if len(self._exemplars) > EXEMPLARS_MAX:
                    del self._exemplars[next(iter(self._exemplars))]

        return await self._try("a repair cannot be counted; retrying: %s", add)

    async def _try(self, problem: str, work: Callable[[], Awaitable[None]]) -> bool:
        """Do it; what an operator must repair is reported, everything else logged."""
        try:
            return await self._failures.attempt(ABOUT, work)
        except (BusError, Retry) as error:
            log.info(problem, error)
            return False

    def collect(self) -> Iterator[Metric]:
        """Yield both families, for one scrape."""
        yield from families(self._known, self._exemplars)

    def describe(self) -> Iterable[Metric]:
        """No names in advance, so that registering does not collect."""
        return ()


def families(totals: RepairTotals, exemplars: Exemplars) -> Iterator[Metric]:
    """The metrics that show the totals."""
    hours = CounterMetricFamily(*LOST_GPU_HOURS.declared[:2], labels=LOST_GPU_HOURS.labels)
    seconds = HistogramMetricFamily(*REPAIR_SECONDS.declared[:2], labels=REPAIR_SECONDS.labels)
    for each in totals.counts:
        labels = (each.pool, each.fault_signature)
        hours.add_metric(labels, each.gpu_seconds / 3600)
        newest = [exemplars.get((*labels, bucket)) for bucket in range(len(each.buckets))]
        add_buckets(seconds, labels, BUCKETS_SECONDS, each.buckets, each.seconds, newest)
    yield from (hours, seconds)
