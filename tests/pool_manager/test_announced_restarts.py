"""Restarts and pauses that the cloud announces: decisions over records."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from schemas.enums import NoticeEffect
from schemas.node_events import ProviderNotice
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import OpenSaga
from services.pool_manager.planner import announced_restarts, cloud_notices
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.safety.fault_waves import find_unhealthy
from services.pool_manager.planner.unhealthy_nodes import given_up_at
from tests.pool_manager.test_cloud_notices import NOW, SPEC, after, node, notice, snapshot

DRAIN_SECONDS = float(SPEC.drain_timeout)
WELL: dict[str, Any] = {"boot_id": "b1", "boot_checked": True, "boot_checked_id": "b1"}
BACK: dict[str, Any] = {"boot_id": "b2", "boot_checked": True, "boot_checked_id": "b2"}
OUT: dict[str, Any] = {"cordoned": True, "drained": True, "sole_notice": "a"}


def restart(
    seconds: float | None, effect: NoticeEffect = "reboot", **changes: Any
) -> dict[str, CloudNotice]:
    """Return a notice of a restart this long ahead."""
    return {"a": notice(seconds, effect=effect, boot_id="b1", **changes)}


def begun(*found: NodeRecord, at: datetime = NOW, **changes: Any) -> dict[str, str]:
    """Node -> the saga that the plan begins for it."""
    return {each.node: each.kind for each in plan(snapshot(*found, **changes), at).start.values()}


@pytest.mark.parametrize("effect", ["reboot", "redeploy"])
@pytest.mark.parametrize(
    ("seconds", "changes", "expected"),
    [
        (60.0, {}, {"n1": "drain"}),
        (None, {}, {"n1": "drain"}),
        (-60.0, {}, {"n1": "drain"}),
        (DRAIN_SECONDS + 50, {}, {"n1": "drain"}),
        (DRAIN_SECONDS + 70, {}, {}),
        (-40_000.0, {}, {}),
        (60.0, {"cordoned": True}, {}),
        (60.0, {"held_until": after(60)}, {}),
        (60.0, {"lost": True, "lost_at": NOW}, {}),
        (60.0, {"boot_id": "b2"}, {}),
        (60.0, {"withdrawals": (NOW, NOW)}, {"n1": "drain"}),
    ],
)
def test_a_node_is_drained_just_before_its_restart_and_kept(
    effect: NoticeEffect, seconds: float, changes: dict[str, Any], expected: dict[str, str]
) -> None:
    """The drain has the pool's time; what is out, held or has restarted is left alone."""
    found = node(notices=restart(seconds, effect), **(WELL | changes))

    assert begun(found) == expected


def test_restarts_bypass_the_budget_and_hold_no_fault() -> None:
    """An unhealthy node beside them is replaced; doubted notices wait for their own budget."""
    nodes = [node(f"n{i}", notices=restart(60), **WELL) for i in range(3)]
    unhealthy = node("n9", health="unhealthy", health_at=NOW, health_reason="xid 79")
    drained = dict.fromkeys(["n0", "n1", "n2"], "drain")
    assert begun(*nodes, unhealthy) == {**drained, "n9": "replace"}
    doubted = [node(f"n{i}", notices=restart(60), withdrawals=(NOW, NOW)) for i in range(3)]
    assert len(begun(*doubted)) == 1


def test_a_pause_and_a_withdrawn_restart_change_nothing() -> None:
    """A pause and a withdrawn restart are in the node's record, and in no decision."""
    assert not begun(node(notices=restart(60, "freeze")))
    assert not begun(node(notices=restart(60, withdrawn=True)))


@pytest.mark.parametrize(
    ("changes", "seconds", "returned"),
    [
        (WELL, 60.0, False),
        (WELL, -600.0, False),
        (WELL, -announced_restarts.RETURN_SECONDS_MAX - 1, True),
        (BACK, -60.0, True),
        (BACK | {"boot_checked_id": "b1"}, -60.0, False),
        (BACK | {"boot_checked": False}, -60.0, False),
        (BACK | {"health": "unhealthy"}, -60.0, False),
        (BACK | {"lost": True}, -60.0, False),
        (BACK | {"sole_notice": ""}, -60.0, False),
    ],
)
def test_a_node_returns_once_it_has_restarted_and_is_checked(
    changes: dict[str, Any], seconds: float, returned: bool
) -> None:
    """A node whose announced restart did not come returns too; an operator's cordon stays."""
    found = node(notices=restart(seconds), **(OUT | changes))

    assert returned == (begun(found).get("n1") == "uncordon")


def test_a_withdrawn_restart_takes_back_its_drain() -> None:
    """While the drain is under way it is unwound, and after it the node is uncordoned."""
    over = restart(600, withdrawn=True)
    opened = OpenSaga(kind="drain", node="n1", notice="a", sole_notice="a", since=NOW)
    record = snapshot(node(), open={"drain-n1-1": opened}).record
    assert [s for s, _ in cloud_notices.withdrawn(record, [node(notices=over)])] == ["drain-n1-1"]
    assert not cloud_notices.withdrawn(record, [node(notices=restart(600))])
    also = over | {"b": notice(900, effect="reboot", boot_id="b1")}
    assert not cloud_notices.withdrawn(record, [node(notices=also)])
    assert begun(node(notices=over, **(OUT | WELL))) == {"n1": "uncordon"}


@pytest.mark.parametrize(
    ("effect", "start", "window_end", "lost_at", "expected"),
    [
        ("reboot", 0, None, 10, announced_restarts.RETURN_SECONDS_MAX),
        ("redeploy", 0, 3_600, 10, 3_600 + announced_restarts.RETURN_SECONDS_MAX),
        (
            *("reboot", 0, 10**7, 10),
            announced_restarts.WINDOW_SECONDS_MAX + announced_restarts.RETURN_SECONDS_MAX,
        ),
        ("freeze", 0, 10, 10, announced_restarts.FREEZE_SECONDS_MAX),
        ("freeze", 0, 10**7, 10, announced_restarts.FREEZE_SECONDS_MAX),
        ("reboot", 3_600, None, 10, None),
        ("freeze", -3_600, None, 10, None),
        ("reclaim", 0, None, 10, None),
    ],
)
def test_announced_silence_is_waited_for_within_bounds(
    effect: NoticeEffect, start: float, window_end: float | None, lost_at: float, expected: Any
) -> None:
    """Many nodes that are silent so make no incident; what began otherwise is no reason."""
    end = None if window_end is None else after(window_end)
    announced = restart(start, effect, window_end=end)
    found = node(
        notices=announced, lost=True, lost_at=after(lost_at), provider_state="present", **WELL
    )
    record = snapshot(found).record
    plain = given_up_at(msgspec.structs.replace(found, notices={}), record)
    assert plain is not None

    due = given_up_at(found, record)
    assert due == (plain if expected is None else max(plain, after(expected)))
    gone = msgspec.structs.replace(found, provider_state="gone")
    assert given_up_at(gone, record) == found.lost_at
    if expected is not None:
        assert not find_unhealthy(Nodes([found]))


@pytest.mark.parametrize(("seconds", "over"), [(-120.0, True), (-30.0, True), (3_600.0, False)])
def test_a_restart_that_is_listed_after_it_is_not_waited_for_again(
    seconds: float, over: bool
) -> None:
    """An operator's earlier reboot leaves the notice in force."""
    event = ProviderNotice(
        id="e",
        time=NOW,
        pool="training",
        node="n1",
        notice="a",
        effect="reboot",
        deadline=after(seconds),
        boot_id="b2",
    )
    known = restart(seconds, at=after(-7_200))
    found = cloud_notices.record_notice(node(notices=known, **BACK), event, NOW)

    assert over == (announced_restarts.restart_notice(found) is None)


@pytest.mark.parametrize(("boot", "counted"), [("b1", 1), ("b2", 0)])
def test_the_end_of_a_restart_is_no_withdrawal(boot: str, counted: int) -> None:
    """Two withdrawn notices within an hour have the next ones wait for the budget."""
    event = ProviderNotice(
        id="e", time=NOW, pool="training", node="n1", notice="a", withdrawn=True, boot_id=boot
    )
    known = restart(-120.0, at=after(-7_200))
    found = cloud_notices.record_notice(node(notices=known, **BACK), event, NOW)
    assert found.notices["a"].withdrawn
    assert len(found.withdrawals) == counted


def test_agents_without_effects_are_treated_as_before() -> None:
    """A notice of an old agent takes its node, and so does one in an old record."""
    old = {"id": "e", "time": "2026-01-01T12:00:00Z", "pool": "p", "node": "n", "notice": "a"}
    assert msgspec.convert(old, ProviderNotice).effect == "reclaim"
    record = msgspec.convert({"at": "2026-01-01T12:00:00Z"}, CloudNotice)
    assert (record.effect, record.window_end, record.boot_id) == ("reclaim", None, "")


def test_a_restart_wakes_the_reconciler() -> None:
    """When the drain is due, and when the restart is given up."""
    decided = plan(snapshot(node(notices=restart(86_400), **WELL)), NOW)
    assert decided.wake_at == after(86_400 - DRAIN_SECONDS - 60)
    late = plan(snapshot(node(notices=restart(-10), **(OUT | WELL))), NOW)
    assert late.wake_at == after(announced_restarts.RETURN_SECONDS_MAX - 10)
