"""Each pool's size, breaker, open sagas and costs as gauges. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

from schemas import metric_catalogue
from schemas.enums import BreakerState, SagaKind
from schemas.instance_records import InstanceRecord
from schemas.pool_records import PoolRecord
from services.metrics.fleet.fleet_metrics import Gauge

FREE: Final = ("terminated", "terminating")
"""Instances in these states cost nothing more; a spend_cap does not count them either."""


def pool_gauges(
    pools: Iterable[PoolRecord], instances: Mapping[str, InstanceRecord], fleet_cap: float
) -> Iterator[Gauge]:
    """Every gauge of the pools; instances are by `<pool>.<node>`, and a cap of 0 is none."""
    desired = Gauge(metric_catalogue.POOL_DESIRED)
    breaker = Gauge(metric_catalogue.POOL_BREAKER)
    sagas = Gauge(metric_catalogue.OPEN_SAGAS)
    cap = Gauge(metric_catalogue.POOL_SPEND_CAP)
    for pool in pools:
        desired.values[(pool.name,)] = pool.desired
        for state in get_args(BreakerState):
            breaker.values[(pool.name, state)] = pool.breaker.state == state
        kinds = [each.kind for each in pool.open.values()]
        for kind in get_args(SagaKind):
            sagas.values[(pool.name, kind)] = kinds.count(kind)
        if pool.spec.spend_cap:
            cap.values[(pool.name,)] = pool.spec.spend_cap
    yield from (desired, breaker, sagas, cap)
    spend = Gauge(metric_catalogue.POOL_SPEND)
    for key, instance in instances.items():
        if instance.state not in FREE:
            labels = (key.partition(".")[0],)
            spend.values[labels] = spend.values.get(labels, 0.0) + instance.dollars_per_hour
    yield spend
    yield Gauge(metric_catalogue.FLEET_SPEND_CAP, {(): fleet_cap} if fleet_cap else {})
