"""Keeps the totals of repairs in their bucket, and shows them to the scraper.

Every replica follows the events in order and writes under the record's revision: of two that bring
the same event one is refused, reads again and finds it counted. So all show the same, without a
lease, and what they show goes on where it was whoever restarts.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas import subjects
from schemas.evidence_bundles import TOTALS_KEY, RepairTotals
from schemas.node_events import FACTS, Repaired, node_codec
from schemas.topology import EVENTS, REPAIRS
from services.bus.port import Bus, Stored
from services.bus.record_bucket import RecordBucket, Versioned
from services.metrics.evidence.repair_sums import (
    BUCKETS_SECONDS,
    LABELS,
    LOST_GPU_HOURS,
    REPAIR_SECONDS,
    add,
)
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Retry

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5


class Totals(Collector):
    """The sum of all repairs."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        """Keep it in `bus`; nothing is known yet."""
        self._bus = bus
        self._clock = clock
        self._records = RecordBucket(bus, REPAIRS, RepairTotals)
        self._known = RepairTotals()
        self._revision = 0

    async def run(self) -> None:
        """Take in every event, for ever."""
        while not await self._tried_to_look():
            await self._clock.sleep(RETRY_SECONDS)
        subject = subjects.node_event_wildcard(FACTS[Repaired])
        after = self._known.sequence
        async for stored in self._bus.follow(EVENTS.name, [subject], "all", after=after):
            while not await self._tried_to_take(stored):
                await self._clock.sleep(RETRY_SECONDS)

    async def _tried_to_look(self) -> bool:
        try:
            record, revision, _ = await self._records.read(TOTALS_KEY)
        except BusError as error:
            log.info("the totals cannot be read yet: %s", error)
            return False
        if record is not None:
            self._known, self._revision = record, revision
        return True

    async def _tried_to_take(self, stored: Stored) -> bool:
        """Count one event; False: not yet."""
        event = node_codec.decode(stored.data)
        if not isinstance(event, Repaired):
            return True
        try:
            record, revision, _ = await self._records.change(
                TOTALS_KEY,
                lambda totals: add(totals or RepairTotals(), event, stored.sequence),
                Versioned(self._known, self._revision),
            )
        except (BusError, Retry) as error:
            log.info("a repair cannot be counted yet: %s", error)
            return False
        self._known, self._revision = record or RepairTotals(), revision
        return True

    # --- the scraper --------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """Write both families, for one scrape."""
        hours = CounterMetricFamily(
            LOST_GPU_HOURS, "GPU-hours out of service, by what was wrong", labels=LABELS
        )
        seconds = HistogramMetricFamily(
            REPAIR_SECONDS, "From falling ill to the place being filled again", labels=LABELS
        )
        bounds = [*(str(each) for each in BUCKETS_SECONDS), "+Inf"]
        for each in self._known.counts:
            labels = (each.pool, each.fault_signature)
            hours.add_metric(labels, each.gpu_seconds / 3600)
            counts = zip(bounds, accumulate(each.buckets), strict=True)
            seconds.add_metric(labels, [(bound, float(n)) for bound, n in counts], each.seconds)
        yield from (hours, seconds)

    def describe(self) -> Iterable[Metric]:
        """Say no names beforehand: registering must not need a scrape."""
        return ()
