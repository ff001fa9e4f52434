"""What keeps automation off a node: holds, freezes, a pool that only observes. Decisions alone."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.node_records import NodeRecord
from schemas.pool_events import WouldStart
from schemas.pool_records import PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec, WindowSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.eligibility import blocked_reason, refusal

NOW = datetime(2026, 5, 5, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=2)
FREEZE = WindowSpec(name="launch-week", kind="freeze", start="0 9 * * 2", duration=Duration(36_000))
SERVICE = WindowSpec(name="sunday", kind="service", start="0 2 * * 0", duration=Duration(7200))


def pool(desired: int, **changes: object) -> PoolRecord:
    """A pool that may repair all of its nodes at once, and takes nothing for one incident."""
    spec = msgspec.structs.replace(
        PoolSpec(
            provider="p",
            instance_type="t",
            min_nodes=0,
            max_nodes=100,
            budget=BudgetSpec(max_unavailable="100%"),
            health=HealthSpec(incident=IncidentSpec(nodes=1000)),
        ),
        **changes,
    )
    return PoolRecord(name="training", spec=spec, desired=desired, serial=10)


def node(name: str, **changes: object) -> NodeRecord:
    """A healthy node in service."""
    plain = NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=NOW
    )
    return msgspec.structs.replace(plain, **changes)


def sick(name: str, **changes: object) -> NodeRecord:
    """An unhealthy one."""
    return node(name, health="unhealthy", health_fault=f"fault-{name}", health_at=NOW, **changes)


HELD = {"held_until": LATER, "held_by": "ada", "held_reason": "bisecting"}
LOST = {
    "lost": True,
    "lost_at": NOW - timedelta(days=1),
    "provider_state": "gone",
    "health": "healthy",
}


def begun(record: PoolRecord, *nodes: NodeRecord, now: datetime = NOW) -> list[str]:
    """What the reconciler begins."""
    return sorted(
        plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), now).start
    )


@pytest.mark.parametrize(
    ("record", "nodes", "expected"),
    [
        (pool(1), (sick("a"),), ["replace-a-1"]),
        (pool(1), (sick("a", **HELD),), []),
        (pool(2), (sick("a", **HELD), sick("b")), ["replace-b-1"]),
        # A surplus leaves a held node alone, and takes another.
        (pool(1), (node("a", **HELD), node("b")), ["scale-down-b-1"]),
        (pool(0), (node("a", **HELD),), []),
        (pool(1), (node("a", **HELD, **LOST),), []),
        # A freeze: nothing that disturbs; on a silent node nothing is left to disturb.
        (pool(1, windows=(FREEZE,)), (sick("a"),), []),
        (pool(0, windows=(FREEZE,)), (node("a"),), []),
        (pool(1, windows=(FREEZE,)), (node("a", **LOST),), ["replace-a-1"]),
        (pool(1, windows=(SERVICE,)), (sick("a"),), ["replace-a-1"]),
    ],
)
def test_what_is_held_or_frozen_is_left_alone(
    record: PoolRecord, nodes: tuple[NodeRecord, ...], expected: list[str]
) -> None:
    """Nothing automatic takes such a node out; everything else goes on."""
    assert expected == begun(record, *nodes)


def test_a_freeze_keeps_no_gap_open() -> None:
    """What heals goes on in a freeze: a missing node is launched."""
    assert 1 == len(begun(pool(1, windows=(FREEZE,))))


def test_a_hold_ends_by_itself() -> None:
    """The plan is to look again when it ends; then the node is replaced."""
    held = PoolSnapshot(fleet="f", record=pool(1), nodes=Nodes([sick("a", **HELD)]), revision=7)
    early, late = plan(held, NOW), plan(held, LATER)

    assert (LATER, ()) == (early.wake_at, early.released)
    assert ["replace-a-1"] == list(late.start)
    assert tuple(held.nodes) == late.released


def test_a_freeze_is_looked_at_again_when_it_ends() -> None:
    """A sick node that a freeze keeps is replaced at its end."""
    frozen = PoolSnapshot(
        fleet="f", record=pool(1, windows=(FREEZE,)), nodes=Nodes([sick("a")]), revision=7
    )
    decided = plan(frozen, NOW)

    assert datetime(2026, 5, 5, 19, tzinfo=UTC) == decided.wake_at
    assert ["replace-a-1"] == list(plan(frozen, decided.wake_at).start)


@pytest.mark.parametrize(
    ("windows", "now", "told"),
    [
        ((), NOW, ""),
        ((SERVICE,), NOW, "it can wait for a service window, next at 05-10 02:00 UTC"),
        ((SERVICE,), datetime(2026, 5, 10, 2, 30, tzinfo=UTC), ""),
        ((SERVICE, FREEZE), NOW, "the window launch-week keeps it as it is until 05-05 19:00 UTC"),
    ],
)
def test_what_can_wait_waits_for_a_service_window(
    windows: tuple[WindowSpec, ...], now: datetime, told: str
) -> None:
    """Where the pool has one; where it has none, nothing is waited for."""
    assert told == blocked_reason(node("a"), pool(1, windows=windows), now, can_wait=True)


# --- mode: observe -------------------------------------------------------------------------------


def look(record: PoolRecord, *nodes: NodeRecord) -> tuple[PoolRecord, list[WouldStart]]:
    """One look at a pool that only observes: its record, and what is told; nothing may begin."""
    decided = plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), NOW)
    assert {} == decided.start
    return decided.record, [each for each in decided.events if isinstance(each, WouldStart)]


def test_a_pool_that_observes_tells_each_decision_once() -> None:
    """A replacement and two launches are told; looked at again, nothing is new."""
    first, told = look(pool(4, mode="observe"), sick("a"), node("b"))
    again, more = look(first, sick("a"), node("b"))

    assert [("replace", "a", 0), ("scale-up", "", 2)] == [
        (each.kind, each.node, each.nodes) for each in told
    ]
    assert ({}, 10) == (first.open, first.serial)
    assert ["replace a", "scale-up"] == list(first.observed_actions)
    assert (first, []) == (again, more)


def test_a_new_cause_is_told_anew_and_what_is_over_is_forgotten() -> None:
    """Another fault of the same node is another decision; a node that is well again is none."""
    first, _ = look(pool(1, mode="observe"), sick("a"))
    second, told = look(first, sick("a", health_kind="xid", health_code=79))
    third, nothing = look(second, node("a"))

    assert ["a"] == [each.node for each in told]
    assert ({}, []) == (third.observed_actions, nothing)


def test_a_pool_that_acts_again_does_what_it_would_have_done() -> None:
    """Set to act, the same look begins the replacement, and nothing of the observing is left."""
    first, _ = look(pool(1, mode="observe"), sick("a"))
    acting = msgspec.structs.replace(first, spec=msgspec.structs.replace(first.spec, mode="act"))
    decided = plan(
        PoolSnapshot(fleet="f", record=acting, nodes=Nodes([sick("a")]), revision=8), NOW
    )

    assert (["replace-a-1"], {}) == (list(decided.start), decided.record.observed_actions)


@given(
    desired=st.integers(0, 8),
    health=st.lists(st.sampled_from(["healthy", "degraded", "unhealthy"]), max_size=8),
    held=st.sets(st.integers(0, 7)),
    mode=st.sampled_from(["act", "observe"]),
    frozen=st.booleans(),
)
def test_nothing_that_is_kept_is_ever_begun(
    *, desired: int, health: list[str], held: set[int], mode: str, frozen: bool
) -> None:
    """No held node is taken out, none at all in a freeze; a pool that observes begins nothing."""
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


# --- people --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "mode", "held", "expected"),
    [
        ("replace", "act", False, ""),
        ("replace", "act", True, "held"),
        ("drain", "act", True, "held"),
        ("cordon", "act", True, ""),
        ("uncordon", "act", True, ""),
        ("replace", "observe", False, "observing"),
        ("drain", "observe", True, "observing"),
        ("cordon", "observe", False, "observing"),
        ("uncordon", "observe", False, "observing"),
    ],
)
def test_people_are_refused_what_a_hold_or_the_mode_forbids(
    verb: str, mode: str, held: bool, expected: str
) -> None:
    """A hold protects from colleagues too; a pool that observes touches nothing."""
    about = node("a", **(HELD if held else {}))
    found = refusal(verb, about, pool(1, mode=mode), NOW)

    assert expected == (found[0] if found else "")
