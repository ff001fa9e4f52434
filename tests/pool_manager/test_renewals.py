"""Healthy nodes are replaced for their age when that disturbs least, and a few at a time."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.breaker_state import Breaker
from schemas.duration import Duration
from schemas.fault_signature import EXPIRED
from schemas.node_records import CloudNotice, GpuUse, NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, PoolSpec, WindowSpec
from services.pool_manager.planner.node_counts import unavailable
from services.pool_manager.planner.pool_planner import (
    RENEW_AGAIN_SECONDS,
    RETRY_FIRST_SECONDS,
    close,
    plan,
)
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediation import renewals
from services.pool_manager.planner.remediation.recovered_nodes import is_for_silence, unfounded
from services.pool_manager.planner.safety.breaker import Ended
from services.pool_manager.queries import pool_view
from services.settings.pool_validation import own_problems
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec
from tests.support.explained import renewal_wait

DAY = timedelta(days=1)
EXPIRE = Duration(30 * 86_400)
BUSY = NodeUse(gpus=GpuUse(busy=True, since=NOW - DAY))
IDLE = NodeUse(gpus=GpuUse(busy=False, since=NOW - DAY), work="none")
WAITS = replace(IDLE, work="runs")
UNASKED = replace(IDLE, work="unknown")
RESTED = NodeUse(gpus=GpuUse(busy=False, since=NOW - timedelta(minutes=4)), work="none")
SERVICE = WindowSpec(name="now", kind="service", start="0 12 * * *", duration=Duration(3600))
TONIGHT = WindowSpec(name="night", kind="service", start="0 22 * * *", duration=Duration(3600))
FROZEN = WindowSpec(name="week", kind="freeze", start="0 12 * * *", duration=Duration(3600))
HELD: dict[str, Any] = {"held_until": NOW + DAY, "held_reason": "fans"}
RETIRES = CloudNotice(effect="retire", deadline=NOW + 9 * DAY, at=NOW)
MANUAL = HealthSpec(auto_replace=False)
OLD, GROWN, YOUNG = 31, 29.99, 26
"""Days: `expire_after` is over, nine tenths and the node's own moment are, and neither is."""


def aged(name: str, days: float, **changes: Any) -> NodeRecord:
    """A node that has been in service for so many days."""
    return node(name, **{"admitted_at": NOW - days * DAY, **changes})


def decided(
    *nodes: NodeRecord, use: NodeUse | None = None, record: PoolRecord | None = None, **spec_: Any
) -> PoolPlan:
    """Return the plan of a pool of these nodes."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements="unlimited")
    wanted = sum(not each.spare for each in nodes)
    plain = pool(wanted, spec=spec(**{"budget": budget, "expire_after": EXPIRE, **spec_}))
    record = msgspec.structs.replace(record or plain, spec=plain.spec, desired=wanted)
    found = snapshot(record, *nodes)
    used = {each.node: use for each in nodes} if use else None
    return plan(replace(found, use=used), NOW)


def replaced(found: PoolPlan) -> list[str]:
    """The nodes that are replaced now."""
    return sorted(each.node for each in found.start.values() if each.kind == "replace")


@pytest.mark.parametrize(
    ("case", "use", "changes", "leaves"),
    [
        (aged("a", OLD), None, {}, True),
        (aged("a", OLD), BUSY, {}, True),
        (aged("a", GROWN), None, {}, False),
        (aged("a", GROWN), BUSY, {}, False),
        (aged("a", GROWN), RESTED, {}, False),
        (aged("a", GROWN), WAITS, {}, False),
        (aged("a", GROWN), UNASKED, {}, False),
        (aged("a", GROWN), IDLE, {}, True),
        (aged("a", GROWN, gangs=("4711",)), IDLE, {}, False),
        (aged("a", YOUNG), IDLE, {}, False),
        (aged("a", GROWN), BUSY, {"windows": (SERVICE,)}, True),
        (aged("a", OLD), IDLE, {"windows": (TONIGHT,)}, False),
        (aged("a", OLD), IDLE, {"windows": (FROZEN,)}, False),
        (aged("a", OLD), IDLE, {"expire_after": Duration(0)}, False),
        (aged("a", OLD), IDLE, {"health": MANUAL}, False),
        (aged("a", OLD, **HELD), IDLE, {}, False),
        (aged("a", OLD, cordoned=True), IDLE, {"budget": BudgetSpec(max_unavailable=4)}, False),
        (aged("a", OLD, notices={"n": RETIRES}), BUSY, {}, False),
        (aged("a", OLD, state="registered"), IDLE, {}, False),
        (aged("a", OLD, admitted_at=None), IDLE, {}, False),
        (aged("a", OLD, lost=True, lost_at=NOW), IDLE, {}, False),
        (aged("a", OLD, health="degraded", health_at=NOW), IDLE, {}, True),
        (aged("a", OLD, spare=True, cordoned=True), None, {"spares": 1}, True),
    ],
)
def test_it_leaves_when_that_disturbs_least(
    case: NodeRecord, use: NodeUse | None, changes: dict[str, Any], leaves: bool
) -> None:
    """Once without work, or in a window; at last with its work; a held or cordoned node stays."""
    others = [aged(f"n{number}", 1) for number in range(9)]
    assert (replaced(decided(case, *others, use=use, **changes)) == ["a"]) is leaves


@pytest.mark.parametrize(
    ("budget", "count"),
    [
        (BudgetSpec(max_unavailable=1, max_replacements="unlimited"), 1),
        (BudgetSpec(max_unavailable=2, max_replacements="unlimited"), 1),
        (BudgetSpec(max_unavailable=5, max_replacements="unlimited"), 3),
        (BudgetSpec(max_unavailable=5, max_replacements=3), 2),
        (BudgetSpec(max_unavailable=0, max_replacements="unlimited"), 0),
    ],
)
def test_half_of_the_budget_is_left_to_unhealthy_nodes(budget: BudgetSpec, count: int) -> None:
    """No unhealthy node waits for what could wait, and no breaker opens for it."""
    found = decided(*(aged(f"a{number}", OLD) for number in range(10)), budget=budget)
    assert len(replaced(found)) == count
    assert (found.record.breaker.state, found.events) == ("closed", ())


def test_unhealthy_nodes_go_first() -> None:
    """Nothing else begins beyond half of the level while one of them waits or is repaired."""
    bad = aged("bad", OLD, health="unhealthy", health_at=NOW, health_kind="xid", health_code=79)
    others = [aged(f"a{number}", OLD) for number in range(9)]
    assert replaced(decided(bad, *others)) == ["bad"]


@pytest.mark.parametrize(
    "record",
    [
        pool(1, breaker=Breaker(state="open", since=NOW, cause="rate")),
        pool(1, failures=1, retry_at=NOW + DAY),
        pool(1, renew_at=NOW + timedelta(seconds=1)),
        pool(1, cordon_at=NOW + DAY, refused_cordons=1),
        pool(1, removing="request"),
    ],
)
def test_nothing_begins_while_something_is_wrong(record: PoolRecord) -> None:
    """Launches that fail, a workload system that refuses, an open breaker."""
    found = decided(aged("a", OLD), aged("b", OLD), use=IDLE, record=record)
    assert replaced(found) == []


def test_the_saga_says_why_and_returns_the_node_if_it_fails() -> None:
    """A renewal is for no fault: the hardware is not remembered, and no heartbeat ends it."""
    found = decided(aged("a", OLD))
    [(saga, opened)] = found.start.items()
    assert found.record.open[saga] == opened
    assert opened.reason == (
        "expired: in service since 2025-12-01 12:00 UTC, and expire_after is 720h"
    )
    assert (opened.fault_signature, opened.action, opened.restores_service) == (
        *(EXPIRED, "none"),
        True,
    )
    assert not is_for_silence(opened.kind, opened)
    assert unfounded(opened.kind, opened, aged("a", OLD)) == ""


@pytest.mark.parametrize(("how", "waits"), [("failed", True), ("cancelled", True), ("done", False)])
def test_after_a_failure_the_next_one_waits(how: Ended, waits: bool) -> None:
    """A healthy node was cordoned for nothing: it is not tried again at once."""
    opened = OpenSaga(kind="replace", node="a", new_node="b", since=NOW, fault_signature=EXPIRED)
    before = pool(1, open={"s": opened})
    record = close(before, "s", failed=how == "failed", how=how, now=NOW)
    again = NOW + timedelta(seconds=RENEW_AGAIN_SECONDS)
    assert record.renew_at == (again if waits else None)


@pytest.mark.parametrize(
    ("changes", "minutes", "again_minutes"),
    [
        ({"replace_order": "provision_first"}, 20, 10),
        ({"replace_order": "provision_first"}, 40, RETRY_FIRST_SECONDS / 60),
        ({"replace_order": "provision_first", "provision_first_for": Duration(0)}, 20, 60),
        ({"replace_order": "provision_first", "provision_first_for": Duration(9000)}, 20, 60),
        ({"replace_order": "terminate_first"}, 20, 60),
    ],
    ids=["in time", "at once", "never", "an hour at most", "it goes first already"],
)
def test_the_next_try_is_at_the_time_when_the_old_node_goes_first(
    changes: dict[str, Any], minutes: float, again_minutes: float
) -> None:
    """A node of a `provision_first` pool makes room once it has found none for so long."""
    since = NOW - timedelta(minutes=minutes)
    opened = OpenSaga(kind="replace", node="a", new_node="b", since=since, fault_signature=EXPIRED)
    before = pool(1, spec=spec(**changes), open={"s": opened})
    record = close(before, "s", failed=True, how="failed", exhausted=True, now=NOW)
    assert record.renew_at == NOW + timedelta(minutes=again_minutes)


def test_spares_are_renewed_first_and_one_at_a_time() -> None:
    """Spares count against no budget; an old one would take an old node's place."""
    spares = [aged(f"s{number}", OLD, spare=True, cordoned=True) for number in range(3)]
    found = decided(*spares, aged("a", OLD), aged("b", OLD), spares=3)
    [renewed, serving] = found.start.values()
    assert renewed.node in {"s0", "s1", "s2"}
    assert renewed.spare
    assert not renewed.restores_service
    assert serving.node in {"a", "b"}
    assert not serving.restores_service
    assert serving.promotes in {"s0", "s1", "s2"} - {renewed.node}


def test_a_spare_that_goes_into_service_is_not_renewed_with_it() -> None:
    """The spare is due as well, but the node whose place it takes is later by far."""
    reserve = aged("s", OLD, spare=True, cordoned=True)
    [replacing] = decided(reserve, aged("a", OLD + 9), spares=1).start.values()
    assert (replacing.node, replacing.promotes) == ("a", "s")


@pytest.mark.parametrize(("days", "first"), [(OLD, "s"), (OLD + 1, "s"), (OLD + 9, "a")])
def test_spares_leave_something_of_a_small_rate(days: float, first: str) -> None:
    """A spare goes before nodes of its age, and a node that is late by far before young spares."""
    reserve = aged("s", OLD, spare=True, cordoned=True)
    small = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements=1)
    assert replaced(decided(reserve, aged("a", days), spares=1, budget=small)) == [first]


def test_nodes_of_one_age_leave_at_moments_of_their_own() -> None:
    """Spread over a tenth of the time, and woken for."""
    nodes = [node(f"training-{number}-00aa") for number in range(200)]
    record = pool(200, spec=spec(expire_after=EXPIRE))
    moments = sorted(
        at for each in nodes if (at := renewals.next_moment(snapshot(record, each), record, NOW))
    )
    assert NOW + 27 * DAY <= moments[0] < moments[-1] <= NOW + 30 * DAY
    thirds = [sum(at < NOW + days * DAY for at in moments) for days in (28, 29)]
    assert 40 < thirds[0] < 95
    assert 110 < thirds[1] < 165
    assert renewals.next_moment(snapshot(record, *nodes), record, NOW) == moments[0]
    assert plan(snapshot(record, *nodes), NOW).wake_at == moments[0]


def test_of_very_many_the_use_of_others_is_asked_each_minute() -> None:
    """The hundred that always work do not keep all others from leaving."""
    record = pool(250, spec=spec(expire_after=EXPIRE))
    found = snapshot(record, *(aged(f"a{number:03}", OLD) for number in range(250)))
    asked = [renewals.asked_about(found, NOW + timedelta(minutes=each)) for each in range(5)]
    assert {len(each) for each in asked} == {100}
    assert {name for each in asked for name in each} == {f"a{number:03}" for number in range(250)}
    assert renewals.asked_about(snapshot(pool(1), aged("a", OLD)), NOW) == []


def test_why_and_status_say_it() -> None:
    """An operator reads since when, until when, and how to do it at once."""
    record = pool(1, spec=spec(expire_after=EXPIRE))
    grown = aged("a", GROWN)
    at: datetime = NOW - GROWN * DAY + 30 * DAY
    line = renewal_wait(grown, record, NOW)
    assert f"once it has no work, at {at.astimezone():%m-%d %H:%M:%S} at last" in line
    assert line.endswith("navarch replace a")
    assert "is held until" in renewal_wait(aged("a", OLD, **HELD), record, NOW)
    assert renewal_wait(aged("a", YOUNG), record, NOW) == ""
    nodes = (grown, aged("b", OLD), aged("c", YOUNG))
    assert pool_view(record, nodes, NOW).to_renew == 2


def test_observe_mode_only_says_it() -> None:
    """The pool says it once."""
    found = decided(aged("a", OLD), mode="observe")
    assert (found.start, [each.kind for each in found.events]) == ({}, ["replace"])
    [would] = found.record.observed_actions.values()
    assert (would.node, would.cause) == ("a", EXPIRED)


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        ({"expire_after": EXPIRE, "drift": "replace"}, "", ""),
        ({"drift": "report", "driver_version": "570.1", "health": MANUAL}, "", ""),
        ({"expire_after": Duration(3600)}, "expire_after", "less than drain_timeout and launch"),
        ({"expire_after": EXPIRE, "health": MANUAL}, "expire_after", "auto_replace is false"),
        ({"drift": "replace", "health": MANUAL}, "drift", "auto_replace is false"),
        ({"driver_version": "570.1"}, "driver_version", "compared only with `drift: report`"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], place: str, problem: str) -> None:
    """The problem names its place in the configuration."""
    found = list(own_problems(msgspec.structs.replace(PoolSpec(**_PLAIN), **changes)))
    assert [key for (key,), _ in found] == [place] * bool(place)
    assert all(problem in text for _, text in found)


_PLAIN: dict[str, Any] = {"provider": "p", "instance_type": "t", "min_nodes": 0, "max_nodes": 3}

ages = st.lists(st.floats(0, 60), min_size=1, max_size=12)


@given(ages=ages, level=st.integers(0, 6), rate=st.integers(0, 6), busy=st.booleans())
def test_never_more_at_once_than_half_of_the_budget(
    ages: list[float], level: int, rate: int, busy: bool
) -> None:
    """The age of the nodes changes nothing; decided again and again, nothing more begins."""
    nodes = tuple(aged(f"a{number}", days) for number, days in enumerate(ages))
    budget = BudgetSpec(max_quarantined=0, max_unavailable=level, max_replacements=rate)
    record = pool(len(nodes), spec=spec(expire_after=EXPIRE, budget=budget))
    use = {each.node: BUSY if busy else IDLE for each in nodes}
    for _ in range(3):
        found: PoolSnapshot = replace(snapshot(record, *nodes), use=use)
        record = plan(found, NOW).record
        out = unavailable(record, found.nodes)
        assert out <= -(-level // 2)
        assert sum(record.voluntary.values()) <= -(-rate // 2)
        assert not record.disruptions
        assert all(each.fault_signature == EXPIRED for each in record.open.values())
