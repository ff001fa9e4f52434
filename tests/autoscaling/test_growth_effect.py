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
    not_helped,
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


def added(count: int = 2, ago: timedelta = GRACE, least_busy: float | None = 0.0) -> AddedNodes:
    """Return nodes that have been in service for so long."""
    return AddedNodes(admitted=(NOW - ago,) * count, least_busy=least_busy)


@pytest.mark.parametrize(("size", "unserved"), [(4, {JOBS: 2}), (3, {}), (5, {}), (0, {})])
def test_a_growth_of_which_an_operator_takes_nodes_away_is_judged_by_those_left(
    size: int, unserved: dict[str, int]
) -> None:
    """One of two added nodes stays without work: its jobs are not grown for again."""
    growth = Growth(at=NOW - GRACE - SECOND, nodes=2, waiting={JOBS: 2}, size=size)
    found = judged(pool(growth), pending(2), added(count=1), NOW)
    assert (found.unserved, found.growth is None) == (unserved, bool(unserved))


@pytest.mark.parametrize(
    ("before", "metrics", "nodes", "judges", "unserved"),
    [
        (grew(), pending(2), added(), True, {JOBS: 2}),
        (grew(), pending(3), added(), True, {JOBS: 2}),
        (grew(), pending(2), added(least_busy=None), True, {JOBS: 2}),
        (grew(), pending(1), added(), True, {}),
        (grew(), pending(0), added(ago=GRACE - SECOND), False, {}),
        (grew(), pending(0), added(count=1), True, {}),
        (grew(), pending(2), added(least_busy=40.0), True, {}),
        (grew(), pending(2), added(count=1, least_busy=40.0), False, {}),
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
        "withdrawn beside idle nodes",
        "served before all nodes came",
        "all nodes work",
        "the first of them works",
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
    """Nodes in service, one of them idle for the grace, and no job less, are no help."""
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
        new = AddedNodes(admitted=(now - GRACE,) * (record.desired - start), least_busy=0.0)
        record = judged(record, metrics, new, now)
        seen = without_unserved(metrics, record.unserved)
        target = record.desired + (seen.pending_jobs or 0)
        if target > record.desired and not is_awaited(record, metrics, target):
            grown = replace(record, desired=target)
            record = with_growth(grown, record.desired, metrics, now)
        now += timedelta(minutes=6)
    assert record.desired == start + jobs


@given(
    comes=st.lists(st.booleans(), min_size=1, max_size=40),
    jobs=st.integers(1, 6),
    minutes=st.integers(1, 12),
)
def test_jobs_that_come_and_go_lead_to_one_growth(
    comes: list[bool], jobs: int, minutes: int
) -> None:
    """Nodes without work are left of the last time; six hours pass before they are tried again."""
    record, now = pool(), NOW
    start, grown_at = record.desired, NOW
    for waits in comes[: int(AGAIN_AFTER / timedelta(minutes=minutes))]:
        metrics = pending(jobs if waits else 0)
        new = AddedNodes(
            admitted=(grown_at,) * (record.growth.nodes if record.growth else 0),
            least_busy=0.0,
            idle=record.desired - start,
        )
        record = judged(record, metrics, new, now)
        seen = without_unserved(metrics, not_helped(record, metrics, new.idle))
        target = record.desired + (seen.pending_jobs or 0)
        if target > record.desired and not is_awaited(record, metrics, target):
            record = with_growth(replace(record, desired=target), record.desired, metrics, now)
            grown_at = now
        now += timedelta(minutes=minutes)
    assert record.desired <= start + jobs


@pytest.mark.parametrize(
    ("counts", "idle", "expected"),
    [
        ([3, 0, 3], 3, {JOBS: 3}),
        ([3, 0, 3], 1, {JOBS: 1}),
        ([3, 1, 3], 3, {JOBS: 3}),
        ([3, 1, 0, 5], 9, {JOBS: 3}),
        ([3, 2], 3, {JOBS: 2}),
        ([3, 0, 3], 0, {}),
        ([3, 1, 3], 0, {JOBS: 1}),
    ],
    ids=[
        "all come again",
        "one node is left",
        "some do",
        "more come",
        "they wait on",
        "nodes work",
        "nodes work now",
    ],
)
def test_jobs_that_come_again_have_the_nodes_without_work(
    counts: list[int], idle: int, expected: dict[str, int]
) -> None:
    """Once every node has work, what comes is grown for like any other job."""
    record = pool(unserved={JOBS: counts[0]})
    for count in counts:
        record = judged(record, pending(count), AddedNodes(idle=idle), NOW)
    assert not_helped(record, pending(counts[-1]), idle) == expected
    working = judged(record, pending(counts[-1]), AddedNodes(), NOW)
    assert not_helped(working, pending(counts[-1]), 0) == record.unserved
    later = judged(record, pending(counts[-1]), AddedNodes(idle=idle), NOW + AGAIN_AFTER)
    assert not_helped(later, pending(counts[-1]), idle) == {}
