"""The fleet's metrics for Prometheus, computed at each scrape, and the pools that they show.

A new sample only replaces the one before it. Counters live as long as the process; Prometheus
recognises a restart.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Final

import msgspec
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.metric_catalogue import LABEL_VALUES_MAX, NODE_XIDS_MAX, OTHER
from schemas.metric_catalogue import REPLACEMENT_SECONDS as SPEC
from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.stops import StopState
from schemas.topology import POOLS
from services.bus.port import Bus
from services.metrics.fleet.fleet_metrics import (
    COUNTERS,
    REPLACEMENT_BUCKETS_SECONDS,
    REPLACEMENT_SECONDS,
    XIDS,
    Increment,
    LatestSample,
    gauges,
    pool_gauges,
    stale_samples,
    stop_gauge,
)
from services.metrics.histogram_buckets import add_buckets
from services.runtime.gauge_table import GaugeTable

log = logging.getLogger(__name__)

_pool: Final = decoder(PoolRecord)


class PoolMirror:
    """Keeps each pool's newest record that can be read."""

    def __init__(self, bus: Bus) -> None:
        """Read from `bus`, once `run` runs."""
        self._bus = bus
        self._records: dict[str, PoolRecord] = {}
        self._unread: dict[str, bytes | None] = {}
        """Key -> its newest record; None: it was removed."""

    def read(self) -> dict[str, PoolRecord]:
        """Return the records by key; decoded now, since one may be written many times a second."""
        unread, self._unread = self._unread, {}
        for key, value in unread.items():
            if value is None:
                self._records.pop(key, None)
                continue
            try:
                self._records[key] = _pool.decode(value)
            except msgspec.DecodeError as error:
                log.warning("unreadable pool", extra={"key": key, "error": str(error)})
        return self._records

    async def run(self) -> None:
        """Follow POOLS until cancelled."""
        async for entry in self._bus.watch(POOLS, pool_key("*")):
            self._unread[entry.key] = None if entry.removed else entry.value


class FleetCollector(Collector):
    """The records, samples and counts behind the metrics."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        """Start without records or counts; `now` is the clock."""
        self._now = now
        self._counts: dict[str, dict[tuple[str, ...], float]] = {c.name: {} for c in COUNTERS}
        self._observed: dict[tuple[str, ...], tuple[list[int], float]] = {}
        self._exemplars: dict[tuple[tuple[str, ...], int], Exemplar] = {}
        """The newest of each bucket of the histogram."""
        self._codes: dict[str, set[str]] = {}
        """`<pool>.<node>` -> XIDs that have a series."""
        self.nodes: Mapping[str, NodeRecord] = {}
        self.health: Mapping[str, HealthRecord] = {}
        """Mirrors of the buckets NODES and HEALTH."""
        self.read_pools: Callable[[], Mapping[str, PoolRecord]] = dict
        self.instances: Mapping[str, InstanceRecord] = {}
        """Mirrors of POOLS and INSTANCES."""
        self.stops: Callable[[], StopState] = StopState
        self.spend_cap = 0.0
        self.samples: dict[str, LatestSample] = {}
        """`<pool>.<node>` -> its newest sample."""

    def add(self, increment: Increment, trace: Mapping[str, str]) -> None:
        """Add to a counter or to the histogram; `trace`: labels of the exemplar, empty for none."""
        if increment.name == REPLACEMENT_SECONDS:
            empty = [0] * (len(REPLACEMENT_BUCKETS_SECONDS) + 1), 0.0
            buckets, total = self._observed.get(increment.labels, empty)
            bucket = bisect_left(REPLACEMENT_BUCKETS_SECONDS, increment.amount)
            buckets[bucket] += 1
            self._observed[increment.labels] = buckets, total + increment.amount
            if trace:
                exemplar = Exemplar(dict(trace), increment.amount, self._now().timestamp())
                self._exemplars[increment.labels, bucket] = exemplar
            return
        labels, counts = increment.labels, self._counts[increment.name]
        if increment.name == XIDS:
            node = self.nodes.get(node_key(*labels[:2]))
            if node is not None and node.state == "terminated":
                return
            labels = self._xid_labels(*labels)
        counts[labels] = counts.get(labels, 0.0) + increment.amount

    def _xid_labels(self, pool: str, node: str, code: str) -> tuple[str, ...]:
        """The labels under which a node's XID counts: its agent may send any number of codes."""
        key = node_key(pool, node)
        if key not in self._codes and len(self._codes) >= LABEL_VALUES_MAX["node"]:
            for gone in [each for each in self._codes if each not in self.nodes]:
                self.forget(gone)
            if len(self._codes) >= LABEL_VALUES_MAX["node"]:
                return (pool, OTHER, OTHER)
        codes = self._codes.setdefault(key, set())
        if code not in codes and len(codes) >= NODE_XIDS_MAX:
            code = OTHER
        codes.add(code)
        return (pool, node, code)

    def forget(self, key: str) -> None:
        """Drop the sample and counts of a node that changed, if it is gone or terminated."""
        node = self.nodes.get(key)
        if node is not None and node.state != "terminated":
            return
        self.samples.pop(key, None)
        pool, _, name = key.partition(".")
        for code in self._codes.pop(key, ()):
            del self._counts[XIDS][pool, name, code]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, for one scrape."""
        now = self._now()
        for key in stale_samples(self.samples, now):
            del self.samples[key]
        of_nodes = gauges(self.nodes, self.health, self.samples, now)
        of_pools = pool_gauges(self.read_pools().values(), self.instances, self.spend_cap, now)
        for gauge in chain(of_nodes, of_pools, (stop_gauge(self.stops(), now),)):
            yield GaugeTable(*gauge.spec.declared, gauge.values)
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
        for labels, (counts, total) in self._observed.items():
            newest = [self._exemplars.get((labels, bucket)) for bucket in range(len(counts))]
            add_buckets(family, labels, REPLACEMENT_BUCKETS_SECONDS, counts, total, newest)
        return family
