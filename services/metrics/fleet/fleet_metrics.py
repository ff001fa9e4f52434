"""The fleet's records, samples and events as metrics, and each pool's gauges. Pure.

Gauges are computed at every scrape, so the series of a terminated node end. Counters and the
histogram grow with each event (`increments`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice
from typing import Final, Literal, get_args

from schemas import metric_catalogue
from schemas.enums import BreakerState, HealthStatus, SagaKind
from schemas.fault_signature import DRILL
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import Message
from schemas.metric_catalogue import (
    GPU_INDEX_MAX,
    LABEL_VALUES_MAX,
    OTHER,
    XID_CODE_MAX,
    MetricSpec,
)
from schemas.node_events import (
    Cordoned,
    Drained,
    DrillStarted,
    Fault,
    Telemetry,
    Terminated,
    Uncordoned,
)
from schemas.node_records import NodeRecord
from schemas.pool_events import NodeReplaced, Scaled
from schemas.pool_records import PoolRecord
from schemas.stops import FLEET, StopState

STALE_SECONDS: Final = 300.0
"""The series of a sample older than this end."""
REPLACEMENT_BUCKETS_SECONDS: Final = (
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
)
CONDITIONS_MAX: Final = LABEL_VALUES_MAX["condition"] - 1
"""Names of conditions that have series of their own; agents send them."""
HEALTH_VALUES: Final[Mapping[HealthStatus, float]] = {
    "healthy": 1.0,
    "degraded": 0.5,
    "unhealthy": 0.0,
}
"""A node without a verdict has no series, so `!= 1` finds exactly degraded and unhealthy nodes."""

NodeStatus = Literal[
    "launching", "registered", "active", "cordoned", "draining", "unhealthy", "leaving"
]
"""The one word for a node in `navarch_nodes_total`."""

COMMANDS: Final = metric_catalogue.COMMANDS.name
XIDS: Final = metric_catalogue.XIDS.name
SCALINGS: Final = metric_catalogue.SCALINGS.name
REPLACEMENTS: Final = metric_catalogue.REPLACEMENTS.name
REPLACEMENT_SECONDS: Final = metric_catalogue.REPLACEMENT_SECONDS.name
FREE: Final = ("terminated", "terminating")
"""Instances in these states cost nothing more; a spend_cap does not count them either."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One family of gauges: label values -> value."""

    spec: MetricSpec
    values: dict[tuple[str, ...], float] = field(default_factory=dict)


COUNTERS: Final = (
    *(metric_catalogue.COMMANDS, metric_catalogue.XIDS),
    *(metric_catalogue.SCALINGS, metric_catalogue.REPLACEMENTS),
)


@dataclass(frozen=True, slots=True)
class Increment:
    """Says what one event adds to a counter, or to the histogram of replacements."""

    name: str
    labels: tuple[str, ...]
    amount: float = 1.0


def increments(event: Message) -> tuple[Increment, ...]:
    """Return what an event adds to the counters."""
    match event:
        case Fault(kind="xid") if event.source != DRILL:
            code = str(event.code) if 0 <= event.code <= XID_CODE_MAX else OTHER
            return (Increment(XIDS, (event.pool, event.node, code)),)
        case DrillStarted():
            return (Increment(COMMANDS, (event.pool, "drill")),)
        case Cordoned():
            return (Increment(COMMANDS, (event.pool, "cordon")),)
        case Uncordoned():
            return (Increment(COMMANDS, (event.pool, "uncordon")),)
        case Drained():
            return (Increment(COMMANDS, (event.pool, "drain")),)
        case Terminated():
            return (Increment(COMMANDS, (event.pool, "terminate")),)
        case Scaled() if event.nodes != event.previous:
            direction = "up" if event.nodes > event.previous else "down"
            return (Increment(SCALINGS, (event.pool, direction)),)
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
    """Return the keys of the samples older than STALE_SECONDS."""
    oldest = now - timedelta(seconds=STALE_SECONDS)
    return frozenset(key for key, latest in samples.items() if latest.time < oldest)


def node_status(node: NodeRecord, status: HealthStatus) -> NodeStatus:
    """The status of a node that is not gone."""
    match node.state:
        case "active" if node.cordoned and node.saga and not node.drained:
            return "draining"
        case "active" if status == "unhealthy" or node.lost:
            return "unhealthy"
        case "active" if node.cordoned:
            return "cordoned"
        case "leaving" | "terminated":
            return "leaving"
        case state:
            return state


def gauges(
    nodes: Mapping[str, NodeRecord],
    health: Mapping[str, HealthRecord],
    samples: Mapping[str, LatestSample],
    now: datetime,
) -> Iterator[Gauge]:
    """Every gauge of the fleet, as of now; keys are `<pool>.<node>`.

    Nodes beyond the limit of the label, those seen last, count in their pools alone.
    """
    current = {key: node for key, node in nodes.items() if node.state != "terminated"}
    most = LABEL_VALUES_MAX["node"]
    shown = current if len(current) <= most else dict(islice(current.items(), most))
    old = stale_samples(samples, now)
    fresh = {
        key: latest.sample for key, latest in samples.items() if key in shown and key not in old
    }
    yield from _pool_gauges(current, health)
    yield from _node_gauges(shown, health, fresh)
    yield from _gpu_gauges(shown, fresh)
    yield Gauge(metric_catalogue.LEFT_OUT, {("node",): len(current) - len(shown)})


def _pool_gauges(
    nodes: Mapping[str, NodeRecord], health: Mapping[str, HealthRecord]
) -> Iterable[Gauge]:
    total = Gauge(metric_catalogue.NODES_TOTAL)
    gpus = Gauge(metric_catalogue.GPUS_TOTAL)
    healthy = Gauge(metric_catalogue.NODES_HEALTHY)
    unhealthy = Gauge(metric_catalogue.NODES_UNHEALTHY)
    quarantined = Gauge(metric_catalogue.NODES_QUARANTINED)
    lost = Gauge(metric_catalogue.NODES_LOST)
    for name in {node.pool for node in nodes.values()}:
        total.values.update({(name, each): 0.0 for each in get_args(NodeStatus)})
    for key, node in nodes.items():
        pool = (node.pool,)
        status = health[key].status if key in health else "unknown"
        total.values[node.pool, node_status(node, status)] += 1
        provider = (node.pool, (node.launch.provider if node.launch else "") or "unknown")
        gpus.values[provider] = gpus.values.get(provider, 0.0) + len(node.gpus)
        for gauge, counts in (
            (healthy, status == "healthy" and not node.lost),
            (unhealthy, status == "unhealthy" or node.lost),
            (lost, node.lost),
            (quarantined, node.cordoned and node.quarantine is not None),
        ):
            gauge.values[pool] = gauge.values.get(pool, 0.0) + counts
    return (total, gpus, healthy, unhealthy, quarantined, lost)


def _node_gauges(
    nodes: Mapping[str, NodeRecord],
    health: Mapping[str, HealthRecord],
    samples: Mapping[str, Telemetry],
) -> Iterable[Gauge]:
    count = Gauge(metric_catalogue.NODE_GPUS)
    check = Gauge(metric_catalogue.NODE_STATUS)
    named = Gauge(metric_catalogue.NODE_HEALTH)
    held, conditions = Gauge(metric_catalogue.NODE_CONDITION), set[str]()
    for key, node in nodes.items():
        labels = (node.pool, node.node)
        if key in samples:
            count.values[labels] = len(samples[key].gpus)
        elif node.registered_at is not None:
            count.values[labels] = len(node.gpus)
        listed = health[key].conditions if key in health else None
        for each in listed.held if listed is not None else ():
            if len(conditions) < CONDITIONS_MAX:
                conditions.add(each.name)
            name = each.name if each.name in conditions else metric_catalogue.OTHER
            gpu = min(each.gpu, metric_catalogue.GPU_INDEX_MAX)
            scope = f"gpu{gpu}" if gpu >= 0 else "host"
            held.values[*labels, name, scope] = 0.0 if each.unknown else 1.0
        status = health[key].status if key in health else "unknown"
        value = HEALTH_VALUES.get(status)
        named.values[*labels, status] = value or 0.0
        if value is not None:
            check.values[labels] = value
    return (count, check, named, held)


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
            if not 0 <= gpu.index <= GPU_INDEX_MAX:
                continue
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


def stop_gauge(stops: StopState, now: datetime) -> Gauge:
    """Return the gauge of stops; the fleet's is 0 where none is in force."""
    gauge = Gauge(metric_catalogue.STOPPED, {(FLEET,): 0.0})
    gauge.values.update({(scope,): 1.0 for scope in stops.at(now)})
    return gauge


def pool_gauges(
    pools: Iterable[PoolRecord],
    instances: Mapping[str, InstanceRecord],
    fleet_cap: float,
    now: datetime,
) -> Iterator[Gauge]:
    """Every gauge of the pools; instances are by `<pool>.<node>`, and a cap of 0 is none."""
    desired = Gauge(metric_catalogue.POOL_DESIRED)
    least, most = Gauge(metric_catalogue.POOL_MIN), Gauge(metric_catalogue.POOL_MAX)
    incidents = Gauge(metric_catalogue.INCIDENTS)
    oldest = Gauge(metric_catalogue.OLDEST_SAGA)
    breaker = Gauge(metric_catalogue.POOL_BREAKER)
    sagas = Gauge(metric_catalogue.OPEN_SAGAS)
    cap = Gauge(metric_catalogue.POOL_SPEND_CAP)
    for pool in pools:
        desired.values[(pool.name,)] = pool.desired
        least.values[(pool.name,)] = pool.spec.min_nodes
        most.values[(pool.name,)] = pool.spec.max_nodes
        incidents.values[(pool.name,)] = len(pool.incidents)
        for saga in pool.open.values():
            of_kind = (pool.name, saga.kind)
            seconds = max(0.0, (now - saga.since).total_seconds())
            oldest.values[of_kind] = max(seconds, oldest.values.get(of_kind, 0.0))
        for state in get_args(BreakerState):
            breaker.values[(pool.name, state)] = pool.breaker.state == state
        kinds = [each.kind for each in pool.open.values()]
        for kind in get_args(SagaKind):
            sagas.values[(pool.name, kind)] = kinds.count(kind)
        if pool.spec.spend_cap:
            cap.values[(pool.name,)] = pool.spec.spend_cap
    yield from (desired, least, most, incidents, breaker, sagas, oldest, cap)
    spend, count = Gauge(metric_catalogue.POOL_SPEND), Gauge(metric_catalogue.INSTANCE_COUNT)
    for key, instance in instances.items():
        if instance.state != "terminated":
            counted = (instance.pool, instance.provider, instance.state)
            count.values[counted] = count.values.get(counted, 0.0) + 1
        if instance.state not in FREE:
            labels = (key.partition(".")[0],)
            spend.values[labels] = spend.values.get(labels, 0.0) + instance.dollars_per_hour
    yield from (spend, count)
    yield Gauge(metric_catalogue.FLEET_SPEND_CAP, {(): fleet_cap} if fleet_cap else {})
