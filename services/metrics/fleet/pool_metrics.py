"""Each pool's size, breaker, open sagas and costs as gauges. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final, get_args

from schemas import metric_catalogue
from schemas.enums import BreakerState, SagaKind
from schemas.instance_records import InstanceRecord
from schemas.pool_records import PoolRecord
from services.metrics.fleet.fleet_metrics import Gauge

FREE: Final = ("terminated", "terminating")
"""Instances in these states cost nothing more; a spend_cap does not count them either."""


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
