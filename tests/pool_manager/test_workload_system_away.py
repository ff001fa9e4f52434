"""While the workload system does not cordon: what waits for it, and what does not."""

import dataclasses
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.node_records import CloudNotice, NodeRecord, RemediationAttempt
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_params import SagaParams
from schemas.settings import BudgetSpec, FleetBudgetSpec
from services.pool_manager.planner.disruption_budget import Others
from services.pool_manager.planner.node_counts import is_down
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan
from services.pool_manager.planner.remediator import Ladder
from services.pool_manager.planner.safety.fault_waves import fault_signature
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import HASTY_CORDON_SECONDS
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

LATER = NOW + timedelta(minutes=10)
UNFIT = {"health": "unhealthy", "health_at": NOW, "health_kind": "xid", "health_code": 95}
SILENT = {"lost": True, "lost_at": NOW - timedelta(hours=1), "provider_state": "present"}
DOWN = {**SILENT, "down_reason": "its provider lists it as stopped"}
GONE = {**SILENT, "provider_state": "gone"}


def waiting(refused: int = 1, **changes: Any) -> PoolRecord:
    """A pool of ten whose last cordon was not carried out."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable=3, max_replacements="unlimited")
    made = pool(10, spec=spec(budget=budget), refused_cordons=refused, cordon_at=LATER)
    return msgspec.structs.replace(made, **changes)


def ten(*first: NodeRecord) -> tuple[NodeRecord, ...]:
    """Ten nodes, of which these are some."""
    return (*first, *(node(f"n{number}") for number in range(10 - len(first))))


def begun(record: PoolRecord, *nodes: NodeRecord) -> list[tuple[str, str]]:
    """Return what is begun, by kind and node."""
    decided = plan(snapshot(record, *nodes), NOW)
    return sorted((each.kind, each.node) for each in decided.start.values())


def test_what_needs_a_cordon_waits_and_the_breaker_says_why() -> None:
    """The wait lasts until the next try; then one node is tried first."""
    decided = plan(snapshot(waiting(), *ten(node("a", **UNFIT))), NOW)
    assert decided.start == {}
    assert (decided.record.breaker.cause, decided.wake_at) == ("workload-system", LATER)
    assert "the workload system" in decided.record.breaker.reason
    probed = plan(snapshot(decided.record, *ten(node("a", **UNFIT))), LATER)
    assert [(each.kind, each.node) for each in probed.start.values()] == [("replace", "a")]
    assert probed.record.breaker.state == "half-open"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ((node("a", **GONE), node("b", **UNFIT)), [("replace", "a")]),
        ((node("a", **DOWN), node("b", **UNFIT)), [("replace", "a")]),
        ((node("a", **SILENT),), []),
        (tuple(node(f"d{n}", **DOWN) for n in range(5)), [("replace", f"d{n}") for n in range(3)]),
    ],
)
def test_what_has_no_work_does_not_wait(
    nodes: tuple[NodeRecord, ...], expected: list[tuple[str, str]]
) -> None:
    """Gone nodes go at once; those that do not run, as many at a time as the budget allows."""
    assert begun(waiting(), *ten(*nodes)) == expected


def test_a_surplus_waits_and_a_gap_does_not() -> None:
    """A launch needs no cordon."""
    assert begun(waiting(desired=9), *ten()) == []
    assert begun(waiting(desired=11), *ten()) == [("scale-up", "")]


def test_a_node_that_does_not_run_is_no_riddle() -> None:
    """The node is in no incident, and its saga waits for no answer; heard again, it is not down."""
    assert fault_signature(node("a", **DOWN)) == ""
    assert fault_signature(node("a", **SILENT)) == "silence"
    decided = plan(snapshot(pool(10), *ten(node("a", **DOWN))), NOW)
    [opened] = decided.start.values()
    assert (opened.drain, opened.dead, opened.gone) == ("immediate", True, False)
    assert "lists it as stopped" in opened.reason
    assert not is_down(node("a", **{**DOWN, "lost": False}))


@pytest.mark.parametrize(
    ("params", "hasty"),
    [({}, False), ({"dead": True}, True), ({"order": "launch_ahead"}, True)],
)
def test_no_answer_is_waited_for_where_no_work_is_left_or_the_cloud_takes_it(
    params: dict[str, Any], hasty: bool
) -> None:
    """The saga goes on without the cordon."""
    for service in (False, True):
        about = SagaParams(pool="p", node="n", restores_service=service, **params)
        cordon = DEFINITIONS["replace"].steps(about)[0]
        assert (cordon.deadline_seconds(about) == HASTY_CORDON_SECONDS) is hasty
        assert (cordon.on_deadline == "proceed", cordon.undo) == (hasty, service)


@pytest.mark.parametrize(
    ("params", "goes_on"),
    [
        ({"gone": True}, True),
        ({}, False),
        ({"gone": True, "spare": True, "promotes": "s"}, False),
        ({"gone": True, "diagnostic": "dcgm"}, False),
    ],
)
def test_a_refusal_ends_no_replacement_of_a_node_that_is_gone(
    params: dict[str, Any], goes_on: bool
) -> None:
    """Unless its launch needs the workload system as well, and would fail after it."""
    for order in ("terminate_first", "provision_first"):
        about = SagaParams(pool="p", node="n", dead=True, order=order, **params)
        steps = {each.name: each.on_failure for each in DEFINITIONS["replace"].steps(about)}
        expected = "proceed" if goes_on else "fail"
        assert (steps["cordon"], steps["drain"]) == (expected, expected)
        assert steps["terminate"] == "fail"


def test_a_saga_that_ends_at_its_cordon_is_no_failed_launch() -> None:
    """The failed saga makes the next cordon wait, longer each time, until one is carried out."""
    opened = {f"s{n}": OpenSaga(kind="replace", node=f"n{n}", since=NOW) for n in range(3)}
    record = pool(3, open=opened, failures=2, retry_at=NOW)
    ended = record
    for saga in ("s0", "s1"):
        ended = close(ended, saga, failed=True, how="failed", now=NOW, at_cordon=True)
    assert (ended.refused_cordons, ended.failures, ended.retry_at) == (2, 2, NOW)
    assert ended.cordon_at == NOW + timedelta(seconds=4)
    done = close(ended, "s2", failed=False, how="done", now=NOW)
    assert (done.refused_cordons, done.cordon_at) == (0, None)


@pytest.mark.parametrize(
    ("found", "at_cordon", "slots"),
    [
        ({}, True, ("disruptions", "fleet_disruptions")),
        ({"health_action": "reset_gpu"}, True, ("resets", "fleet_resets")),
        ({}, False, ()),
    ],
)
def test_a_saga_that_the_workload_system_refused_spends_no_rate(
    found: dict[str, Any], at_cordon: bool, slots: tuple[str, ...]
) -> None:
    """The saga disrupted nothing: an outage of an hour would hold all repairs for another one."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable=3, max_replacements=3)
    others = Others(spec=FleetBudgetSpec(), desired=90)
    nodes = ten(node("a", **UNFIT, **found))
    record, now = pool(10, spec=spec(budget=budget)), NOW

    def planned() -> PoolPlan:
        seen = snapshot(record, *nodes)
        ladder = Ladder(options=Ladder.Options())
        return plan(dataclasses.replace(seen, others=others, remediator=ladder), now)

    for tried in range(1, 6 if at_cordon else 3):
        decided = planned()
        assert len(decided.start) == 1, f"after {tried - 1} refusals"
        saga = next(iter(decided.start))
        now += timedelta(seconds=5)
        record = close(
            decided.record, saga, failed=True, how="failed", now=now, at_cordon=at_cordon
        )
        for name in ("disruptions", "fleet_disruptions", "resets", "fleet_resets"):
            spent = sum(getattr(record, name).values())
            assert spent == (0 if at_cordon else tried * name.endswith("disruptions")), name
        now = record.cordon_at or record.retry_at or now
    begun_again = planned().record
    assert [sum(getattr(begun_again, name).values()) for name in slots] == [1] * len(slots)


def test_what_an_operator_or_a_gap_began_gives_no_rate_back() -> None:
    """Sagas that the rates never counted take nothing off them."""
    counted = {str(int(NOW.timestamp() // 60) * 60): 2}
    opened = {"s": OpenSaga(kind="replace", node="n1", since=NOW, by="anna")}
    record = pool(3, open=opened, disruptions=counted, fleet_disruptions=counted)
    ended = close(record, "s", failed=True, how="failed", now=NOW, at_cordon=True)
    assert (ended.disruptions, ended.fleet_disruptions) == (counted, counted)


URGENT = {
    "notices": {"c": CloudNotice(kind="preemption", effect="reclaim", deadline=LATER, at=NOW)}
}
RESTART = {"notices": {"c": CloudNotice(kind="maintenance", effect="reboot", deadline=NOW, at=NOW)}}


@pytest.mark.parametrize(
    ("found", "kind"),
    [(GONE, "replace"), (DOWN, "replace"), (URGENT, "replace"), (RESTART, "drain")],
)
def test_what_cannot_wait_long_waits_a_moment_after_a_refusal(
    found: dict[str, Any], kind: str
) -> None:
    """The remedy would else be tried several times a second while the workload system refuses.

    What is refused about a dead node comes as often, and puts a restart's drain off no longer.
    """
    seconds = HASTY_CORDON_SECONDS
    for ago, expected in ((seconds - 1.0, []), (seconds, [(kind, "a")])):
        record = waiting(9, cordon_refused_at=NOW - timedelta(seconds=ago))
        decided = plan(snapshot(record, *ten(node("a", **found))), NOW)
        assert [(each.kind, each.node) for each in decided.start.values()] == expected
        if not expected:
            assert decided.wake_at == NOW + timedelta(seconds=1)


def test_a_refusal_about_a_dead_node_makes_no_other_wait_longer() -> None:
    """The cordon is tried again and again; its success would say nothing of the workload system."""
    opened = {
        f"s{n}": OpenSaga(kind="replace", node=f"n{n}", since=NOW, dead=True) for n in range(3)
    }
    ended = pool(3, open=opened)
    for n in range(3):
        now = NOW + timedelta(seconds=n)
        ended = close(ended, f"s{n}", failed=True, how="failed", now=now, at_cordon=True)
    assert (ended.refused_cordons, ended.cordon_refused_at) == (1, now)
    assert ended.cordon_at == now + timedelta(seconds=HASTY_CORDON_SECONDS)


def test_a_remedy_that_was_not_begun_was_not_tried() -> None:
    """An outage of the workload system would else use up the ladder."""
    ladder = Ladder(options=Ladder.Options())
    failed = RemediationAttempt(
        saga="s", kind="reset-gpu", fault_signature="xid-95", at=NOW, outcome="failed", tried=False
    )
    case = node("a", **UNFIT, health_action="reset_gpu")
    assert ladder.choose(case, (failed,), NOW).remedy == "reset-gpu"
    tried = msgspec.structs.replace(failed, tried=True)
    assert ladder.choose(case, (tried,), NOW).remedy == "reboot"
