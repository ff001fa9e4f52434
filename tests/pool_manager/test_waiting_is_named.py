"""Nodes that wait name a gate, an end or a remedy, and the planner looks again at that end."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.breaker_state import Breaker
from schemas.duration import Duration
from schemas.pool_records import PoolRecord
from schemas.present_answers import Block
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PluginSettings
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.gates.gate_table import GATES
from services.pool_manager.planner.node_counts import Nodes, busy
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediator import BUILT_IN
from tests.pool_manager.test_gates import FREEZE, HELD, NOW, RETIRING, SERVICE, node, pool

NAMES = {row.name for row in GATES}
SOON = NOW + timedelta(seconds=20)
LOST: dict[str, Any] = {"lost": True, "lost_at": NOW - timedelta(seconds=5)}
CONDITIONS: list[dict[str, Any]] = [
    {},
    {"health": "unhealthy", "health_fault": "f", "health_at": NOW},
    {"health": "unhealthy", "health_fault": "f", "health_at": NOW, "health_kind": "xid"},
    {"health": "degraded", "health_action": "reset_gpu"},
    RETIRING,
    {**LOST, "provider_state": "present"},
    {**LOST, "provider_state": "gone"},
    {**LOST, "provider_state": ""},
    {**LOST, "provider_state": "disconnected"},
]
BREAKERS = [
    Breaker(),
    Breaker(ramp=1, ramp_from=NOW, ramp_since=NOW),
    Breaker(state="open", since=NOW, cause="probe-failed", reason="x", probe_at=SOON),
    Breaker(state="open", since=NOW, cause="level", reason="x"),
    Breaker(state="open", since=NOW, cause="operator", reason="x", forced=True),
]
nodes_drawn = st.lists(
    st.tuples(st.sampled_from(CONDITIONS), st.booleans(), st.booleans()), min_size=1, max_size=5
)


@st.composite
def pools(draw: st.DrawFn) -> PoolRecord:
    """Draw a pool in some state."""
    remediation = PluginSettings(type=draw(st.sampled_from(["replace", "ladder", "alert"])))
    incident = IncidentSpec(nodes=draw(st.sampled_from([2, 1000])))
    health = HealthSpec(
        auto_replace=draw(st.integers(0, 4)) > 0, remediation=remediation, incident=incident
    )
    budget = BudgetSpec(
        max_unavailable=draw(st.sampled_from([0, 1, "100%"])),
        max_replacements=draw(st.sampled_from([1, "unlimited"])),
        window=Duration(3600),
    )
    record = pool(
        draw(st.integers(1, 5)),
        mode=draw(st.sampled_from(["act", "act", "observe"])),
        windows=draw(st.sampled_from([(), (FREEZE,), (SERVICE,)])),
        health=health,
        budget=budget,
    )
    failures = draw(st.sampled_from([0, 0, 2]))
    refused = draw(st.sampled_from([None, None, SOON]))
    return msgspec.structs.replace(
        record,
        breaker=draw(st.sampled_from(BREAKERS)),
        failures=failures,
        retry_at=SOON if failures else None,
        cordon_at=refused,
        refused_cordons=1 if refused else 0,
    )


def decided(record: PoolRecord, nodes: Nodes, now: datetime = NOW) -> PoolPlan:
    """Decide about the pool."""
    built_in = BUILT_IN[record.spec.health.remediation.type]
    chooses = built_in(options=built_in.Options())
    seen = PoolSnapshot(fleet="f", record=record, nodes=nodes, revision=7, remediator=chooses)
    return plan(seen, now)


def waiting(record: PoolRecord, nodes: Nodes, now: datetime = NOW) -> dict[str, tuple[Block, ...]]:
    """Return what nodes wait for that need something, and that nothing is begun about."""
    answer, taken = present_answer(record, nodes, now), busy(record)
    named = {each.node: answer.of(each.node).blocked for each in nodes if each.node not in taken}
    needy = {each.node for each in nodes if each.health in ("unhealthy", "degraded") or each.lost}
    return {name: blocked for name, blocked in named.items() if name in needy}


def is_named(blocked: tuple[Block, ...]) -> bool:
    """Return whether a gate, an end or a remedy is named."""
    return any(each.gate in NAMES or each.until or each.remedy for each in blocked)


@settings(max_examples=400)
@given(record=pools(), drawn=nodes_drawn)
def test_what_does_not_start_names_a_gate_an_end_or_a_remedy(
    record: PoolRecord, drawn: list[tuple[dict[str, Any], bool, bool]]
) -> None:
    """A node starts at that end, or names another gate, and the planner looks again by then."""
    nodes = Nodes(
        node(f"n{number}", **about, **(HELD if held else {}), cordoned=cordoned)
        for number, (about, held, cordoned) in enumerate(drawn)
    )
    first = decided(record, nodes)
    for name, blocked in waiting(first.record, nodes).items():
        assert is_named(blocked), blocked
        for each in blocked:
            if each.until is None:
                continue
            assert first.wake_at is not None
            assert first.wake_at <= each.until
            then = decided(first.record, nodes, each.until)
            still = waiting(then.record, nodes, each.until).get(name)
            assert still is None or is_named(still), still
            assert (each.gate, each.until) not in [(one.gate, one.until) for one in still or ()]


def test_a_node_that_is_well_waits_for_nothing() -> None:
    """Nothing is named of it."""
    assert {} == waiting(pool(1), Nodes([node("a")]))
