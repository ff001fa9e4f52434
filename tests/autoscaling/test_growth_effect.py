"""A growth that served no job is not repeated for the same jobs."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.pool_records import Growth, PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.autoscaling.autoscalers import PoolMetrics
from services.pool_manager.autoscaling.growth_effect import (
    GRACE,
    UNKNOWN_AFTER,
    AddedNodes,
    is_awaited,
    judged,
    shapes,
    with_growth,
    without_unserved,
)
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.planner.sizing.unserved_jobs import AGAIN_AFTER

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
JOBS = "jobs"


def pool(
    growth: Growth | None = None, unserved: dict[str, int] | None = None, since: datetime = NOW
) -> PoolRecord:
    """Return a pool of three nodes."""
    spec = PoolSpec(min_nodes=0, max_nodes=20, provider="fake", instance_type="x")
    return PoolRecord(
        name="training",
        spec=spec,
        desired=3,
        growth=growth,
        unserved=unserved or {},
        unserved_since=since if unserved else None,
    )


def grew(waiting: int = 2, ago: timedelta = timedelta(minutes=9), nodes: int = 2) -> PoolRecord:
    """Return a pool that has grown for so many jobs."""
    return pool(Growth(at=NOW - ago, nodes=nodes, waiting={JOBS: waiting}))


def pending(count: int) -> PoolMetrics:
    """Return what a source says that counts jobs alone."""
    return PoolMetrics(pending_jobs=count)


def added(count: int = 2, ago: timedelta = GRACE, busiest: float | None = 0.0) -> AddedNodes:
    """Return nodes that have been in service for so long."""
    return AddedNodes(admitted=(NOW - ago,) * count, busiest=busiest)


@pytest.mark.parametrize(
    ("before", "metrics", "nodes", "judges", "unserved"),
    [
        (grew(), pending(2), added(), True, {JOBS: 2}),
        (grew(), pending(3), added(), True, {JOBS: 2}),
        (grew(), pending(2), added(busiest=None), True, {JOBS: 2}),
        (grew(), pending(1), added(), True, {}),
        (grew(), pending(2), added(busiest=40.0), True, {}),
        (grew(), pending(2), added(ago=GRACE - SECOND), False, {}),
        (grew(), pending(2), added(count=1), False, {}),
        (grew(), pending(2), AddedNodes(), False, {}),
        (grew(ago=UNKNOWN_AFTER), pending(2), AddedNodes(), True, {}),
        (grew(), PoolMetrics(), added(), False, {}),
        (pool(unserved={JOBS: 3}), pending(5), AddedNodes(), True, {JOBS: 3}),
        (pool(unserved={JOBS: 3}), pending(1), AddedNodes(), True, {JOBS: 1}),
        (pool(unserved={JOBS: 3}), pending(0), AddedNodes(), True, {}),
        (pool(unserved={JOBS: 3}, since=NOW - AGAIN_AFTER), pending(5), AddedNodes(), True, {}),
    ],
    ids=[
        "all wait beside idle nodes",
        "another one came",
        "use of the nodes unknown",
        "one was served",
        "a node works",
        "not for long enough",
        "a node is missing",
        "no node is there",
        "launches never ended",
        "source silent",
        "they wait on",
        "some have gone",
        "all have gone",
        "tried again",
    ],
)
def test_what_a_growth_has_served(
    before: PoolRecord,
    metrics: PoolMetrics,
    nodes: AddedNodes,
    judges: bool,
    unserved: dict[str, int],
) -> None:
    """Nodes in service and idle for the grace, and no job less, are no help."""
    after = judged(before, metrics, nodes, NOW)
    assert (after.growth is None, after.unserved) == (judges, unserved)
    assert (after.unserved_since is not None) == bool(unserved)


def test_jobs_of_other_shapes_are_grown_for() -> None:
    """Only as many of a shape as were not served are taken from what an autoscaler sees."""
    large, small = WaitingJobs(nodes=4, gpus=8, count=2), WaitingJobs(gpus=1, count=5)
    metrics = PoolMetrics(waiting=(large, small), queue_depth=9)
    assert shapes(metrics) == {"4 x 8 GPUs": 2, "1 x 1 GPUs": 5}
    seen = without_unserved(metrics, {"4 x 8 GPUs": 2, "1 x 1 GPUs": 1})
    assert seen.waiting == (replace(small, count=4),)
    assert (seen.queue_depth, seen.not_for_nodes) == (6, 3)
    assert without_unserved(metrics, {}) is metrics


@pytest.mark.parametrize(
    ("count", "target", "awaited"), [(2, 4, True), (3, 4, False), (1, 4, True), (2, 3, False)]
)
def test_a_growth_is_awaited_while_no_more_jobs_wait(
    count: int, target: int, awaited: bool
) -> None:
    """The nodes for these jobs are on their way, or have just come."""
    assert is_awaited(grew(), pending(count), target) is awaited
    assert not is_awaited(pool(), pending(count), target)


@given(jobs=st.integers(1, 30), rounds=st.integers(1, 40))
def test_jobs_that_never_start_lead_to_one_growth(jobs: int, rounds: int) -> None:
    """The pool has as many nodes as jobs, however often it is looked at."""
    record, now, metrics = pool(), NOW, pending(jobs)
    start = record.desired
    for _ in range(rounds):
        new = AddedNodes(admitted=(now - GRACE,) * (record.desired - start), busiest=0.0)
        record = judged(record, metrics, new, now)
        seen = without_unserved(metrics, record.unserved)
        target = record.desired + (seen.pending_jobs or 0)
        if target > record.desired and not is_awaited(record, metrics, target):
            grown = replace(record, desired=target)
            record = with_growth(grown, record.desired, metrics, now)
        now += timedelta(minutes=6)
    assert record.desired == start + jobs
