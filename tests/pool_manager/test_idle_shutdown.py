"""Nodes leave that have had no work for long, where their agents and the workload system agree."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.autoscaling_advice import AutoscalingAdvice
from schemas.duration import Duration
from schemas.node_records import CloudNotice, GpuUse, NodeRecord, WorkloadView
from schemas.pool_events import Scaled
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import PluginSettings, PoolSpec, Settings, WindowSpec
from services.operator_text.advice_text import advice_sentence
from services.pool_manager.planner.node_counts import Nodes, size
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolPlan, Rest
from services.pool_manager.planner.sizing import idle_shutdown
from services.settings.pool_validation import idle_source_problem, own_problems
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

MINUTE = timedelta(minutes=1)
HALF_HOUR = Duration(1800)
FROZEN = WindowSpec(name="week", kind="freeze", start="0 12 * * *", duration=Duration(3600))
NIGHT = WindowSpec(name="night", kind="freeze", start="0 22 * * *", duration=Duration(3600))
OLD = NOW - timedelta(days=1)


def old(name: str, **changes: Any) -> NodeRecord:
    """A node that has been in service for a day."""
    return node(name, **{"admitted_at": OLD, **changes})


def idle_pool(desired: int, **changes: Any) -> PoolRecord:
    """A pool whose idle nodes leave after half an hour."""
    return pool(desired, spec=spec(**{"idle_after": HALF_HOUR, **changes}))


def used(*, busy: bool = False, minutes: float = 60, dollars: float = 0.0) -> NodeUse:
    """GPUs that are in use, or rest, since so many minutes ago."""
    use = GpuUse(busy=busy, since=NOW - minutes * MINUTE)
    return NodeUse(gpus=use, dollars_per_hour=dollars)


def decided(record: PoolRecord, *nodes: NodeRecord, dollars: Mapping[str, float] = {}) -> PoolPlan:
    """The plan where every node has been idle for an hour."""
    known = {each.node: Rest(NOW - 60 * MINUTE, NOW, dollars.get(each.node, 0.0)) for each in nodes}
    return plan(replace(snapshot(record, *nodes), idle=known), NOW)


def leaving(found: PoolPlan) -> list[str]:
    """The nodes that begin to leave."""
    return [each.node for each in found.start.values() if each.kind == "scale-down"]


TAKEN = CloudNotice(effect="reclaim", deadline=NOW + MINUTE, at=NOW)


@pytest.mark.parametrize(
    ("case", "changes", "leaves"),
    [
        (old("a"), {}, True),
        (old("a", health="degraded", health_at=NOW), {}, True),
        (old("a"), {"idle_after": Duration(0)}, False),
        (old("a"), {"windows": (FROZEN,)}, False),
        (old("a"), {"windows": (NIGHT,)}, True),
        (old("a"), {"min_nodes": 2}, False),
        (old("a", cordoned=True), {}, False),
        (old("a", held_until=NOW + MINUTE, held_reason="fans"), {}, False),
        (old("a", lost=True, lost_at=NOW), {}, False),
        (old("a", health="unknown"), {}, False),
        (old("a", admitted_at=NOW - 29 * MINUTE), {}, False),
        (old("a", state="registered"), {}, False),
        (old("a", workload=WorkloadView(system="slurm", cordoned=True)), {}, False),
        (old("a", notices={"n": TAKEN}), {"budget": spec().budget}, False),
    ],
)
def test_only_what_nothing_else_concerns_leaves(
    case: NodeRecord, changes: dict[str, Any], leaves: bool
) -> None:
    """No cordoned, held, silent or young node, none in a freeze window, none below min_nodes."""
    found = decided(idle_pool(2, **changes), case, old("b", cordoned=True))
    assert (leaving(found) == ["a"]) is leaves


def test_the_pool_is_smaller_and_no_work_is_ended() -> None:
    """The size falls in the same write, so that nothing is launched instead; a new job stays."""
    found = decided(idle_pool(3), old("a"), old("b"), old("c"), dollars={"b": 9.0})
    assert leaving(found) == ["b", "a", "c"]
    assert (found.record.desired, size(found.record, Nodes([old(n) for n in "abc"]))) == (0, 0)
    assert {each.drain for each in found.start.values()} == {"wait"}
    [event] = found.events
    assert isinstance(event, Scaled)
    assert (event.previous, event.nodes) == (3, 0)
    assert event.reason == "3 nodes have had no work for 30m (idle_after)"
    assert "no work since 2026-01-01 11:00 UTC" in found.start["scale-down-a-1"].reason
    again = replace(snapshot(found.record, *(old(n) for n in "abc")), idle={"a": Rest(OLD, NOW)})
    assert plan(again, NOW).start == {}


@pytest.mark.parametrize(("seconds", "leaves"), [(59, True), (61, False)])
def test_a_process_that_stalled_acts_on_nothing_old(seconds: float, leaves: bool) -> None:
    """Work may have begun since it asked."""
    rest = Rest(OLD, NOW - timedelta(seconds=seconds))
    found = plan(replace(snapshot(idle_pool(1), old("a")), idle={"a": rest}), NOW)
    assert (leaving(found) == ["a"]) is leaves


def test_min_nodes_and_the_floor_of_on_demand_nodes_are_kept() -> None:
    """The most expensive leave first, but those that must be on demand."""
    mixed = {"market": "spot", "on_demand_min": 1, "min_nodes": 1}
    nodes = (old("a", market="on-demand"), old("b", market="spot"), old("c", market="spot"))
    found = decided(idle_pool(3, **mixed), *nodes, dollars={"a": 30.0})
    assert (leaving(found), found.record.desired) == (["b", "c"], 1)
    assert leaving(decided(idle_pool(3, min_nodes=2), *nodes)) == ["a"]


def test_a_missing_node_is_not_launched_for_an_idle_one() -> None:
    """A missing node stays missing, and the idle node leaves."""
    opened = {"scale-up-n": OpenSaga(kind="scale-up", new_node="n", since=NOW)}
    record = msgspec.structs.replace(idle_pool(2), open=opened)
    found = decided(record, old("a"))
    assert (leaving(found), found.record.desired) == (["a"], 1)


def test_observe_mode_only_says_it() -> None:
    """The size stays."""
    found = decided(idle_pool(1, mode="observe"), old("a"))
    assert (found.start, found.record.desired) == ({}, 1)
    assert [each.kind for each in found.events] == ["scale-down"]


@pytest.mark.parametrize(
    ("use", "idle", "before", "since"),
    [
        (used(), True, None, NOW),
        (used(), True, 20, NOW - 20 * MINUTE),
        (used(minutes=5), True, 20, NOW - 5 * MINUTE),
        (used(busy=True), True, 20, None),
        (used(), False, 20, None),
        (NodeUse(), True, 20, None),
    ],
)
def test_both_must_say_so_all_the_time(
    use: NodeUse, idle: bool, before: float | None, since: datetime | None
) -> None:
    """Where either says that there is work, or nothing, the time begins again."""
    known = {"a": Rest(NOW - before * MINUTE, NOW)} if before is not None else {}
    found = idle_shutdown.rests(known, {"a": use}, {"a"} if idle else set(), NOW)
    assert (found["a"].since if "a" in found else None) == since


looks = st.lists(
    st.tuples(st.integers(10, 900), st.sampled_from(["idle", "busy", "unknown"]), st.booleans()),
    max_size=40,
)


@given(looks=looks)
def test_nothing_leaves_without_a_whole_time_of_agreement(
    looks: list[tuple[int, str, bool]],
) -> None:
    """Each look within the time found no work, whatever either source said before."""
    record, known, now = idle_pool(1), dict[str, Rest](), NOW
    quiet: list[tuple[datetime, bool]] = []
    rests_since = NOW
    for seconds, telemetry, idle in looks:
        now += timedelta(seconds=seconds)
        rests_since = rests_since if telemetry == "idle" else now
        gpus = {
            "idle": GpuUse(busy=False, since=rests_since),
            "busy": GpuUse(busy=True, since=now),
            "unknown": None,
        }[telemetry]
        names: Collection[str] = {"a"} if idle else ()
        known = idle_shutdown.rests(known, {"a": NodeUse(gpus=gpus)}, names, now)
        quiet.append((now, telemetry == "idle" and idle))
        if "a" in idle_shutdown.due(record, known, now):
            whole = [agreed for at, agreed in quiet if now - at <= timedelta(seconds=1800)]
            assert all(whole)
            assert now - quiet[0][0] >= timedelta(seconds=1800)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"idle_after": HALF_HOUR}, ""),
        ({"idle_after": Duration(30)}, "write 1m or more"),
        ({"idle_after": HALF_HOUR, "autoscaling": {"type": "queue"}}, "excludes `autoscaling`"),
        ({"idle_after": HALF_HOUR, "workload_names": "n-[1-3]"}, "excludes `workload_names`"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], problem: str) -> None:
    """The refusal has the place in the configuration."""
    plain = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=3)
    found = list(own_problems(msgspec.structs.replace(plain, **changes)))
    assert [place for place, _ in found] == [("idle_after",)] * bool(problem)
    assert all(problem in text for _, text in found)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("noop", False), ("slurm", False), ("kubernetes", False), ("ray", False), ("webhook", True)],
)
def test_a_workload_system_that_never_says_it_is_refused(kind: str, wrong: bool) -> None:
    """Nothing would ever leave; without any workload system the agents' word is enough."""
    settings = Settings(notifier=PluginSettings(type=kind))
    found = idle_source_problem(spec(idle_after=HALF_HOUR), settings)
    assert (found is not None) is wrong
    assert idle_source_problem(spec(), settings) is None


def test_why_says_that_it_is_not_known() -> None:
    """The sentence also says that nothing leaves while idleness is unknown."""
    advice = AutoscalingAdvice(
        autoscaler="idle_after", limited_by="source", since=NOW, detail="slurm: no route"
    )
    assert "has not been known since" in advice_sentence(advice)
    assert advice_sentence(advice).endswith("slurm: no route; such nodes stay.")
