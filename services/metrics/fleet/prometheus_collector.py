"""The fleet's numbers for Prometheus, made at each scrape from what is known by then.

A sample costs no more than being kept in place of the one before it; series of nodes that are gone
are gone at the next scrape. Counters live as long as the process: Prometheus knows a fresh start.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord, node_key
from services.metrics.fleet.fleet_metrics import (
    COUNTERS,
    POOL_LABELS,
    REPLACEMENT_BUCKETS_SECONDS,
    REPLACEMENT_SECONDS,
    XIDS,
    Increment,
    Latest,
    gauges,
    stale,
)


class Fleet(Collector):
    """Everything that the metrics are made of."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Know nothing yet."""
        self._now = now
        self._counts: dict[str, dict[tuple[str, ...], float]] = {c.name: {} for c in COUNTERS}
        self._observed: dict[tuple[str, ...], tuple[list[int], float]] = {}
        self.nodes: Mapping[str, NodeRecord] = {}
        self.health: Mapping[str, HealthRecord] = {}
        """Kept fresh by others."""
        self.samples: dict[str, Latest] = {}
        """`<pool>.<node>` -> its newest sample."""

    def add(self, increment: Increment) -> None:
        """Grow a counter or the histogram."""
        if increment.name == REPLACEMENT_SECONDS:
            empty = [0] * (len(REPLACEMENT_BUCKETS_SECONDS) + 1), 0.0
            buckets, total = self._observed.get(increment.labels, empty)
            buckets[bisect_left(REPLACEMENT_BUCKETS_SECONDS, increment.amount)] += 1
            self._observed[increment.labels] = buckets, total + increment.amount
            return
        counts = self._counts[increment.name]
        counts[increment.labels] = counts.get(increment.labels, 0.0) + increment.amount

    def forget(self, key: str) -> None:
        """A node changed: where it is gone, what is kept about it goes too."""
        node = self.nodes.get(key)
        if node is not None and node.state != "terminated":
            return
        self.samples.pop(key, None)
        xids = self._counts[XIDS]
        for labels in [each for each in xids if node_key(each[0], each[1]) == key]:
            del xids[labels]

    def collect(self) -> Iterator[Metric]:
        """Write everything, for one scrape."""
        now = self._now()
        for key in stale(self.samples, now):
            del self.samples[key]
        for gauge in gauges(self.nodes, self.health, self.samples, now):
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=gauge.labels)
            for labels, value in gauge.values.items():
                family.add_metric(labels, value)
            yield family
        for counter in COUNTERS:
            counts = CounterMetricFamily(counter.name, counter.help, labels=counter.labels)
            for labels, value in self._counts[counter.name].items():
                counts.add_metric(labels, value)
            yield counts
        yield self._histogram()

    def describe(self) -> Iterable[Metric]:
        """Say no names beforehand: registering must not need a scrape."""
        return ()

    def _histogram(self) -> Metric:
        family = HistogramMetricFamily(
            REPLACEMENT_SECONDS, "From the decision to the new node in service", labels=POOL_LABELS
        )
        bounds = [*(str(each) for each in REPLACEMENT_BUCKETS_SECONDS), "+Inf"]
        for labels, (buckets, total) in self._observed.items():
            counts = zip(bounds, accumulate(buckets), strict=True)
            family.add_metric(labels, [(bound, float(n)) for bound, n in counts], total)
        return family
