"""A node whose driver is not loaded: it is rebooted once, and then a person decides."""

from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from schemas.enums import Remediation
from schemas.node_records import GpuUse, NodeRecord, RemediationAttempt
from schemas.pool_events import OperatorNeeded
from services.pool_manager.planner.explanation.node_explanation import about, blocked_node
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediator import REPLACE, AlertOnly, Remediator
from tests.pool_manager.test_pool_planner import NOW, node
from tests.pool_manager.test_remediation import (
    HOUR,
    LADDER,
    WHOLE_DAY,
    attempt,
    started,
    under,
    unhealthy,
)

ALERT = AlertOnly(options=AlertOnly.Options())
SIGNATURE = "probe_failed"
WHY = "probe failed: the driver is not loaded"
MISSING = unhealthy(
    "reboot",
    health="degraded",
    health_kind="probe_failed",
    health_code=0,
    health_reason=WHY,
    health_fault="f1",
)
TRIED = attempt("reboot", what=SIGNATURE)
FAILED = attempt("reboot", "failed", what=SIGNATURE)


def changed(case: NodeRecord = MISSING, **changes: object) -> NodeRecord:
    """Return the node with changes."""
    return msgspec.structs.replace(case, **changes)


def left(**changes: object) -> NodeRecord:
    """The node after a reboot that has not loaded the driver: it failed its check, or never ran."""
    last = msgspec.structs.replace(
        FAILED, saga="reboot-a-3", cordoned_by_operator=False, unfit=True
    )
    last = msgspec.structs.replace(last, ended_at=NOW - timedelta(minutes=5))
    out = changed(cordoned=True, drained=True, sagas=3, attempts=(last,))
    return changed(out, **changes)


def idle(decided: PoolSnapshot) -> PoolSnapshot:
    """A pool on whose nodes nothing runs."""
    use = NodeUse(gpus=GpuUse(busy=False, since=NOW - HOUR), work="none")
    return replace(decided, use={each.node: use for each in decided.nodes})


def people(decided: PoolPlan) -> list[OperatorNeeded]:
    """Return what operators are notified of."""
    return [each for each in decided.events if isinstance(each, OperatorNeeded)]


@pytest.mark.parametrize("remediator", [REPLACE, LADDER])
@pytest.mark.parametrize(
    ("case", "attempts", "remedy"),
    [
        (MISSING, (), "reboot"),
        (MISSING, (TRIED,), "alert"),
        (MISSING, (FAILED,), "alert"),
        (MISSING, (attempt("reboot", "cancelled", what=SIGNATURE),), "reboot"),
        (MISSING, (msgspec.structs.replace(FAILED, tried=False),), "reboot"),
        (MISSING, (attempt("reboot", ago=25 * HOUR, what=SIGNATURE),), "reboot"),
        (left(), (FAILED,), "alert"),
        # A day later an operator may be at work on it: it is not rebooted under their hands.
        (left(), (attempt("reboot", "failed", ago=25 * HOUR, what=SIGNATURE),), "alert"),
        # What the policy calls unhealthy, or answers with something else, goes as its pool says.
        (changed(health="unhealthy"), (FAILED,), "replace"),
        (changed(health_kind="pcie"), (FAILED,), "replace"),
    ],
)
def test_a_driver_that_is_not_loaded_is_a_reboot_and_then_a_person(
    remediator: Remediator,
    case: NodeRecord,
    attempts: tuple[RemediationAttempt, ...],
    remedy: Remediation,
) -> None:
    """Another machine would have the same image."""
    assert remediator.choose(case, attempts, NOW).remedy == remedy


@pytest.mark.parametrize("remediator", [REPLACE, LADDER])
def test_it_is_rebooted_once_its_work_has_left_or_in_the_pools_window(
    remediator: Remediator,
) -> None:
    """Degraded nodes keep their work. No operator is asked before the reboot was tried."""
    waits = under(remediator, MISSING, node("b"))
    assert (started(waits), people(plan(waits, NOW))) == ([], [])
    assert started(idle(waits)) == [("reboot", "a")]
    served = under(remediator, MISSING, node("b"), windows=(WHOLE_DAY,))
    assert started(served) == [("reboot", "a")]


@pytest.mark.parametrize("remediator", [REPLACE, LADDER])
@pytest.mark.parametrize("case", [left(), changed(attempts=(TRIED,))], ids=["cordoned", "again"])
def test_where_a_reboot_has_not_helped_one_person_is_asked_and_nothing_is_touched(
    remediator: Remediator, case: NodeRecord
) -> None:
    """Neither a second reboot nor a replacement; the alert names the commands."""
    decided = idle(under(remediator, case, node("b"), windows=(WHOLE_DAY,)))
    first = plan(decided, NOW)
    (event,) = people(first)
    assert (event.node, event.reason, event.cordoned) == ("a", WHY, case.cordoned)
    assert "navarch replace a" in event.remedy
    assert "a reboot" in event.remedy
    assert first.start == {}
    again = plan(replace(decided, record=first.record), NOW + HOUR)
    assert (people(again), again.start) == ([], {})
    cleared = replace(decided, record=first.record, nodes=Nodes([node("a"), node("b")]))
    assert plan(cleared, NOW).record.operator_notified == {}


def test_a_reboot_that_cannot_be_made_goes_to_a_person_with_its_reason() -> None:
    """Neither the agent nor the provider may, which is known once it was tried."""
    why = "its agent failed: the agent is not root, and provider x cannot reboot an instance"
    last = msgspec.structs.replace(left().attempts[-1], unfit=False, reason=why)
    checked = {"boot_id": "b", "boot_checked": True, "boot_checked_id": "b"}
    decided = plan(idle(under(REPLACE, left(attempts=(last,), **checked), node("b"))), NOW)
    (event,) = people(decided)
    assert why in event.remedy
    assert decided.start == {}, "without its driver it gets no work back"


@pytest.mark.parametrize(
    "changes", [{"held_until": NOW + HOUR, "held_reason": "r"}, {"lost": True}]
)
def test_an_operators_hold_keeps_the_alert_back_and_silence_is_another_matter(
    changes: dict[str, object],
) -> None:
    """Silence has its own remedy once it is confirmed."""
    decided = plan(idle(under(REPLACE, left(**changes), node("b"))), NOW)
    assert (people(decided), decided.start) == ([], {})


def test_a_pool_that_leaves_all_to_people_asks_one_at_once() -> None:
    """The pool asks no operator about other degraded nodes."""
    decided = plan(idle(under(ALERT, MISSING, node("b"))), NOW)
    assert [each.node for each in people(decided)] == ["a"]
    assert people(plan(idle(under(ALERT, changed(health_kind="pcie"), node("b"))), NOW)) == []


@pytest.mark.parametrize(("notified", "gate"), [(False, "idle"), (True, "operator")])
def test_why_says_what_it_waits_for(notified: bool, gate: str) -> None:
    """The node waits for its rest, or for the person who was notified."""
    record = under(REPLACE, MISSING, node("b")).record
    if notified:
        record = msgspec.structs.replace(record, operator_notified={"a": "f1"})
    found = blocked_node(MISSING, about(record, Nodes([MISSING, node("b")]), NOW))
    assert [each.gate for each in found.blocked] == [gate]
    assert "navarch reboot a" in found.blocked[0].text
