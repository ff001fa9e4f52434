"""The fleet's records, samples and events as metrics. Pure.

Gauges are computed at every scrape, so the series of a terminated node end. Counters and the
histogram grow with each event (`increments`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas import metric_catalogue
from schemas.enums import HealthStatus
from schemas.health_records import HealthRecord
from schemas.messages import Message
from schemas.metric_catalogue import MetricSpec
from schemas.node_events import (
    Cordoned,
    Drained,
    Fault,
    Telemetry,
    Terminated,
    Uncordoned,
)
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced

STALE_SECONDS: Final = 300.0
"""The series of a sample older than this end."""
REPLACEMENT_BUCKETS_SECONDS: Final = (
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
HEALTH_VALUES: Final[Mapping[HealthStatus, float]] = {
    "healthy": 1.0,
    "degraded": 0.5,
    "unhealthy": 0.0,
}
"""A node without a verdict has no series, so `!= 1` finds exactly degraded and unhealthy nodes."""

COMMANDS: Final = metric_catalogue.COMMANDS.name
XIDS: Final = metric_catalogue.XIDS.name
REPLACEMENTS: Final = metric_catalogue.REPLACEMENTS.name
REPLACEMENT_SECONDS: Final = metric_catalogue.REPLACEMENT_SECONDS.name


@dataclass(frozen=True, slots=True)
class Gauge:
    """One family of gauges: label values -> value."""

    spec: MetricSpec
    values: dict[tuple[str, ...], float] = field(default_factory=dict)


COUNTERS: Final = (metric_catalogue.COMMANDS, metric_catalogue.XIDS, metric_catalogue.REPLACEMENTS)


@dataclass(frozen=True, slots=True)
class Increment:
    """What one event adds to a counter, or to the histogram of replacements."""

    name: str
    labels: tuple[str, ...]
    amount: float = 1.0


def increments(event: Message) -> tuple[Increment, ...]:
    """What an event adds to the counters."""
    match event:
        case Fault(kind="xid"):
            return (Increment(XIDS, (event.pool, event.node, str(event.code))),)
        case Cordoned():
            return (Increment(COMMANDS, (event.pool, "cordon")),)
        case Uncordoned():
            return (Increment(COMMANDS, (event.pool, "uncordon")),)
        case Drained():
            return (Increment(COMMANDS, (event.pool, "drain")),)
        case Terminated():
            return (Increment(COMMANDS, (event.pool, "terminate")),)
        case NodeReplaced():
            return (
                Increment(REPLACEMENTS, (event.pool,)),
                Increment(REPLACEMENT_SECONDS, (event.pool,), event.duration_seconds),
            )
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class LatestSample:
    """A node's newest sample, and when the server stored it."""

    sample: Telemetry
    time: datetime


def stale_samples(samples: Mapping[str, LatestSample], now: datetime) -> frozenset[str]:
    """Keys of the samples older than STALE_SECONDS."""
    oldest = now - timedelta(seconds=STALE_SECONDS)
    return frozenset(key for key, latest in samples.items() if latest.time < oldest)


def gauges(
    nodes: Mapping[str, NodeRecord],
    health: Mapping[str, HealthRecord],
    samples: Mapping[str, LatestSample],
    now: datetime,
) -> Iterator[Gauge]:
    """Every gauge of the fleet, as of now; keys are `<pool>.<node>`."""
    current = {key: node for key, node in nodes.items() if node.state != "terminated"}
    old = stale_samples(samples, now)
    fresh = {
        key: latest.sample for key, latest in samples.items() if key in current and key not in old
    }
    yield from _pool_gauges(current, health)
    yield from _node_gauges(current, health, fresh)
    yield from _gpu_gauges(current, fresh)


def _pool_gauges(
    nodes: Mapping[str, NodeRecord], health: Mapping[str, HealthRecord]
) -> Iterable[Gauge]:
    total = Gauge(metric_catalogue.NODES_TOTAL)
    healthy = Gauge(metric_catalogue.NODES_HEALTHY)
    unhealthy = Gauge(metric_catalogue.NODES_UNHEALTHY)
    quarantined = Gauge(metric_catalogue.NODES_QUARANTINED)
    lost = Gauge(metric_catalogue.NODES_LOST)
    for key, node in nodes.items():
        pool = (node.pool,)
        status = health[key].status if key in health else "unknown"
        for gauge, counts in (
            (total, True),
            (healthy, status == "healthy" and not node.lost),
            (unhealthy, status == "unhealthy" or node.lost),
            (lost, node.lost),
            (quarantined, node.cordoned and node.quarantine is not None),
        ):
            gauge.values[pool] = gauge.values.get(pool, 0.0) + counts
    return (total, healthy, unhealthy, quarantined, lost)


def _node_gauges(
    nodes: Mapping[str, NodeRecord],
    health: Mapping[str, HealthRecord],
    samples: Mapping[str, Telemetry],
) -> Iterable[Gauge]:
    count = Gauge(metric_catalogue.NODE_GPUS)
    status = Gauge(metric_catalogue.NODE_STATUS)
    for key, node in nodes.items():
        labels = (node.pool, node.node)
        if key in samples:
            count.values[labels] = len(samples[key].gpus)
        elif node.registered_at is not None:
            count.values[labels] = len(node.gpus)
        value = HEALTH_VALUES.get(health[key].status) if key in health else None
        if value is not None:
            status.values[labels] = value
    return (count, status)


def _gpu_gauges(
    nodes: Mapping[str, NodeRecord], samples: Mapping[str, Telemetry]
) -> Iterable[Gauge]:
    families = (
        Gauge(metric_catalogue.GPU_TEMPERATURE),
        Gauge(metric_catalogue.GPU_UTILIZATION),
        Gauge(metric_catalogue.GPU_MEMORY),
        Gauge(metric_catalogue.GPU_POWER),
    )
    for key, sample in samples.items():
        node = nodes[key]
        for gpu in sample.gpus:
            labels = (node.pool, node.node, str(gpu.index))
            readings = (
                gpu.temperature_celsius,
                gpu.utilization_percent,
                gpu.memory_used_bytes,
                gpu.power_watts,
            )
            for family, value in zip(families, readings, strict=True):
                if value is not None:
                    family.values[labels] = value
    return families
