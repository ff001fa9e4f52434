"""Examples and properties test the pool planner."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.breaker_state import Breaker
from schemas.duration import Duration
from schemas.enums import SagaKind
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.planner.disruption_budget import limit
from services.pool_manager.planner.node_counts import (
    Nodes,
    busy,
    size,
    unavailable,
)
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.fault_waves import fault_signature
from services.pool_manager.planner.sizing.open_sagas import node_name
from services.pool_manager.planner.unhealthy_nodes import remediation_reason
from services.saga.definitions import DEFINITIONS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def spec(**changes: object) -> PoolSpec:
    """Return a pool from 0 to 1,000 nodes."""
    plain = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=1000,
        budget=BudgetSpec(max_quarantined=0),
    )
    return msgspec.structs.replace(plain, **changes)


def pool(desired: int, **changes: object) -> PoolRecord:
    """A pool that wants `desired` nodes."""
    return msgspec.structs.replace(
        PoolRecord(name="training", spec=spec(), desired=desired, serial=100), **changes
    )


def node(name: str, **changes: object) -> NodeRecord:
    """Return a healthy node in service."""
    plain = NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=NOW
    )
    return msgspec.structs.replace(plain, **changes)


def snapshot(record: PoolRecord, *nodes: NodeRecord) -> PoolSnapshot:
    """Return a pool and its nodes."""
    return PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7)


@pytest.mark.parametrize(
    ("max_unavailable", "desired", "allowed"),
    [
        ("20%", 10, 2),
        ("20%", 11, 3),
        ("20%", 3, 1),
        ("20%", 1, 1),
        ("20%", 0, 1),
        ("5%", 100, 5),
        ("33.3%", 3, 1),
        (2, 1, 2),
        ("100%", 4, 4),
    ],
)
def test_budget_is_a_count_or_a_rounded_up_percentage(
    max_unavailable: int | str, desired: int, allowed: int
) -> None:
    """The budget is at least one, so that small pools are repaired too."""
    assert allowed == limit(max_unavailable, desired)


def test_missing_nodes_are_launched_once() -> None:
    """Two nodes missing: two sagas; the next plan with that record adds none."""
    first = plan(snapshot(pool(3), node("a")), NOW)
    again = plan(snapshot(first.record, node("a")), NOW)

    assert ["scale-up", "scale-up"] == [each.kind for each in first.start.values()]
    assert {} == again.start
    assert first.record == again.record


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (
            pool(
                2,
                failures=1,
                retry_at=NOW - timedelta(seconds=5),
                open={"scale-up-c": OpenSaga(kind="scale-up", new_node="c", since=NOW)},
            ),
            (node("a", health="unhealthy", health_at=NOW),),
        ),
        (pool(1), (node("a", state="leaving", lost=True, lost_at=NOW - timedelta(days=1)),)),
    ],
    ids=["the next launch is under way", "silent while it leaves"],
)
def test_next_plan_is_never_due_in_the_past(
    record: PoolRecord, found: tuple[NodeRecord, ...]
) -> None:
    """A timer in the past would fire at once and be set again."""
    decided = plan(snapshot(record, *found), NOW)
    assert decided.wake_at is None or decided.wake_at > NOW


def test_silent_node_is_replaced_after_lost_after() -> None:
    """The plan is due again at `lost_after` if asked before then."""
    silent = node("a", lost=True, lost_at=NOW, provider_state="present")
    early = plan(snapshot(pool(1), silent), NOW + timedelta(seconds=299))
    late = plan(snapshot(pool(1), silent), NOW + timedelta(seconds=300))

    assert {} == early.start
    assert NOW + timedelta(seconds=300) == early.wake_at
    assert ["replace-a-1"] == list(late.start)


def test_failing_launches_hold_back_replacements() -> None:
    """A replacement without a launch would shrink the pool: unhealthy nodes wait."""
    failing = pool(2, failures=3, retry_at=NOW + timedelta(seconds=8))
    decided = plan(snapshot(failing, node("a", health="unhealthy"), node("b")), NOW)

    assert {} == decided.start
    assert ("open", "launches-fail") == (
        decided.record.breaker.state,
        decided.record.breaker.cause,
    )
    assert "launches fail (3 in a row)" in decided.events[0].reason  # type: ignore[attr-defined]
    assert failing.retry_at == decided.wake_at


def test_spend_cap_does_not_hold_back_replacements() -> None:
    """The cap says nothing about whether launches succeed, and its gap was never in service."""
    opened = {"s": OpenSaga(kind="scale-up", new_node="c", since=NOW)}
    capped = close(pool(3, open=opened), "s", failed=True, now=NOW, over_spend_cap=True)
    decided = plan(snapshot(capped, node("a", health="unhealthy"), node("b")), NOW)

    assert (1, True) == (capped.failures, capped.over_spend_cap)
    assert ["replace-a-1"] == list(decided.start)
    assert "closed" == decided.record.breaker.state


@pytest.mark.parametrize(
    ("kind", "failures", "over_spend_cap", "holds_back"),
    [
        ("scale-up", 0, True, False),
        ("scale-up", 0, False, True),
        ("scale-up", 2, True, True),
        ("replace", 0, True, True),
    ],
    ids=["a cap alone", "no capacity", "others failed before", "what was given back is gone"],
)
def test_other_launch_failures_hold_back_repairs_despite_a_cap(
    kind: SagaKind, failures: int, over_spend_cap: bool, holds_back: bool
) -> None:
    """Any other launch failure would leave a gap."""
    opened = {"s": OpenSaga(kind=kind, new_node="c", since=NOW)}
    before = pool(2, open=opened, failures=failures)
    ended = close(before, "s", failed=True, now=NOW, over_spend_cap=over_spend_cap)

    assert holds_back == (not ended.over_spend_cap)


def test_cordoned_unhealthy_node_is_replaced_with_a_spent_budget() -> None:
    """The node is out of service already; its replacement takes out nothing more."""
    spent = pool(3, spec=spec(budget=BudgetSpec(max_quarantined=0, max_unavailable=1)))
    decided = plan(
        snapshot(spent, node("a", health="unhealthy", cordoned=True), node("b"), node("c")), NOW
    )

    assert ["replace-a-1"] == list(decided.start)


def test_scale_down_order_is_unhealthy_cordoned_youngest() -> None:
    """The least useful node leaves first."""
    nodes = (
        node("old", admitted_at=NOW - timedelta(days=9)),
        node("young"),
        node("cordoned", cordoned=True, admitted_at=NOW - timedelta(days=9)),
        node("unhealthy", health="unhealthy", admitted_at=NOW - timedelta(days=9)),
    )
    observed = spec(health=HealthSpec(auto_replace=False))
    decided = plan(snapshot(pool(1, spec=observed), *nodes), NOW)

    assert {"unhealthy", "cordoned", "young"} == {each.node for each in decided.start.values()}


@pytest.mark.parametrize(("failures", "seconds"), [(0, 2), (1, 4), (5, 64), (20, 600)])
def test_launch_failures_double_the_backoff(failures: int, seconds: int) -> None:
    """The backoff grows up to ten minutes; a success resets it."""
    opened = {"s": OpenSaga(kind="scale-up", new_node="x", since=NOW)}
    failed = close(pool(1, open=opened, failures=failures), "s", failed=True, now=NOW)
    fine = close(pool(1, open=opened, failures=failures), "s", failed=False, now=NOW)

    assert NOW + timedelta(seconds=seconds) == failed.retry_at
    assert (0, None) == (fine.failures, fine.retry_at)


def test_instance_names_differ_between_fleets_and_serials() -> None:
    """A fleet that lost its bus does not reuse an instance's name."""
    names = {node_name(fleet, "training", i) for fleet in ("f1", "f2") for i in range(50)}

    assert 100 == len(names)


# --- properties ----------------------------------------------------------------------------------

HEALTH = st.sampled_from(["healthy", "degraded", "unhealthy", "unknown"])


@st.composite
def breakers(draw: st.DrawFn, opened: dict[str, OpenSaga]) -> Breaker:
    """Any breaker that such a record can hold."""
    repairs = [saga for saga, each in opened.items() if each.kind == "replace"]
    state = draw(
        st.sampled_from(
            ["closed", "closed", "open", "half-open"] if repairs else ["closed", "open"]
        )
    )
    ramp = draw(st.sampled_from([0, 0, 1, 2]))
    return Breaker(
        state=state,
        since=NOW,
        cause=draw(st.sampled_from(["level", "wave", "probe-failed", "operator"])),
        forced=state == "open" and draw(st.booleans()),
        probe=draw(st.sampled_from(repairs)) if state == "half-open" else "",
        probe_at=NOW + timedelta(seconds=draw(st.integers(-5, 5))) if state == "open" else None,
        ramp=ramp,
        ramp_from=NOW - timedelta(seconds=1) if ramp else None,
    )


@st.composite
def snapshots(draw: st.DrawFn) -> PoolSnapshot:
    """Any pool that the planner can meet, open sagas included."""
    count = draw(st.integers(0, 12))
    nodes = [
        node(
            f"n{i}",
            health=draw(HEALTH),
            state=draw(st.sampled_from(["active", "active", "active", "registered"])),
            cordoned=draw(st.booleans()),
            lost=(lost := draw(st.integers(0, 4)) == 0),
            lost_at=NOW - timedelta(seconds=draw(st.integers(0, 600))) if lost else None,
            provider_state=draw(st.sampled_from(["", "present", "gone", "disconnected"]))
            if lost
            else "",
            health_at=NOW - timedelta(seconds=draw(st.integers(0, 600))),
            health_kind=draw(st.sampled_from(["", "xid", "xid", "ecc_dbe"])),
            health_code=79,
        )
        for i in range(count)
    ]
    opened: dict[str, OpenSaga] = {}
    for each in nodes:
        kind = draw(st.sampled_from(["", "", "", "", "replace", "drain", "scale-down"]))
        if kind and each.state == "active":
            new = f"new-{each.node}" if kind == "replace" else ""
            opened[f"{kind}-{each.node}-1"] = OpenSaga(
                kind=kind,
                node=each.node,
                new_node=new,
                fault_signature=fault_signature(each),
                since=NOW,
            )
    failures = draw(st.integers(0, 3))
    record = pool(
        draw(st.integers(0, 14)),
        open=opened,
        failures=failures,
        retry_at=NOW + timedelta(seconds=draw(st.integers(-5, 5))) if failures else None,
        breaker=draw(breakers(opened)),
        disruptions={str(int(NOW.timestamp()) - 60): draw(st.integers(0, 4))},
        spec=spec(
            budget=BudgetSpec(
                max_quarantined=0, max_unavailable=draw(st.sampled_from([1, 2, "20%", "50%"]))
            ),
            health=HealthSpec(
                lost_after=Duration(300),
                incident=IncidentSpec(
                    nodes=draw(st.integers(2, 5)), hold=Duration(draw(st.sampled_from([0, 300])))
                ),
            ),
        ),
    )
    return snapshot(record, *nodes)


GONE = {"lost": True, "lost_at": NOW, "provider_state": "gone"}


@pytest.mark.parametrize(
    ("changes", "fields", "begun"),
    [
        ({}, {}, 2),
        ({"disruptions": {str(int(NOW.timestamp()) - 60): 9}}, {}, 2),
        ({}, {"health": "unhealthy", "health_at": NOW, "health_action": "reset_gpu"}, 2),
        ({}, {"provider_state": "present"}, 0),
        ({}, {"lost": False, "lost_at": None}, 0),
        ({"breaker": Breaker(state="open", forced=True, cause="operator", since=NOW)}, {}, 2),
        ({"breaker": Breaker(state="open", forced=True, cause="restored", since=NOW)}, {}, 0),
        ({"failures": 2, "retry_at": NOW + timedelta(seconds=60)}, {}, 0),
    ],
    ids=["level", "rate", "unhealthy", "present", "beating", "operator", "restored", "fails"],
)
def test_a_gone_instance_is_a_gap(
    changes: dict[str, Any], fields: dict[str, Any], begun: int
) -> None:
    """Another node drains, and the level is one: what is gone waits for neither level nor rate."""
    drains = OpenSaga(kind="replace", node="n0", new_node="new", since=NOW)
    budget = BudgetSpec(max_quarantined=0, max_unavailable=1, max_replacements=1)
    record = pool(4, open={"replace-n0-1": drains}, spec=spec(budget=budget), **changes)
    nodes = [node(f"n{number}", **{**GONE, **fields}) for number in (1, 2)]
    seen = snapshot(record, node("n0", cordoned=True), *nodes, node("n3"))
    decided = plan(seen, NOW)

    assert begun == len(decided.start)
    assert all(each.kind == "replace" and each.gone for each in decided.start.values())
    if begun:
        assert 1 == unavailable(decided.record, seen.nodes)
        assert record.disruptions == decided.record.disruptions


@given(snapshots())
def test_no_plan_exceeds_the_budget(snapshot: PoolSnapshot) -> None:
    """No more nodes are out than allowed, or than before; gone nodes are gaps."""
    decided = plan(snapshot, NOW)
    by_name = {each.node: each for each in snapshot.nodes}
    allowed = limit(snapshot.record.spec.budget.max_unavailable, snapshot.record.desired)
    fresh = [each for each in decided.start.values() if DEFINITIONS[each.kind].disrupts]
    newly_out = [each for each in fresh if not by_name[each.node].cordoned and not each.gone]

    assert not newly_out or unavailable(decided.record, snapshot.nodes) <= allowed


@given(snapshots())
def test_no_healthy_node_is_replaced(snapshot: PoolSnapshot) -> None:
    """Remediation takes only unhealthy nodes."""
    by_name = {each.node: each for each in snapshot.nodes}
    for opened in plan(snapshot, NOW).start.values():
        if opened.kind == "replace":
            assert remediation_reason(by_name[opened.node], snapshot.record, NOW)


@given(snapshots())
def test_at_most_one_open_saga_per_node(snapshot: PoolSnapshot) -> None:
    """A node with an open saga is left alone."""
    decided = plan(snapshot, NOW)
    taken = busy(snapshot.record)
    fresh = [name for s in decided.start.values() for name in (s.node, s.new_node) if name]

    assert not taken & set(fresh)
    assert len(fresh) == len(set(fresh))


@given(snapshots())
def test_planning_is_idempotent(snapshot: PoolSnapshot) -> None:
    """Nothing starts a second time with the new record and the same nodes."""
    first = plan(snapshot, NOW)
    again = plan(
        PoolSnapshot(fleet="f", record=first.record, nodes=snapshot.nodes, revision=8), NOW
    )

    assert {} == again.start


@given(snapshots())
def test_plan_never_exceeds_the_desired_size(snapshot: PoolSnapshot) -> None:
    """Launches never exceed the size, and reach it if nothing forbids them."""
    decided = plan(snapshot, NOW)
    before = size(snapshot.record, snapshot.nodes)
    after = size(decided.record, snapshot.nodes)
    waits = snapshot.record.retry_at is not None and snapshot.record.retry_at > NOW

    assert after <= max(before, snapshot.record.desired)
    assert waits or after >= snapshot.record.desired


@given(snapshots(), st.data())
def test_node_counts_do_not_depend_on_grouping(snapshot: PoolSnapshot, data: st.DataObject) -> None:
    """A pool's size is that of the set of remaining names, whichever of them are spares."""
    spare = data.draw(st.sets(st.sampled_from([each.node for each in snapshot.nodes] or [""])))
    nodes = [msgspec.structs.replace(each, spare=each.node in spare) for each in snapshot.nodes]
    opened = snapshot.record.open.values()
    leaving = {each.node for each in opened if DEFINITIONS[each.kind].removes_node}
    staying = {each.node for each in nodes if not each.spare} | {each.new_node for each in opened}

    assert len(staying - leaving - {""}) == size(snapshot.record, Nodes(nodes))
