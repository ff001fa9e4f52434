"""Each gate: what it holds back, until when; and what passes do with holds, windows and modes."""

from datetime import UTC, datetime, timedelta
from typing import Final, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.breaker_state import Breaker, OpenIncident
from schemas.duration import Duration
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_events import WouldStart
from schemas.pool_records import OPEN_UNITS_MAX, SAGA_UNITS, OpenSaga, PoolRecord
from schemas.present_answers import Gate
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec, RackSpec, WindowSpec
from schemas.stops import Stop
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Kind, Proposal
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.sizing.open_sagas import why_full
from services.pool_manager.planner.unhealthy_nodes import UNVERIFIED_TIMES
from services.pool_manager.requests.node_refusals import node_refusal
from services.saga.definitions.saga_steps import HASTY_CORDON_SECONDS

NOW = datetime(2026, 5, 5, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=2)
FREEZE = WindowSpec(name="launch-week", kind="freeze", start="0 9 * * 2", duration=Duration(36_000))
SERVICE = WindowSpec(name="sunday", kind="service", start="0 2 * * 0", duration=Duration(7200))


def pool(desired: int, **changes: object) -> PoolRecord:
    """A pool that may repair all nodes at once, without incidents."""
    spec = msgspec.structs.replace(
        PoolSpec(
            provider="p",
            instance_type="t",
            min_nodes=0,
            max_nodes=100,
            budget=BudgetSpec(max_quarantined=0, max_unavailable="100%"),
            health=HealthSpec(incident=IncidentSpec(nodes=1000)),
        ),
        **changes,
    )
    return PoolRecord(name="training", spec=spec, desired=desired, serial=10)


def node(name: str, **changes: object) -> NodeRecord:
    """Return a healthy node in service."""
    plain = NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=NOW
    )
    return msgspec.structs.replace(plain, **changes)


def unhealthy(name: str, **changes: object) -> NodeRecord:
    """Return an unhealthy node."""
    return node(name, health="unhealthy", health_fault=f"fault-{name}", health_at=NOW, **changes)


HELD = {"held_until": LATER, "held_by": "ada", "held_reason": "bisecting"}
LOST = {
    "lost": True,
    "lost_at": NOW - timedelta(days=1),
    "provider_state": "gone",
    "health": "healthy",
}


def started_sagas(record: PoolRecord, *nodes: NodeRecord, now: datetime = NOW) -> list[str]:
    """The sagas that the plan starts."""
    return sorted(
        plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), now).start
    )


@pytest.mark.parametrize(
    ("record", "nodes", "expected"),
    [
        (pool(1), (unhealthy("a"),), ["replace-a-1"]),
        (pool(1), (unhealthy("a", **HELD),), []),
        (pool(2), (unhealthy("a", **HELD), unhealthy("b")), ["replace-b-1"]),
        # With one node too many, another node than the held one leaves.
        (pool(1), (node("a", **HELD), node("b")), ["scale-down-b-1"]),
        (pool(0), (node("a", **HELD),), []),
        (pool(1), (node("a", **HELD, **LOST),), []),
        # A freeze forbids disruptions; a silent node has nothing left to disrupt.
        (pool(1, windows=(FREEZE,)), (unhealthy("a"),), []),
        (pool(0, windows=(FREEZE,)), (node("a"),), []),
        (pool(1, windows=(FREEZE,)), (node("a", **LOST),), ["replace-a-1"]),
        (pool(1, windows=(SERVICE,)), (unhealthy("a"),), ["replace-a-1"]),
    ],
)
def test_held_and_frozen_nodes_are_left_alone(
    record: PoolRecord, nodes: tuple[NodeRecord, ...], expected: list[str]
) -> None:
    """No automatic saga takes such a node; everything else continues."""
    assert expected == started_sagas(record, *nodes)


def test_freeze_allows_launches() -> None:
    """A missing node is launched during a freeze."""
    assert 1 == len(started_sagas(pool(1, windows=(FREEZE,))))


def test_node_is_replaced_when_its_hold_ends() -> None:
    """The plan is due again when the hold ends; then the node is replaced."""
    held = PoolSnapshot(
        fleet="f", record=pool(1), nodes=Nodes([unhealthy("a", **HELD)]), revision=7
    )
    early, late = plan(held, NOW), plan(held, LATER)

    assert (LATER, ()) == (early.wake_at, early.released)
    assert ["replace-a-1"] == list(late.start)
    assert tuple(held.nodes) == late.released


def test_node_is_replaced_when_a_freeze_ends() -> None:
    """The plan is due again when the freeze ends; then the unhealthy node is replaced."""
    frozen = PoolSnapshot(
        fleet="f", record=pool(1, windows=(FREEZE,)), nodes=Nodes([unhealthy("a")]), revision=7
    )
    decided = plan(frozen, NOW)

    assert datetime(2026, 5, 5, 19, tzinfo=UTC) == decided.wake_at
    assert ["replace-a-1"] == list(plan(frozen, decided.wake_at).start)


@pytest.mark.parametrize(
    ("windows", "now", "expected"),
    [
        ((), NOW, ""),
        ((SERVICE,), NOW, "service-window until 2026-05-10T02:00:00+00:00"),
        ((SERVICE,), datetime(2026, 5, 10, 2, 30, tzinfo=UTC), ""),
        ((SERVICE, FREEZE), NOW, "freeze-window until 2026-05-05T19:00:00+00:00"),
    ],
)
def test_deferrable_work_waits_for_a_service_window(
    windows: tuple[WindowSpec, ...], now: datetime, expected: str
) -> None:
    """Only if the pool has such a window."""
    found = gate_table.first(Proposal("degraded", pool(1, windows=windows), now, node("a")))

    shown = f"{found.gate} until {found.until.isoformat()}" if found and found.until else ""
    assert expected == shown


# --- mode: observe -------------------------------------------------------------------------------


def observe_once(record: PoolRecord, *nodes: NodeRecord) -> tuple[PoolRecord, list[WouldStart]]:
    """Plan once in observe mode, where no saga may start; returns record and events."""
    decided = plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), NOW)
    assert {} == decided.start
    return decided.record, [each for each in decided.events if isinstance(each, WouldStart)]


def test_observe_mode_publishes_each_decision_once() -> None:
    """One replacement and two launches are published; the next plan adds nothing."""
    first, events = observe_once(pool(4, mode="observe"), unhealthy("a"), node("b"))
    again, more = observe_once(first, unhealthy("a"), node("b"))

    assert [("replace", "a", 0), ("scale-up", "", 2)] == [
        (each.kind, each.node, each.nodes) for each in events
    ]
    assert ({}, 10) == (first.open, first.serial)
    assert ["replace a", "scale-up"] == list(first.observed_actions)
    assert (first, []) == (again, more)


def test_observe_mode_publishes_again_for_a_new_cause() -> None:
    """Another fault of a node is another decision; a recovered node's decision is forgotten."""
    first, _ = observe_once(pool(1, mode="observe"), unhealthy("a"))
    second, events = observe_once(first, unhealthy("a", health_kind="xid", health_code=79))
    third, nothing = observe_once(second, node("a"))

    assert ["a"] == [each.node for each in events]
    assert ({}, []) == (third.observed_actions, nothing)


def test_pool_leaving_observe_mode_starts_the_pending_repair() -> None:
    """The same plan, in active mode, starts the replacement, and forgets what it observed."""
    first, _ = observe_once(pool(1, mode="observe"), unhealthy("a"))
    acting = msgspec.structs.replace(first, spec=msgspec.structs.replace(first.spec, mode="act"))
    decided = plan(
        PoolSnapshot(fleet="f", record=acting, nodes=Nodes([unhealthy("a")]), revision=8), NOW
    )

    assert (["replace-a-1"], {}) == (list(decided.start), decided.record.observed_actions)


@given(
    desired=st.integers(0, 8),
    health=st.lists(st.sampled_from(["healthy", "degraded", "unhealthy"]), max_size=8),
    held=st.sets(st.integers(0, 7)),
    mode=st.sampled_from(["act", "observe"]),
    frozen=st.booleans(),
)
def test_no_saga_starts_on_an_ineligible_node(
    *, desired: int, health: list[str], held: set[int], mode: str, frozen: bool
) -> None:
    """Nothing takes a held node, or one during a freeze, and nothing starts in observe mode."""
    nodes = [
        node(f"n{i}", health=each, **(HELD if i in held else {})) for i, each in enumerate(health)
    ]
    record = pool(desired, mode=mode, windows=(FREEZE,) if frozen else ())
    decided = plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), NOW)
    taken = {each.node for each in decided.start.values() if each.node}

    assert not taken & {f"n{i}" for i in held}
    assert not (frozen and taken)
    if mode == "observe":
        assert {} == decided.start
        assert {} == decided.record.open


# --- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "mode", "held", "expected"),
    [
        ("replace", "act", False, ""),
        ("replace", "act", True, "held"),
        ("drain", "act", True, "held"),
        ("terminate", "act", True, "held"),
        ("terminate", "observe", False, "observing"),
        ("cordon", "act", True, ""),
        ("uncordon", "act", True, ""),
        ("replace", "observe", False, "observing"),
        ("drain", "observe", True, "observing"),
        ("cordon", "observe", False, "observing"),
        ("uncordon", "observe", False, "observing"),
    ],
)
def test_operator_requests_are_refused_by_holds_and_observe_mode(
    verb: str, mode: str, held: bool, expected: str
) -> None:
    """A hold protects from other operators too; a pool in observe mode performs nothing."""
    about = node("a", **(HELD if held else {}))
    found = node_refusal(verb, about, pool(1, mode=mode), NOW)

    assert expected == (found[0] if found else "")


# --- every gate ----------------------------------------------------------------------------------

ASKED = NOW + timedelta(seconds=30)
AFTER_LOSS = timedelta(seconds=float(HealthSpec().lost_after))
SILENT = {"lost": True, "lost_at": NOW - timedelta(seconds=1), "provider_state": "present"}
IN_RACK: dict[str, object] = {
    "health": "unhealthy",
    "health_at": NOW,
    "health_kind": "fabric",
    "rack": "r1",
}
RACKS = pool(90, rack=RackSpec(nodes=18), budget=BudgetSpec(max_unavailable=9))
INCIDENT_WINDOW = timedelta(seconds=float(IncidentSpec().window))
STOP = Stop(reason="a wrong image", by="ada", since=NOW, until=LATER)
NOTICE = CloudNotice(
    kind="maintenance", effect="retire", deadline=NOW + timedelta(days=3), at=NOW, reason="old"
)
RETIRING: dict[str, object] = {
    "notices": {"n": NOTICE},
    "health": "degraded",
    "health_kind": "maintenance",
}
RETIRED_BY = NOTICE.deadline and NOTICE.deadline - cloud_notices.needed(pool(1).spec)
OPEN = Breaker(state="open", since=NOW, cause="probe-failed", reason="failed", probe_at=ASKED)
FORCED = Breaker(state="open", since=NOW, cause="operator", reason="look", by="ada", forced=True)
RESTORED = Breaker(state="open", since=NOW, cause="restored", reason="old", forced=True)


WAVE = OpenIncident(since=NOW, last=NOW, nodes=3, kind="xid", code=79, fault="f")
WAVE_ENDS = NOW + timedelta(seconds=float(IncidentSpec().hold))
FULL = {
    f"s{number}": OpenSaga(kind="drain", node=f"x{number}", since=NOW)
    for number in range(OPEN_UNITS_MAX // SAGA_UNITS)
}
BEGUN = {f"{NOW.timestamp():.0f}": 1}
SPENT = BudgetSpec(max_unavailable="100%", max_replacements=1, window=Duration(3600))


def with_record(**changes: object) -> PoolRecord:
    """Return a pool in another state."""
    return msgspec.structs.replace(pool(1), **changes)


GATED: Final[tuple[tuple[Kind, PoolRecord, dict[str, object], str, datetime | None], ...]] = (
    ("repair", pool(1), {}, "stop", LATER),
    ("release", pool(1), HELD, "hold", LATER),
    ("quarantine", pool(1, mode="observe"), {}, "observe", None),
    ("repair", pool(1), RETIRING, "retirement", RETIRED_BY),
    ("surplus", pool(1, windows=(FREEZE,)), {}, "freeze-window", NOW.replace(hour=19)),
    ("renewal", pool(1, windows=(SERVICE,)), {}, "service-window", NOW.replace(day=10, hour=2)),
    ("repair", pool(1, health=HealthSpec(auto_replace=False)), {}, "auto-replace-off", None),
    ("repair", with_record(operator_notified={"a": ""}), {}, "operator", None),
    ("repair", pool(1), SILENT, "loss-confirmation", NOW + AFTER_LOSS - timedelta(seconds=1)),
    (
        *("repair", pool(1), {**SILENT, "provider_state": ""}, "loss-confirmation"),
        NOW + UNVERIFIED_TIMES * AFTER_LOSS - timedelta(seconds=1),
    ),
    (
        *("repair", pool(1), {**SILENT, "provider_state": "disconnected"}),
        *("agent-credentials", None),
    ),
    ("repair", RACKS, IN_RACK, "rack", NOW + INCIDENT_WINDOW),
    ("launch", with_record(retry_at=ASKED), {}, "retry", ASKED),
    ("promotion", with_record(promote_at=ASKED), {}, "retry", ASKED),
    ("renewal", with_record(renew_at=ASKED), {}, "retry", ASKED),
    ("repair", with_record(retry_at=ASKED, failures=2), {}, "retry", ASKED),
    ("degraded", with_record(breaker=OPEN), {}, "breaker", ASKED),
    ("recheck", with_record(breaker=FORCED), {}, "breaker", None),
    ("quarantine", with_record(breaker=RESTORED), {}, "breaker", None),
    ("renewal", with_record(breaker=Breaker(ramp=2)), {}, "ramp", None),
    ("surplus", with_record(cordon_at=ASKED), {}, "workload-system", ASKED),
    (
        *("restart-drain", with_record(cordon_at=LATER, cordon_refused_at=NOW), {}),
        *("workload-system", NOW + timedelta(seconds=HASTY_CORDON_SECONDS)),
    ),
    ("recheck", with_record(incidents={"xid-79": WAVE}), {}, "incident", WAVE_ENDS),
    ("release", with_record(open=FULL), {}, "room", None),
    ("repair", pool(1, budget=BudgetSpec(max_unavailable=0)), {}, "budget", None),
    (
        *("degraded", with_record(spec=pool(1, budget=SPENT).spec, disruptions=BEGUN), {}),
        *("budget", NOW + timedelta(seconds=3600 + 60)),
    ),
)


@pytest.mark.parametrize(("kind", "record", "about", "gate", "until"), GATED)
def test_each_gate_holds_until_its_moment(
    kind: Kind, record: PoolRecord, about: dict[str, object], gate: str, until: datetime | None
) -> None:
    """The gate lets its proposal pass then, or names no moment more; other pools it lets pass."""
    held = proposed(kind, record, about, stop=STOP if gate == "stop" else None)
    [block] = gate_table.every(held)

    assert (gate, until) == (block.gate, block.until)
    assert block.text.endswith((".", block.remedy))
    assert [] == list(gate_table.every(proposed(kind, pool(1), {})))
    if until is not None:
        later = gate_table.every(proposed(kind, record, about, until))
        assert until not in [each.until for each in later]


def proposed(
    kind: Kind,
    record: PoolRecord,
    about: dict[str, object],
    now: datetime = NOW,
    stop: Stop | None = None,
) -> Proposal:
    """A proposal about a node, with what the budget allows."""
    found = node("a", **about)
    allowed = allowance(record, Nodes([found]), None, now)
    full = why_full(record, launches=False)
    return Proposal(kind, record, now, found, allowed=allowed, full=full, stop=stop)


def test_every_gate_of_the_table_is_in_the_test_above() -> None:
    """A new row of the table needs a row there, and its blocks have its name."""
    tried = set()
    for kind, record, about, name, _ in GATED:
        for row in gate_table.rows_of(kind):
            block = row.block(proposed(kind, record, about, stop=STOP))
            assert block is None or block.gate == row.name
            tried |= {row.block} if block is not None and row.name == name else set()
    assert {row.block for row in gate_table.GATES} == tried


def test_passes_are_not_held_by_what_is_only_reported() -> None:
    """Observe mode and a stop show what would begin; an open breaker lets a probe begin."""
    record = with_record(spec=pool(1, mode="observe").spec, breaker=OPEN)
    found = proposed("repair", record, {}, stop=STOP)

    assert ["stop", "observe", "breaker"] == [each.gate for each in gate_table.every(found)]
    assert gate_table.first(found) is None


ONLY_REPORTED: Final = frozenset(
    {
        *(
            "removal",
            "quarantine",
            "quarantine-cap",
            "cordon",
            "spare",
            "on-demand",
            "turn",
            "idle",
        ),
        *("condition", "autoscaler", "drift", "fault", "gap"),
    }
)
"""Names of what is reported beside the gates: test_why.py and its neighbours have their cases."""


def test_every_name_of_a_gate_has_a_row() -> None:
    """A name that no row and no report has would be in no answer."""
    assert set(get_args(Gate)) == {row.name for row in gate_table.GATES} | ONLY_REPORTED
