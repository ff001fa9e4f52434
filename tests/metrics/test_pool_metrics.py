"""Each pool's size, breaker, open sagas and costs as gauges."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec

from schemas.breaker_state import Breaker
from schemas.instance_records import InstanceRecord
from schemas.messages import encode
from schemas.pool_records import OpenSaga, PoolRecord, RemovedPool, pool_key, removed_key
from schemas.settings import PoolSpec
from schemas.topology import POOLS
from services.metrics.fleet.fleet_metrics import pool_gauges
from services.metrics.fleet.prometheus_collector import PoolMirror
from tests.golden.examples import example
from tests.support.inprocess import eventually

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def pool(**changes: Any) -> PoolRecord:
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=1, max_nodes=9, spend_cap=50)
    return msgspec.structs.replace(PoolRecord(name="a", spec=spec, desired=4), **changes)


def instance(state: str, dollars: float) -> InstanceRecord:
    record = msgspec.json.decode(example(InstanceRecord), type=InstanceRecord)
    changes: Any = {"state": state, "dollars_per_hour": dollars}
    return msgspec.structs.replace(record, **changes)


def values(
    *pools: PoolRecord, instances: Any = None, cap: float = 0.0
) -> dict[str, dict[tuple[str, ...], float]]:
    return {each.spec.name: each.values for each in pool_gauges(pools, instances or {}, cap, NOW)}


def test_a_pool_has_its_size_breaker_and_sagas():
    """One state of the breaker is 1; kinds without open sagas are 0."""
    sagas = {
        "s1": OpenSaga(kind="replace", since=NOW),
        "s2": OpenSaga(kind="replace", since=NOW),
    }
    found = values(pool(open=sagas, breaker=Breaker(state="open")))
    assert found["navarch_pool_desired_nodes"] == {("a",): 4}
    assert found["navarch_pool_breaker_state"] == {
        ("a", "closed"): 0,
        ("a", "open"): 1,
        ("a", "half-open"): 0,
    }
    assert found["navarch_open_sagas"][("a", "replace")] == 2
    assert found["navarch_open_sagas"][("a", "drain")] == 0


def test_spend_is_that_of_instances_that_cost():
    """Terminating ones do not count; a cap of 0 is none."""
    some = {
        "a.n-1": instance("running", 20),
        "a.n-2": instance("intended", 5),
        "a.n-3": instance("terminating", 20),
        "b.n-1": instance("running", 3),
    }
    found = values(pool(), instances=some, cap=100)
    assert found["navarch_spend_dollars_per_hour"] == {("a",): 25, ("b",): 3}
    assert found["navarch_pool_spend_cap_dollars_per_hour"] == {("a",): 50}
    assert found["navarch_fleet_spend_cap_dollars_per_hour"] == {(): 100}
    assert values()["navarch_fleet_spend_cap_dollars_per_hour"] == {}


async def test_the_mirror_has_pools_alone(bus):
    """Records of other types in POOLS are passed over, and an unreadable one keeps the last."""
    mirror = PoolMirror(bus)
    following = asyncio.create_task(mirror.run())
    try:
        await bus.put(POOLS, removed_key("b"), encode(RemovedPool(serial=3)))
        await bus.put(POOLS, pool_key("a"), encode(pool()))
        await eventually(lambda: _has(mirror, "a"))
        await bus.put(POOLS, pool_key("a"), b"{")
        await bus.put(POOLS, pool_key("c"), encode(pool(name="c")))
        await eventually(lambda: _has(mirror, "c"))
        assert set(mirror.read()) == {pool_key("a"), pool_key("c")}
        await bus.delete(POOLS, pool_key("a"))
        await bus.put(POOLS, pool_key("d"), encode(pool(name="d")))
        await eventually(lambda: _has(mirror, "d"))
        assert set(mirror.read()) == {pool_key("c"), pool_key("d")}
    finally:
        following.cancel()


async def _has(mirror: PoolMirror, name: str) -> bool:
    return pool_key(name) in mirror.read()
