"""Unhealthy nodes get no new work while their repair waits, up to a cap of their own."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.breaker_state import Breaker
from schemas.duration import Duration
from schemas.enums import SagaKind
from schemas.fault_signature import FATAL_XIDS, SILENCE
from schemas.fleet_budget import BudgetClaim
from schemas.node_records import NodeRecord, Quarantine, RemediationAttempt, WorkloadView
from schemas.pool_events import QuarantineFull
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_params import SagaParams, traits_of
from schemas.settings import (
    BudgetSpec,
    FleetBudgetSpec,
    HealthSpec,
    IncidentSpec,
    PluginSettings,
    PoolSpec,
    WindowSpec,
)
from services.pool_manager.planner.disruption_budget import Others, allowance
from services.pool_manager.planner.node_counts import (
    Nodes,
    in_place_attempts,
    is_left_by_repair,
    quarantined,
)
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediator import AlertOnly
from services.pool_manager.planner.saga_projection import leaving_node
from services.pool_manager.planner.sizing.open_sagas import begin
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState, StepState
from tests.support.saga_states import saga_state

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SHUT = Breaker(state="open", forced=True, cause="operator", since=NOW)
SET = Quarantine(reason="xid-79", since=NOW)
OUT = {"cordoned": True, "quarantine": SET}
FROZEN = (WindowSpec(name="f", kind="freeze", start="0 0 * * *", duration=Duration(86_400)),)


def pool(desired: int = 10, most: int | str = 2, **changes: object) -> PoolRecord:
    """A pool whose breaker an operator has opened."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=100,
        budget=BudgetSpec(max_unavailable=1, max_quarantined=most),
        health=HealthSpec(incident=IncidentSpec(nodes=1000)),
    )
    fields = {"breaker": SHUT} | changes
    of_spec = {key: fields.pop(key) for key in ("windows", "mode", "health") if key in fields}
    spec = msgspec.structs.replace(spec, **of_spec)
    return PoolRecord(name="training", spec=spec, desired=desired, serial=100, **fields)


def node(name: str, **changes: object) -> NodeRecord:
    """Return a healthy node in service."""
    plain = {"state": "active", "health": "healthy", "admitted_at": NOW, "health_at": NOW}
    return NodeRecord(pool="training", node=name, **(plain | changes))


def unhealthy(name: str, **changes: object) -> NodeRecord:
    """Return an unhealthy node."""
    return node(name, **({"health": "unhealthy", "health_fault": name} | changes))


def fatal(number: int, **changes: object) -> NodeRecord:
    """Return an unhealthy node with a fatal fault, another one than its neighbours have."""
    code = sorted(FATAL_XIDS)[number % len(FATAL_XIDS)]
    return unhealthy(f"n{number}", health_kind="xid", health_code=code, **changes)


def decided(record: PoolRecord, *nodes: NodeRecord, **more: object) -> PoolPlan:
    """Return the plan of a pool with these nodes and healthy ones up to its size."""
    known = {each.node for each in nodes}
    rest = [node(f"z{i}") for i in range(record.desired - len(known))]
    snapshot = PoolSnapshot(
        fleet="f", record=record, nodes=Nodes([*nodes, *rest]), revision=7, **more
    )
    return plan(snapshot, NOW)


@pytest.mark.parametrize(
    ("record", "about", "expected"),
    [
        (pool(), unhealthy("a"), ["quarantine-a-1"]),
        (pool(most=0), unhealthy("a"), []),
        (pool(breaker=Breaker(), windows=FROZEN), unhealthy("a"), ["quarantine-a-1"]),
        (pool(breaker=Breaker()), unhealthy("a"), ["replace-a-1"]),
        (pool(), node("a"), []),
        (pool(), node("a", health="degraded"), []),
        (pool(), unhealthy("a", cordoned=True), []),
        (pool(), unhealthy("a", **OUT), []),
        (pool(), unhealthy("a", held_until=NOW + timedelta(hours=1)), []),
        (pool(), unhealthy("a", workload=WorkloadView(system="s", cordoned=True)), []),
        (pool(mode="observe"), unhealthy("a"), []),
        (pool(health=HealthSpec(auto_replace=False)), unhealthy("a"), []),
        (pool(breaker=msgspec.structs.replace(SHUT, cause="restored")), unhealthy("a"), []),
        # What is healthy again goes back into service, but only from a quarantine.
        (pool(), node("a", **OUT), ["uncordon-a-1"]),
        (pool(), node("a", health="degraded", **OUT), ["uncordon-a-1"]),
        (pool(), node("a", cordoned=True), []),
        (pool(), node("a", lost=True, lost_at=NOW, **OUT), []),
        (pool(), node("a", workload=WorkloadView(system="s", cordoned=True), **OUT), []),
    ],
)
def test_quarantine_depends_on_the_node_alone(
    record: PoolRecord, about: NodeRecord, expected: list[str]
) -> None:
    """Breaker and window delay none; holds, operators and other systems do."""
    assert expected == list(decided(record, about).start)


def repaired(
    signature: str = "silence",
    *,
    by_operator: bool = False,
    for_silence: bool = False,
    **changes: object,
) -> NodeRecord:
    """A node whose reboot failed an hour ago, and that has been well since."""
    began, ended = NOW - timedelta(hours=1), NOW - timedelta(minutes=50)
    attempt = RemediationAttempt(
        saga="reboot-a-3",
        kind="reboot",
        fault_signature=signature,
        for_silence=for_silence,
        at=began,
        ended_at=ended,
        outcome="failed",
        cordoned_by_operator=by_operator,
    )
    plain = {"cordoned": True, "cordoned_at": began, "sagas": 3, "attempts": (attempt,)}
    return node("a", **(plain | changes))


@pytest.mark.parametrize(
    ("about", "released"),
    [
        (repaired(), True),
        (repaired("xid-79"), True),
        # Its verdict is older than the repair.
        (repaired(health_at=NOW - timedelta(hours=2)), True),
        (repaired("xid-79", health_at=NOW - timedelta(hours=2)), False),
        (repaired(health="unhealthy"), False),
        (repaired("xid-79", health="degraded"), False),
        (repaired(lost=True, lost_at=NOW), False),
        # Cordoned by an operator before the repair, or by a saga after it.
        (repaired(by_operator=True), False),
        (repaired(sagas=4), False),
        (repaired(held_until=NOW + timedelta(hours=1)), False),
        (repaired(""), False),
        # A spare had taken its place, and there was no capacity for another spare.
        (repaired("drifted", health_at=NOW - timedelta(hours=2)), True),
        # Its provider had listed it as stopped.
        (repaired("", for_silence=True), True),
        (repaired("", for_silence=True, health="degraded"), True),
        (repaired("", for_silence=True, health="unhealthy"), False),
    ],
)
def test_a_node_that_is_well_after_a_failed_repair_goes_back_into_service(
    about: NodeRecord, released: bool
) -> None:
    """A host may come up after the deadline of its reboot: no operator needs to notice."""
    assert ["uncordon-a-4"] * released == list(decided(pool(), about).start)


def test_a_failed_order_is_repeated_after_a_minute() -> None:
    """An order that fails at once does not lead to one saga after another."""
    fresh = Quarantine(since=NOW, failed_at=NOW)
    waits = decided(pool(), unhealthy("a", cordoned=True, quarantine=fresh))
    assert ([], NOW + timedelta(minutes=1)) == (list(waits.start), waits.wake_at)
    old = Quarantine(since=NOW, failed_at=NOW - timedelta(minutes=1))
    assert ["quarantine-a-1"] == list(decided(pool(), unhealthy("a", quarantine=old)).start)


def test_the_alert_remediation_leaves_every_decision_to_operators() -> None:
    """A quarantine is such a decision."""
    health = HealthSpec(remediation=PluginSettings(type="alert"))
    alone = AlertOnly(options=AlertOnly.Options())
    assert {} == decided(pool(health=health), unhealthy("a"), remediator=alone).start


def test_the_cap_is_published_once_with_what_to_do() -> None:
    """One event when it is reached, one when it no longer is."""
    full = decided(pool(most=1), unhealthy("a"), unhealthy("b"))
    [event] = [each for each in full.events if isinstance(each, QuarantineFull)]
    assert ("opened", 1, 1, ("b",)) == (
        *(event.status, event.quarantined, event.limit),
        event.waiting,
    )
    assert "navarch cordon" in event.remedy
    again = decided(full.record, unhealthy("a", **OUT), unhealthy("b"))
    assert not [each for each in again.events if isinstance(each, QuarantineFull)]
    over = decided(full.record, unhealthy("a", **OUT), node("b"))
    assert ["closed"] == [e.status for e in over.events if isinstance(e, QuarantineFull)]


def test_a_repair_that_has_not_cordoned_its_node_holds_its_place_under_the_cap() -> None:
    """Where the repair fails before that, its node is quarantined again at once."""
    repair = OpenSaga(kind="replace", node="a", new_node="n", since=NOW)
    record = pool(most=1, open={"replace-a-2": repair})
    before, after = unhealthy("a", **OUT), unhealthy("a", cordoned=True)
    assert [] == list(decided(record, before, unhealthy("b")).start)
    assert ["quarantine-b-1"] == list(decided(record, after, unhealthy("b")).start)


def test_the_fleets_cap_counts_every_pool() -> None:
    """Two of three are quarantined in another pool: one is left."""
    spec = FleetBudgetSpec(max_quarantined=3)
    claim = BudgetClaim(desired=10, quarantined=2)
    others = Others(spec=spec, desired=10, quarantined=2, claims=(claim,))
    begun = decided(pool(most=5), *map(unhealthy, "abc"), others=others)
    assert ["quarantine-a-1"] == list(begun.start)


def test_a_wave_uses_half_of_the_cap() -> None:
    """A node that fails beside it comes first."""
    health = HealthSpec(incident=IncidentSpec(nodes=5, percent=1))
    wave = [unhealthy(f"w{i}", health_kind="xid", health_code=79) for i in range(6)]
    other = unhealthy("x", health_kind="xid", health_code=48, health_at=NOW - timedelta(hours=1))
    begun = decided(pool(most=4, breaker=Breaker(), health=health), *wave, other)
    kept = [each for each in begun.start if each.startswith("quarantine")]
    assert ["quarantine-x-1", "quarantine-w0-1"] == kept


def test_repair_of_a_quarantined_node_still_waits_for_the_level() -> None:
    """One of two drains: the quarantine of the other is no reason to begin its repair too."""
    nodes = Nodes([unhealthy("a", **OUT), node("b", cordoned=True)])
    allowed = allowance(pool(2), nodes, None, NOW)
    assert (1, "level") == (allowed.unavailable, allowed.refusal(cordoned=False))
    begun = decided(pool(2, breaker=Breaker()), *nodes)
    assert {} == begun.start
    assert ["replace-a-1"] == list(
        decided(pool(2, breaker=Breaker()), unhealthy("a", **OUT), node("b")).start
    )


@given(
    st.lists(st.sampled_from(["healthy", "unhealthy", "quarantined", "cordoned"]), max_size=12),
    st.sampled_from([0, 1, 3, "10%", "50%"]),
)
def test_never_more_than_the_cap_and_never_a_healthy_node(
    kinds: list[str], most: int | str
) -> None:
    """The cap holds whatever the nodes of a pool have."""
    made = {"quarantined": OUT, "cordoned": {"cordoned": True}}
    nodes = [
        node(f"n{i}") if kind == "healthy" else fatal(i, **made.get(kind, {}))
        for i, kind in enumerate(kinds)
    ]
    record = pool(len(nodes), most)
    begun = decided(record, *nodes)
    chosen = [each.node for each in begun.start.values() if each.kind == "quarantine"]
    assert all(kinds[int(name[1:])] == "unhealthy" for name in chosen)
    allowed = most if isinstance(most, int) else max(1, -(-len(nodes) * int(most[:-1]) // 100))
    before = kinds.count("quarantined")
    count = len(quarantined(begun.record, Nodes(nodes)))
    assert count == min(max(allowed, before), before + kinds.count("unhealthy"))


def saga(kind: str, status: str = "done", **steps: str) -> SagaState:
    """A saga about node a, with these steps."""
    return saga_state(
        saga=f"{kind}-a-2",
        kind=kind,
        params=SagaParams(pool="training", node="a", reason="xid-79"),
        status=status,
        started_at=NOW,
        steps={name: StepState(status=each, ended_at=NOW) for name, each in steps.items()},
    )


@pytest.mark.parametrize(
    ("before", "state", "is_kept"),
    [
        ({}, saga("quarantine", cordon="succeeded"), True),
        (OUT, saga("cordon", cordon="succeeded"), False),
        (OUT, saga("replace", "running", cordon="succeeded"), False),
        (OUT, saga("replace", "running", cordon="started"), True),
        (OUT, saga("uncordon", uncordon="succeeded"), False),
        (OUT, saga("uncordon", "unwound", uncordon="expired"), True),
    ],
)
def test_a_repair_or_an_operators_cordon_takes_a_quarantine_over(
    before: dict[str, object], state: SagaState, is_kept: bool
) -> None:
    """The quarantine's end does not uncordon the node from then on."""
    after = leaving_node(unhealthy("a", **before), state)
    assert after is not None
    assert is_kept == after.is_quarantined
    assert after.cordoned != (state.step("uncordon").status == "succeeded")


@pytest.mark.parametrize(
    ("before", "is_kept"),
    [
        (node("a", cordoned=True), False),
        (unhealthy("a", **OUT), True),
        (repaired(), True),
        (repaired(by_operator=True), False),
    ],
)
@pytest.mark.parametrize("cordon", ["succeeded", "failed", "expired"])
@pytest.mark.parametrize("kind", ["scale-down", "drain", "cordon"])
def test_a_saga_that_is_unwound_leaves_a_cordoned_node_as_it_was(
    kind: SagaKind, before: NodeRecord, is_kept: bool, cordon: str
) -> None:
    """An unwound saga once lifted an operator's cordon and put an unhealthy node into service."""
    name, opened, _ = begin("f", pool(), kind, NOW, node=before)
    params = msgspec.structs.replace(saga(kind).params, **traits_of(opened))
    assert not any(each.undo for each in DEFINITIONS[kind].steps(params))
    under_way = msgspec.structs.replace(saga(kind, "running", cordon=cordon), params=params)
    after = leaving_node(before, msgspec.structs.replace(under_way, saga=name, sequence=8))
    ended = msgspec.structs.replace(under_way, status="unwound", unwinding_at=NOW)
    after = leaving_node(after, msgspec.structs.replace(ended, saga=name))
    assert after is not None
    assert after.cordoned
    # What a failed repair left is released, repaired or replaced as before.
    assert (after.is_quarantined or is_left_by_repair(after)) == is_kept
    assert after.is_quarantined == before.is_quarantined


@pytest.mark.parametrize(("status", "cordoned"), [("expired", True), ("failed", False)])
def test_a_cordon_that_failed_is_marked_for_repetition(status: str, cordoned: bool) -> None:
    """A cordon whose deadline passed may have been carried out: that is unknown."""
    after = leaving_node(unhealthy("a"), saga("quarantine", "unwound", cordon=status))
    assert after is not None
    assert after.quarantine is not None
    assert (cordoned, NOW) == (after.cordoned, after.quarantine.failed_at)


@pytest.mark.parametrize("kind", ["replace", "reset-gpu", "reboot"])
def test_a_repair_that_fails_at_its_cordon_leaves_the_next_quarantine_waiting(kind: str) -> None:
    """The workload system that refuses orders would else get one every two seconds."""
    refused = Quarantine(since=NOW - timedelta(minutes=5), failed_at=NOW - timedelta(minutes=2))
    node = unhealthy("a", cordoned=False, quarantine=refused)
    after = leaving_node(node, saga(kind, "unwound", cordon="failed"))
    assert after is not None
    assert after.quarantine == msgspec.structs.replace(refused, failed_at=NOW)
    assert list(decided(pool(), after).start) == []


@pytest.mark.parametrize(("by", "repeated"), [("", True), ("alice", False)])
def test_a_release_that_fails_is_repeated(by: str, repeated: bool) -> None:
    """A node that is well after a failed repair stayed cordoned where its uncordon was refused."""
    refused = saga("uncordon", "unwound", uncordon="failed")
    params = msgspec.structs.replace(refused.params, by=by)
    refused = msgspec.structs.replace(refused, saga="uncordon-a-4", params=params)
    after = leaving_node(repaired(), refused)
    assert after is not None
    assert (after.cordoned, after.sagas, after.is_quarantined) == (True, 4, repeated)
    assert list(decided(pool(), after).start) == []
    if after.quarantine is not None:
        earlier = msgspec.structs.replace(after.quarantine, failed_at=NOW - timedelta(minutes=1))
        later = msgspec.structs.replace(after, quarantine=earlier)
        assert list(decided(pool(), later).start) == ["uncordon-a-5"]


FAILED = RemediationAttempt(
    saga="reboot-a-0", kind="reboot", at=NOW, outcome="failed", cordoned_by_operator=False
)


@pytest.mark.parametrize(
    ("before", "by_operator"),
    [
        ({}, False),
        (OUT, False),
        ({"cordoned": True}, True),
        ({"cordoned": True, "attempts": (FAILED,)}, False),
        ({"cordoned": True, "attempts": (FAILED,), "sagas": 1}, True),
    ],
)
def test_an_attempt_remembers_whose_cordon_it_found(
    before: dict[str, object], by_operator: bool
) -> None:
    """A repair's own cordon, found in later entries, changes nothing about it."""
    record: NodeRecord | None = node("a", **before)
    later = msgspec.structs.replace(saga("reboot", "unwound", cordon="succeeded"), sequence=10)
    for state in (saga("reboot", "running"), later):
        record = leaving_node(record, state)
    assert record is not None
    assert record.cordoned
    assert record.attempts[-1].cordoned_by_operator == by_operator


@pytest.mark.parametrize(
    ("before", "by", "released"),
    [
        ({}, "", True),
        (OUT, "", True),
        ({"cordoned": True}, "", False),  # an operator's
        ({}, "alice", False),
        ({"attempts": (FAILED,) * 16}, "", True),
    ],
)
def test_a_failed_replacement_leaves_no_well_node_cordoned(
    before: dict[str, object], by: str, released: bool
) -> None:
    """A silent node whose successor could not be launched goes back once it is heard again."""
    days_ago = NOW - timedelta(days=1)
    silent = node("a", lost=True, lost_at=NOW, health_at=days_ago, **({"sagas": 1} | before))
    record: NodeRecord | None = silent
    begun = saga("replace", "running")
    params = msgspec.structs.replace(begun.params, by=by, fault_signature=SILENCE)
    failed = msgspec.structs.replace(saga("replace", "unwound", cordon="succeeded"), sequence=10)
    for state in (begun, failed):
        record = leaving_node(record, msgspec.structs.replace(state, params=params))
    assert record is not None
    assert record.cordoned
    assert list(decided(pool(), record).start) == []
    heard = msgspec.structs.replace(record, lost=False, lost_at=None)
    assert [each.split("-")[0] for each in decided(pool(), heard).start] == ["uncordon"] * released
    # It is no attempt at repairing the node, and none of these is forgotten for it.
    assert in_place_attempts(heard.attempts) == list(silent.attempts)[-15:]
