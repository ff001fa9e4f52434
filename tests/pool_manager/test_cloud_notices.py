"""Decisions over records show how the pool-manager reacts to cloud notices."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.enums import SagaKind
from schemas.node_events import ProviderNotice
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, PoolSpec
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.fault_waves import fault_signature
from services.pool_manager.planner.sizing.open_sagas import begin, open_for
from services.pool_manager.reconciler import saga_params
from tests.pool_manager.fleet import peers

__all__ = ["peers"]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(
    provider="p",
    instance_type="t",
    min_nodes=0,
    max_nodes=99,
    budget=BudgetSpec(max_quarantined=0, max_unavailable=1),
    drain_timeout=Duration(600),
    launch_timeout=Duration(300),
)


def after(seconds: float) -> datetime:
    """Return the moment this long from now."""
    return NOW + timedelta(seconds=seconds)


def notice(seconds: float | None, **changes: Any) -> CloudNotice:
    """A spot notice this long ahead."""
    deadline = None if seconds is None else after(seconds)
    return msgspec.structs.replace(CloudNotice(at=NOW, deadline=deadline, reason="spot"), **changes)


def node(name: str = "n1", **changes: Any) -> NodeRecord:
    """Return a healthy node in service."""
    plain = NodeRecord(pool="training", node=name, state="active", health="healthy")
    return msgspec.structs.replace(plain, **changes)


def snapshot(*found: NodeRecord, **changes: Any) -> PoolSnapshot:
    """Return a pool of these nodes."""
    record = PoolRecord(name="training", spec=SPEC, desired=len(found), serial=100)
    record = msgspec.structs.replace(record, **changes)
    return PoolSnapshot(fleet="f", record=record, nodes=Nodes(found), revision=7)


def gone(**changes: Any) -> NodeRecord:
    """A silent node whose instance the provider reports gone."""
    return node(lost=True, lost_at=NOW, provider_state="gone", **changes)


@pytest.mark.parametrize(
    ("found", "order", "drain"),
    [
        (node(), "terminate_first", "deadline"),
        (node(notices={"a": notice(120)}), "launch_ahead", "deadline"),
        (node(notices={"a": notice(120)}, health="unhealthy"), "launch_ahead", "deadline"),
        (node(notices={"a": notice(None)}), "launch_ahead", "deadline"),
        (node(notices={"a": notice(8)}), "terminate_first", "deadline"),
        (node(notices={"a": notice(-1)}), "terminate_first", "immediate"),
        (node(notices={"a": notice(86_400)}), "terminate_first", "deadline"),
        (node(notices={"a": notice(120, withdrawn=True)}), "terminate_first", "deadline"),
        (node(notices={"a": notice(900), "b": notice(120)}), "launch_ahead", "deadline"),
        (gone(), "terminate_first", "immediate"),
        (gone(notices={"a": notice(120)}), "terminate_first", "immediate"),
        (node(lost=True, lost_at=NOW), "terminate_first", "deadline"),
    ],
)
def test_saga_and_drain_for_each_notice(found: NodeRecord, order: str, drain: str) -> None:
    """Replaced ahead of the notice if there is time; not drained if nothing is left to drain.

    The drain timeout remains the pool's: a notice may be withdrawn.
    """
    opened = msgspec.structs.replace(
        OpenSaga(kind="replace", node="n1", since=NOW), **cloud_notices.departure(found, SPEC, NOW)
    )
    params = saga_params("f", snapshot(found).record, opened)

    assert (order, drain) == (params.order, params.drain)
    assert SPEC.drain_timeout == params.drain_timeout_seconds


@pytest.mark.parametrize(
    ("seconds", "urgent"), [(120, True), (905, True), (906, False), (86_400, False), (None, True)]
)
def test_notice_is_urgent_when_drain_and_launch_fill_the_time(
    seconds: float | None, urgent: bool
) -> None:
    """600 s of drain, 300 s of launch, 5 s of margin; a notice without a time is urgent."""
    assert urgent == cloud_notices.urgent(node(notices={"a": notice(seconds)}), SPEC, NOW)


def test_preempted_nodes_bypass_the_budget_and_hold_no_fault() -> None:
    """A budget of one lets three preempted nodes through, and an unhealthy node beside them."""
    taken = [node(f"n{i}", notices={"a": notice(120)}) for i in range(3)]
    unhealthy = node("s", health="unhealthy", health_at=NOW)
    found = plan(snapshot(unhealthy, *taken, desired=4), NOW)

    assert ["n0", "n1", "n2", "s"] == sorted(each.node for each in found.start.values())
    assert ["a", "a", "a"] == [each.notice for each in found.start.values() if each.node != "s"]
    assert ("closed", ()) == (found.record.breaker.state, found.events)


def test_notice_days_ahead_waits_for_the_budget() -> None:
    """The notice is handled within the budget, and planned again for when it becomes urgent."""
    far = [node(f"n{i}", notices={"a": notice(86_400)}) for i in range(2)]
    found = plan(snapshot(*far), NOW)

    assert ["n0"] == [each.node for each in found.start.values()]
    assert after(86_400 - 905) == found.wake_at


def test_failed_launches_delay_only_the_second_replacement() -> None:
    """The instance goes anyway: one replacement starts; then the launch backoff applies."""
    fresh = node(notices={"a": notice(120)})
    failing = {"failures": 2, "retry_at": after(60)}
    first = plan(snapshot(fresh, **failing), NOW)
    tried = msgspec.structs.replace(fresh, cordoned=True)

    assert 1 == len(first.start)
    assert {} == plan(snapshot(tried, **failing), NOW).start


def test_wave_of_notices_is_no_incident() -> None:
    """Even if the policy calls each node unhealthy: the nodes have no common fault."""
    found = node(health="unhealthy", health_kind="preemption", notices={"a": notice(120)})

    assert "" == fault_signature(found)


@pytest.mark.parametrize(
    ("changes", "action"),
    [
        ({"health": "degraded", "health_kind": "preemption"}, "none"),
        ({"health": "unhealthy", "health_kind": "preemption"}, "none"),
        ({"health": "degraded", "health_kind": "maintenance", "lost": True}, "none"),
        ({"health": "unhealthy", "health_kind": "xid", "health_code": 79}, "replace"),
    ],
)
@pytest.mark.parametrize("seconds", [120, -1])
def test_preempted_hardware_is_not_denied(
    changes: dict[str, Any], action: str, seconds: float
) -> None:
    """Unless it was unhealthy beside the notice; the saga's action decides."""
    found = node(
        notices={"a": notice(seconds)}, health_action="replace", health_fault="f1", **changes
    )
    _, begun, _ = begin("f", snapshot(found).record, "replace", NOW, node=found)

    assert (action, "a") == (begun.action, begun.notice)


def event(name: str, at: float, *, withdrawn: bool = False) -> ProviderNotice:
    """A notice event this many seconds after noon."""
    return ProviderNotice(
        id=f"{name}-{at}",
        time=after(at),
        pool="training",
        node="n1",
        notice=name,
        deadline=None if withdrawn else after(120),
        withdrawn=withdrawn,
    )


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([event("a", 0)], "a"),
        ([event("a", 0), event("a", 5, withdrawn=True)], ""),
        ([event("a", 5, withdrawn=True), event("a", 0)], ""),
        ([event("a", 5, withdrawn=True), event("a", 9)], "a"),
        ([event("a", 0), event("b", 1), event("a", 5, withdrawn=True)], "b"),
    ],
)
def test_announcements_and_withdrawals_apply_in_time_order(
    events: list[ProviderNotice], expected: str
) -> None:
    """The replicas may apply the events in any order."""
    record = node()
    for each in events:
        record = cloud_notices.record_notice(record, each, NOW)
    found = cloud_notices.current_notice(record)

    assert expected == (found[0] if found else "")


@pytest.mark.parametrize(
    ("boot_id", "at", "expected"),
    [
        ("now", 0, "a"),  # its agent had it before it registered
        ("now", 90, "a"),
        ("later", 90, "a"),  # a reboot whose registration comes behind it
        ("before", 0, ""),
        ("", 0, "a"),  # the provider's own word
    ],
)
def test_a_late_notice_about_an_earlier_machine_of_the_name_is_ignored(
    boot_id: str, at: float, expected: str
) -> None:
    """An operator published it again, and its healthy successor was replaced for it."""
    record = node(boot_id="now", registered_at=after(60))
    late = msgspec.structs.replace(event("a", at), boot_id=boot_id)
    found = cloud_notices.current_notice(cloud_notices.record_notice(record, late, after(100)))

    assert expected == (found[0] if found else "")


def opened(**changes: Any) -> dict[str, OpenSaga]:
    """Return an open replacement of n1."""
    saga = OpenSaga(kind="replace", node="n1", new_node="n9", since=NOW)
    return {"replace-n1-1": msgspec.structs.replace(saga, **changes)}


@pytest.mark.parametrize(
    ("found", "at"),
    [
        (node(state="leaving"), None),
        (node(state="leaving", lost=True, lost_at=NOW), None),
        (gone(state="leaving"), NOW),
        (gone(state="leaving", drained=True), None),
        (node(state="leaving", notices={"a": notice(120)}), after(115)),
        (node(state="leaving", notices={"a": notice(120, withdrawn=True)}), None),
        (node(notices={"a": notice(120, withdrawn=True)}, health="unhealthy"), None),
        (node(notices={"a": notice(120, withdrawn=True), "b": notice(300)}), after(295)),
    ],
)
def test_drain_ends_early_when_nothing_is_left_to_drain(
    found: NodeRecord, at: datetime | None
) -> None:
    """The instance is gone, or the notice's time comes before the drain timeout."""
    hurries = cloud_notices.hurries(snapshot(found, open=opened()).record, [found])

    assert ([] if at is None else [at]) == [each.at for each in hurries]


@pytest.mark.parametrize(
    ("found", "begun_by", "unwound"),
    [
        (node(notices={"a": notice(120, withdrawn=True)}), {"notice": "a"}, True),
        (node(notices={"a": notice(120)}), {"notice": "a"}, False),
        (node(notices={"a": notice(120, withdrawn=True)}), {}, False),
        (
            node(notices={"a": notice(120, withdrawn=True), "b": notice(300)}),
            {"notice": "a"},
            False,
        ),
        (
            node(notices={"a": notice(120, withdrawn=True)}, health="unhealthy"),
            {"notice": "a"},
            False,
        ),
        (node(notices={"a": notice(120, withdrawn=True)}, lost=True), {"notice": "a"}, False),
        (
            node(notices={"a": notice(120, withdrawn=True)}),
            {"notice": "a", "cause": "request-5"},
            False,
        ),
        (
            node(notices={"a": notice(120, withdrawn=True)}),
            {"notice": "a", "kind": "scale-down"},
            False,
        ),
    ],
)
def test_withdrawn_notice_unwinds_only_its_own_saga(
    found: NodeRecord, begun_by: dict[str, Any], unwound: bool
) -> None:
    """Not one that an operator, a fault signature or another notice needs."""
    record = snapshot(found, open=opened(**begun_by)).record

    assert unwound == bool(cloud_notices.withdrawn(record, [found]))


@pytest.mark.parametrize(
    ("changes", "returned"),
    [
        ({}, True),
        ({"notices": {"a": notice(120)}}, False),
        ({"health": "unhealthy"}, False),
        ({"lost": True}, False),
        ({"sole_notice": ""}, False),
        ({"cordoned": False}, False),
    ],
)
def test_node_cordoned_for_a_withdrawn_notice_is_uncordoned(
    changes: dict[str, Any], returned: bool
) -> None:
    """The replacement had failed, and no other reason keeps the node out of service."""
    let_be = {"notices": {"a": notice(120, withdrawn=True)}, "cordoned": True, "sole_notice": "a"}
    decided = plan(snapshot(node(**(let_be | changes))), NOW)

    assert returned == ("uncordon" in {each.kind for each in decided.start.values()})


@pytest.mark.parametrize("kind", ["drain", "replace", "scale-down"])
def test_notice_does_not_change_a_saga_with_another_reason(kind: SagaKind) -> None:
    """The saga keeps its drain timeout, and a withdrawal does not unwind it."""
    announced = node(notices={"a": notice(120)})
    record = snapshot(announced).record
    _, asked, _ = open_for("f", record, kind, NOW, announced)
    _, own, _ = begin("f", record, kind, NOW, node=announced)

    assert ("", "") == (asked.notice, asked.sole_notice)
    assert (kind == "replace") == bool(own.notice) == bool(own.sole_notice)


def test_failed_replacement_records_the_notice_it_was_for() -> None:
    """The next attempt, on the then cordoned node, does too; an operator's cordon stays."""
    announced = node(notices={"a": notice(120)})
    first = cloud_notices.departure(announced, snapshot(announced).record.spec, NOW)
    left = msgspec.structs.replace(announced, cordoned=True, sole_notice="a")
    again = cloud_notices.departure(left, snapshot(left).record.spec, NOW)
    theirs = msgspec.structs.replace(announced, cordoned=True)

    assert ("a", "a") == (first["sole_notice"], again["sole_notice"])
    assert "sole_notice" not in cloud_notices.departure(theirs, snapshot(theirs).record.spec, NOW)
