"""The fleet's metrics for Prometheus, computed at each scrape.

A new sample only replaces the one before it. Counters live as long as the process; Prometheus
recognises a restart.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import accumulate, chain

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.metric_catalogue import REPLACEMENT_SECONDS as SPEC
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord
from services.metrics.fleet.fleet_metrics import (
    COUNTERS,
    REPLACEMENT_BUCKETS_SECONDS,
    REPLACEMENT_SECONDS,
    XIDS,
    Increment,
    LatestSample,
    gauges,
    stale_samples,
)
from services.metrics.fleet.pool_metrics import pool_gauges


class FleetCollector(Collector):
    """The records, samples and counts behind the metrics."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Start without records or counts; `now` is the clock."""
        self._now = now
        self._counts: dict[str, dict[tuple[str, ...], float]] = {c.name: {} for c in COUNTERS}
        self._observed: dict[tuple[str, ...], tuple[list[int], float]] = {}
        self.nodes: Mapping[str, NodeRecord] = {}
        self.health: Mapping[str, HealthRecord] = {}
        """Mirrors of the buckets NODES and HEALTH."""
        self.pools: Mapping[str, PoolRecord] = {}
        self.instances: Mapping[str, InstanceRecord] = {}
        """Mirrors of POOLS and INSTANCES."""
        self.spend_cap = 0.0
        self.samples: dict[str, LatestSample] = {}
        """`<pool>.<node>` -> its newest sample."""

    def add(self, increment: Increment) -> None:
        """Add to a counter or to the histogram."""
        if increment.name == REPLACEMENT_SECONDS:
            empty = [0] * (len(REPLACEMENT_BUCKETS_SECONDS) + 1), 0.0
            buckets, total = self._observed.get(increment.labels, empty)
            buckets[bisect_left(REPLACEMENT_BUCKETS_SECONDS, increment.amount)] += 1
            self._observed[increment.labels] = buckets, total + increment.amount
            return
        counts = self._counts[increment.name]
        counts[increment.labels] = counts.get(increment.labels, 0.0) + increment.amount

    def forget(self, key: str) -> None:
        """Drop the sample and counts of a node that changed, if it is gone or terminated."""
        node = self.nodes.get(key)
        if node is not None and node.state != "terminated":
            return
        self.samples.pop(key, None)
        xids = self._counts[XIDS]
        for labels in [each for each in xids if node_key(each[0], each[1]) == key]:
            del xids[labels]

    def collect(self) -> Iterator[Metric]:
        """Every metric, for one scrape."""
        now = self._now()
        for key in stale_samples(self.samples, now):
            del self.samples[key]
        of_nodes = gauges(self.nodes, self.health, self.samples, now)
        of_pools = pool_gauges(self.pools.values(), self.instances, self.spend_cap)
        for gauge in chain(of_nodes, of_pools):
            family = GaugeMetricFamily(*gauge.spec.declared[:2], labels=gauge.spec.labels)
            for labels, value in gauge.values.items():
                family.add_metric(labels, value)
            yield family
        for counter in COUNTERS:
            counts = CounterMetricFamily(*counter.declared[:2], labels=counter.labels)
            for labels, value in self._counts[counter.name].items():
                counts.add_metric(labels, value)
            yield counts
        yield self._histogram()

    def describe(self) -> Iterable[Metric]:
        """No names in advance, so that registering does not collect."""
        return ()

    def _histogram(self) -> Metric:
        family = HistogramMetricFamily(*SPEC.declared[:2], labels=SPEC.labels)
        bounds = [*(str(each) for each in REPLACEMENT_BUCKETS_SECONDS), "+Inf"]
        for labels, (buckets, total) in self._observed.items():
            counts = zip(bounds, accumulate(buckets), strict=True)
            family.add_metric(labels, [(bound, float(n)) for bound, n in counts], total)
        return family
