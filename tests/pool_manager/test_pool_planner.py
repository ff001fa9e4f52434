"""The reconciler's decisions: examples and properties."""

from datetime import UTC, datetime, timedelta

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
from services.pool_manager.sagas import DEFINITIONS

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def spec(**changes: object) -> PoolSpec:
    """A pool from 0 to 1,000 nodes."""
    plain = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=1000)
    return msgspec.structs.replace(plain, **changes)


def pool(desired: int, **changes: object) -> PoolRecord:
    """A pool that wants `desired` nodes."""
    return msgspec.structs.replace(
        PoolRecord(name="training", spec=spec(), desired=desired, serial=100), **changes
    )


def node(name: str, **changes: object) -> NodeRecord:
    """A healthy node in service."""
    plain = NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=NOW
    )
    return msgspec.structs.replace(plain, **changes)


def snapshot(record: PoolRecord, *nodes: NodeRecord) -> PoolSnapshot:
    """A pool and its nodes."""
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
def test_the_budget_is_a_count_or_a_share_rounded_up(
    max_unavailable: int | str, desired: int, allowed: int
) -> None:
    """At least one, so that small pools are repaired too."""
    assert allowed == limit(max_unavailable, desired)


def test_a_gap_is_filled_and_a_second_look_adds_nothing() -> None:
    """Two nodes short: two sagas; the record that holds them asks for no more."""
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
def test_nothing_is_to_be_looked_at_again_at_a_moment_that_has_passed(
    record: PoolRecord, found: tuple[NodeRecord, ...]
) -> None:
    """A timer in the past fires at once, and the look that it brings would set it again."""
    decided = plan(snapshot(record, *found), NOW)
    assert decided.wake_at is None or decided.wake_at > NOW


def test_a_silent_node_is_replaced_only_when_it_was_silent_long_enough() -> None:
    """Before `lost_after` the plan is to look again; after it, to replace."""
    silent = node("a", lost=True, lost_at=NOW, provider_state="present")
    early = plan(snapshot(pool(1), silent), NOW + timedelta(seconds=299))
    late = plan(snapshot(pool(1), silent), NOW + timedelta(seconds=300))

    assert {} == early.start
    assert NOW + timedelta(seconds=300) == early.wake_at
    assert ["replace-a-1"] == list(late.start)


def test_while_launches_fail_no_sick_node_is_taken_out() -> None:
    """A replacement that could not be filled would shrink the pool: unhealthy nodes wait."""
    failing = pool(2, failures=3, retry_at=NOW + timedelta(seconds=8))
    decided = plan(snapshot(failing, node("a", health="unhealthy"), node("b")), NOW)

    assert {} == decided.start
    assert ("open", "launches-fail") == (
        decided.record.breaker.state,
        decided.record.breaker.cause,
    )
    assert "launches fail (3 in a row)" in decided.events[0].reason  # type: ignore[attr-defined]
    assert failing.retry_at == decided.wake_at


def test_a_pool_that_may_not_cost_more_still_has_its_sick_nodes_replaced() -> None:
    """What a spend_cap forbids says nothing about launches, and its gap was never in service."""
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
def test_only_growth_that_a_cap_alone_forbids_lets_repairs_go_on(
    kind: SagaKind, failures: int, over_spend_cap: bool, holds_back: bool
) -> None:
    """Whatever else keeps nodes from coming up would leave a gap."""
    opened = {"s": OpenSaga(kind=kind, new_node="c", since=NOW)}
    before = pool(2, open=opened, failures=failures)
    ended = close(before, "s", failed=True, now=NOW, over_spend_cap=over_spend_cap)

    assert holds_back == (not ended.over_spend_cap)


def test_a_sick_node_that_is_cordoned_already_is_replaced_though_the_budget_is_spent() -> None:
    """It is out of service anyway; replacing it takes out nothing more."""
    spent = pool(3, spec=spec(budget=BudgetSpec(max_unavailable=1)))
    decided = plan(
        snapshot(spent, node("a", health="unhealthy", cordoned=True), node("b"), node("c")), NOW
    )

    assert ["replace-a-1"] == list(decided.start)


def test_surplus_takes_the_sick_then_the_cordoned_then_the_youngest() -> None:
    """What is of least use leaves first."""
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
def test_each_failure_in_a_row_makes_the_next_try_wait_longer(failures: int, seconds: int) -> None:
    """Doubling, up to ten minutes; a success forgets them."""
    opened = {"s": OpenSaga(kind="scale-up", new_node="x", since=NOW)}
    failed = close(pool(1, open=opened, failures=failures), "s", failed=True, now=NOW)
    fine = close(pool(1, open=opened, failures=failures), "s", failed=False, now=NOW)

    assert NOW + timedelta(seconds=seconds) == failed.retry_at
    assert (0, None) == (fine.failures, fine.retry_at)


def test_names_differ_between_fleets_and_serials() -> None:
    """A fleet that lost its bus does not name the same instance again."""
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
def worlds(draw: st.DrawFn) -> PoolSnapshot:
    """Any pool that a reconciler can come upon, sagas under way included."""
    count = draw(st.integers(0, 12))
    nodes = [
        node(
            f"n{i}",
            health=draw(HEALTH),
            state=draw(st.sampled_from(["active", "active", "active", "registered"])),
            cordoned=draw(st.booleans()),
            lost=(lost := draw(st.integers(0, 4)) == 0),
            lost_at=NOW - timedelta(seconds=draw(st.integers(0, 600))) if lost else None,
            provider_state=draw(st.sampled_from(["", "present", "gone"])) if lost else "",
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
            budget=BudgetSpec(max_unavailable=draw(st.sampled_from([1, 2, "20%", "50%"]))),
            health=HealthSpec(
                lost_after=Duration(300),
                incident=IncidentSpec(
                    nodes=draw(st.integers(2, 5)), hold=Duration(draw(st.sampled_from([0, 300])))
                ),
            ),
        ),
    )
    return snapshot(record, *nodes)


@given(worlds())
def test_the_budget_is_never_exceeded_by_a_decision(given_world: PoolSnapshot) -> None:
    """What is begun leaves no more out of service than allowed, or none more than before."""
    decided = plan(given_world, NOW)
    by_name = {each.node: each for each in given_world.nodes}
    allowed = limit(given_world.record.spec.budget.max_unavailable, given_world.record.desired)
    fresh = [each for each in decided.start.values() if DEFINITIONS[each.kind].disrupts]
    newly_out = [each for each in fresh if not by_name[each.node].cordoned]

    assert not newly_out or unavailable(decided.record, given_world.nodes) <= allowed


@given(worlds())
def test_no_healthy_node_is_ever_replaced(given_world: PoolSnapshot) -> None:
    """The health path takes only what is unhealthy by the core's own word."""
    by_name = {each.node: each for each in given_world.nodes}
    for opened in plan(given_world, NOW).start.values():
        if opened.kind == "replace":
            assert remediation_reason(by_name[opened.node], given_world.record, NOW)


@given(worlds())
def test_at_most_one_open_saga_per_node(given_world: PoolSnapshot) -> None:
    """What is spoken for is left alone."""
    decided = plan(given_world, NOW)
    taken = busy(given_world.record)
    fresh = [name for s in decided.start.values() for name in (s.node, s.new_node) if name]

    assert not taken & set(fresh)
    assert len(fresh) == len(set(fresh))


@given(worlds())
def test_deciding_again_decides_nothing_more(given_world: PoolSnapshot) -> None:
    """Idempotent: with the new record and the same nodes, nothing starts a second time."""
    first = plan(given_world, NOW)
    again = plan(
        PoolSnapshot(fleet="f", record=first.record, nodes=given_world.nodes, revision=8), NOW
    )

    assert {} == again.start


@given(worlds())
def test_never_more_nodes_than_wanted(given_world: PoolSnapshot) -> None:
    """New nodes never bring the pool above its size, and it is at its size where it may be."""
    decided = plan(given_world, NOW)
    before = size(given_world.record, given_world.nodes)
    after = size(decided.record, given_world.nodes)
    waits = given_world.record.retry_at is not None and given_world.record.retry_at > NOW

    assert after <= max(before, given_world.record.desired)
    assert waits or after >= given_world.record.desired


@given(worlds(), st.data())
def test_sorting_nodes_out_once_changes_no_count(
    given_world: PoolSnapshot, data: st.DataObject
) -> None:
    """A pool's size is that of the set of names that stay, whichever of them are spare."""
    spare = data.draw(st.sets(st.sampled_from([each.node for each in given_world.nodes] or [""])))
    nodes = [msgspec.structs.replace(each, spare=each.node in spare) for each in given_world.nodes]
    opened = given_world.record.open.values()
    leaving = {each.node for each in opened if DEFINITIONS[each.kind].removes_node}
    staying = {each.node for each in nodes if not each.spare} | {each.new_node for each in opened}

    assert len(staying - leaving - {""}) == size(given_world.record, Nodes(nodes))
