"""Nodes that must be together: one gang at a time, begun whole, and one failure for all of it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.node_records import NodeRecord
from schemas.placement_settings import PlacementSpec
from schemas.pool_records import LAUNCH_UNITS_MAX, SAGA_UNITS, OpenSaga, PoolRecord
from schemas.settings import PluginSettings, PoolSpec, ProviderChoice, Settings
from services.pool_manager.autoscaling.autoscalers import Composite, PoolMetrics, PoolState, Queue
from services.pool_manager.autoscaling.metrics_sources import WaitingJobs
from services.pool_manager.autoscaling.scaling_decision import decide as decide_size
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.gang_launches import first_part
from services.pool_manager.queries import pool_view
from services.pool_manager.reconciler import saga_params
from services.pool_manager.requests.requested_size import resized
from services.settings.provider_choices import pool_problem
from services.settings.rack_validation import rack_problems

NOW = datetime(2026, 5, 5, 12, tzinfo=UTC)
ZONE = PlacementSpec(together="zone", required=True)
LONG, SHORT = (msgspec.structs.replace(ZONE, gather=Duration(each)) for each in (1200, 5))


def spec(**changes: Any) -> PoolSpec:
    """A pool whose nodes must be in one zone."""
    plain = PoolSpec(
        provider="p", instance_type="t", zones=("a", "b"), min_nodes=0, max_nodes=100,
        placement=ZONE,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def pool(desired: int, **changes: Any) -> PoolRecord:
    """Return the pool's record."""
    plain = PoolRecord(name="training", spec=spec(), desired=desired)
    return msgspec.structs.replace(plain, **changes)


def decide(record: PoolRecord, nodes: int = 0, now: datetime = NOW) -> PoolPlan:
    """Return a decision about a pool with so many healthy nodes."""
    found = [
        NodeRecord(pool="training", node=f"old-{n}", state="active", health="healthy")
        for n in range(nodes)
    ]
    return plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(found)), now)


def gangs(decided: PoolPlan) -> list[tuple[str, int, bool]]:
    """Gang, its size, and whether it is of spares, of each saga that starts."""
    return sorted((each.gang, each.gang_size, each.spare) for each in decided.start.values())


def test_what_is_missing_is_begun_as_one_gang() -> None:
    """All of it in one decision, named by its first node; the launch has its size and time."""
    decided = decide(pool(16))
    first = min(decided.start.values(), key=lambda each: int(each.new_node.split("-")[1])).new_node
    assert gangs(decided) == [(first, 16, False)] * 16
    launch = saga_params("f", decided.record, next(iter(decided.start.values()))).launch
    assert launch is not None
    assert launch.choice is not None
    assert (launch.gang, launch.gang_size, launch.gather_seconds) == (first, 16, 300.0)
    assert (launch.choice.together, launch.choice.required) == ("zone", True)


def test_no_other_gang_is_begun_while_one_is_forming() -> None:
    """A pool that is to grow meanwhile waits; spares wait for the nodes in service."""
    first = decide(pool(4, spec=spec(spares=2))).record
    assert gangs(decide(first)) == []
    grown = msgspec.structs.replace(first, desired=9)
    assert gangs(decide(grown)) == []
    ended = msgspec.structs.replace(grown, open={})
    assert {each[1:] for each in gangs(decide(ended, nodes=4))} == {(5, False)}
    assert {each[1:] for each in gangs(decide(ended, nodes=9))} == {(2, True)}


def test_a_gang_is_begun_only_where_all_of_it_may_be() -> None:
    """A gang needs room among the sagas that one pool may have open."""
    other = OpenSaga(kind="drain", since=NOW)
    most = {f"drain-{n}": other for n in range(LAUNCH_UNITS_MAX // SAGA_UNITS - 1)}
    room = LAUNCH_UNITS_MAX - len(most) * SAGA_UNITS
    assert gangs(decide(pool(room + 1, open=most))) == []
    assert len(gangs(decide(pool(room, open=most)))) == room


def test_pools_without_that_requirement_are_as_before() -> None:
    """Each node is launched by itself, and waits for no other."""
    free = pool(3, spec=spec(placement=PlacementSpec(together="zone")))
    first = decide(free)
    assert gangs(first) == [("", 0, False)] * 3
    assert len(decide(msgspec.structs.replace(first.record, desired=5)).start) == 2


def test_a_gang_that_failed_is_one_failure_and_the_waits_grow() -> None:
    """A gang is one failure however many nodes it has; an exhausted zone shortens no wait."""
    record, waits = pool(3), []
    now = NOW
    for _ in range(9):
        decided = decide(record, now=now)
        record = decided.record
        for number, saga in enumerate(decided.start):
            before = record.failures
            record = close(record, saga, failed=True, now=now, exhausted=True)
            assert record.failures == before + (number == 2)
        assert record.retry_at is not None
        waits.append((record.retry_at - now).total_seconds())
        assert gangs(decide(record, now=record.retry_at - timedelta(seconds=1))) == []
        now = record.retry_at
    assert waits == [30, 60, 120, 240, 480, 960, 1200, 1200, 1200]
    warning = pool_view(record, [], now).warnings
    assert "3 nodes are missing, which must be in one zone" in warning[0]
    assert pool_view(pool(0), [], now).warnings == ()
    asked = resized(record, 3, now - timedelta(seconds=1))
    assert len(decide(asked, now=now - timedelta(seconds=1)).start) == 3, (
        "an operator need not wait"
    )


def test_a_node_of_a_whole_gang_that_does_not_come_up_is_launched_alone() -> None:
    """The others are in service: they are not given back for it."""
    decided = decide(pool(3))
    record = decided.record
    sagas = list(decided.start)
    record = close(record, sagas[0], failed=True, now=NOW)
    for saga in sagas[1:]:
        record = close(record, saga, failed=False, now=NOW)
    assert (record.failures, record.retry_at) == (0, None)
    assert [each[1:] for each in gangs(decide(record, nodes=2))] == [(1, False)]


@pytest.mark.parametrize(
    ("sizes", "missing", "first"),
    [
        ((), 16, 16),
        ((16,), 16, 16),
        # Two jobs of eight: one after the other, so that one runs where there is no room for both.
        ((8, 8), 16, 8),
        ((8, 8), 8, 8),
        # Nodes that lack besides, as for jobs on a single node, come first.
        ((8, 4), 15, 3),
        ((8, 4), 12, 8),
        # Some of the first job's nodes are there already.
        ((8, 4), 6, 2),
        ((8, 4), 3, 3),
    ],
)
def test_a_pool_grows_job_by_job(sizes: tuple[int, ...], missing: int, first: int) -> None:
    """The autoscaler knows of how many nodes the jobs are."""
    assert first_part(sizes, missing) == first
    started = gangs(decide(pool(missing, gangs=sizes)))
    assert [each[1] for each in started] == [first] * first


def test_the_autoscaler_names_the_jobs_that_it_grows_for() -> None:
    """Jobs of several nodes that have room are named; an operator's request names none."""
    waiting = (
        WaitingJobs(nodes=8, count=2),
        WaitingJobs(gpus=8, count=3),
        WaitingJobs(nodes=4),
        WaitingJobs(nodes=90),
    )
    metrics = PoolMetrics(waiting=waiting, busy_nodes=0)
    record = pool(0)
    state = PoolState(
        pool="training", now=NOW, current_nodes=0, ready_nodes=0, min_nodes=0, max_nodes=100,
        metrics=metrics, gpus_per_node=8,
    )  # fmt: skip
    recommended = Queue(options=Queue.Options()).recommend(state)
    assert (recommended.target_nodes, recommended.gangs) == (23, (8, 8, 4))
    options = Composite.Options(autoscalers=({"type": "queue"},))
    several = Composite(options=options, parts=[("queue", Queue(options=Queue.Options()))])
    assert several.recommend(state).gangs == (8, 8, 4)
    change = decide_size(record, 1, recommended, "queue", NOW)
    assert change is not None
    assert change.record.gangs == (8, 8, 4)
    assert resized(change.record, 23, NOW).gangs == ()
    free = msgspec.structs.replace(record, spec=spec(placement=PlacementSpec()))
    change = decide_size(free, 1, recommended, "queue", NOW)
    assert change is not None
    assert change.record.gangs == ()


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({}, None, ""),
        ({"placement": PlacementSpec(together="region", required=True), "zones": ()}, None, ""),
        ({"placement": PlacementSpec(required=True)}, ("placement", "required"), "together"),
        ({"zones": ()}, ("zones",), "name its zones"),
        ({"max_nodes": 201}, ("max_nodes",), "at most 200"),
        ({"placement": LONG}, ("placement", "gather"), "1170s"),
        ({"placement": SHORT}, ("placement", "gather"), "30s"),
        (
            {
                "provider": "",
                "zones": (),
                "providers": (ProviderChoice(name="p", zones=("a",)), ProviderChoice(name="q")),
            },
            ("providers", 1, "zones"),
            "name its zones",
        ),
        ({"strategy": PluginSettings(type="cost")}, None, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_together_is_refused(
    changes: dict[str, Any], place: tuple[str | int, ...] | None, words: str
) -> None:
    """When the configuration is read, with what to write instead."""
    wanted = spec(**changes)
    found = pool_problem(wanted) or next(rack_problems(wanted, Settings()), None)
    if place is None:
        assert found is None
    else:
        assert found is not None
        assert found[0] == place
        assert words in found[1]
