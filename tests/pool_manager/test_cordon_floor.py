"""A share of a pool stays schedulable, whatever its nodes are accused of."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.breaker_state import Breaker
from schemas.node_records import NodeRecord
from schemas.pool_events import QuarantineFull
from schemas.pool_records import PoolRecord
from schemas.settings import BudgetSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediation.rack_repair import SETTLES
from services.pool_manager.planner.safety.fault_evidence import is_confirmed

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SHUT = Breaker(state="open", forced=True, cause="operator", since=NOW)


def node(name: str, **changes: Any) -> NodeRecord:
    """Return a healthy node in service, or one with the changes."""
    plain = NodeRecord(pool="p", node=name, state="active", health="healthy", admitted_at=NOW)
    return msgspec.structs.replace(plain, **changes)


def accused(name: str, kind: str, code: int, **changes: Any) -> NodeRecord:
    """Return a node that is unhealthy for a fault."""
    return node(
        name, health="unhealthy", health_kind=kind, health_code=code, health_at=NOW, **changes
    )


def decided(budget: BudgetSpec, *nodes: NodeRecord, breaker: Breaker = SHUT) -> PoolPlan:
    """Return the decision about a pool of these nodes."""
    spec = PoolSpec(provider="x", instance_type="t", min_nodes=0, max_nodes=99, budget=budget)
    record = PoolRecord(name="p", spec=spec, desired=len(nodes), serial=99, breaker=breaker)
    return plan(PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7), NOW)


def cordoned(found: PoolPlan) -> int:
    """Return how many nodes are quarantined by a decision."""
    return sum(each.kind == "quarantine" for each in found.start.values())


BUDGETS = [
    # The budget, the fault of eight of ten nodes, and how many of them are cordoned.
    (BudgetSpec(), ("xid", 79), 8, "fatal by the driver: all"),
    (BudgetSpec(), ("fallen_off_bus", 0), 8, "fatal by NVML: all"),
    (BudgetSpec(), ("xid", 13), 5, "a rule's verdict: half of the pool stays"),
    (BudgetSpec(), ("thermal", 0), 5, "so does heat"),
    (BudgetSpec(cordon_floor="80%"), ("xid", 79), 2, "a stated floor holds for all faults"),
    (BudgetSpec(cordon_floor=9), ("thermal", 0), 1, "a count"),
    (BudgetSpec(cordon_floor=0), ("thermal", 0), 8, "none stays"),
    (BudgetSpec(max_quarantined=3), ("xid", 79), 2, "a stated cap binds as well: of a wave half"),
    (BudgetSpec(max_quarantined=0), ("xid", 79), 0, "nothing is quarantined"),
]


@pytest.mark.parametrize(
    ("budget", "fault", "expected"), [b[:3] for b in BUDGETS], ids=[b[3] for b in BUDGETS]
)
def test_cordons_leave_the_floor_schedulable(
    budget: BudgetSpec, fault: tuple[str, int], expected: int
) -> None:
    """The nodes beyond it are named in an alert with the commands."""
    accused_nodes = [accused(f"n{i}", *fault) for i in range(8)]
    found = decided(budget, *accused_nodes, node("a"), node("b"))
    assert cordoned(found) == expected
    full = [each for each in found.events if isinstance(each, QuarantineFull)]
    assert bool(full) == (0 < expected < 8)
    assert all("navarch cordon NODE" in each.remedy for each in full)


def test_a_pool_of_one_is_cordoned() -> None:
    """Half of one node is none."""
    assert cordoned(decided(BudgetSpec(), accused("a", "thermal", 0))) == 1


def test_nodes_that_are_out_count_against_the_floor() -> None:
    """A cordon of an operator counts as well."""
    out = [node(f"c{i}", cordoned=True) for i in range(5)]
    one = accused("a", "thermal", 0)
    assert cordoned(decided(BudgetSpec(), *out, one, *(node(f"h{i}") for i in range(4)))) == 0


@pytest.mark.parametrize(
    ("rack", "seconds", "kinds"),
    [("", 0, {"replace"}), ("r", 0, {"quarantine"}), ("r", 3, {"replace"}), ("s", 0, {"replace"})],
)
def test_a_fault_in_a_rack_settles(rack: str, seconds: float, kinds: set[str]) -> None:
    """A node with five in its rack is cordoned at once, and replaced once none has followed it."""
    one = accused("a", "xid", 79, rack=rack)
    one = msgspec.structs.replace(one, health_at=NOW - timedelta(seconds=seconds))
    others = [node(f"h{i}", rack="r") for i in range(5)]
    found = decided(BudgetSpec(), one, *others, breaker=Breaker())
    assert {each.kind for each in found.start.values()} == kinds
    if kinds == {"quarantine"}:
        assert found.wake_at == NOW + SETTLES


@pytest.mark.parametrize(("minutes", "expected"), [(-1, False), (0, True), (1, True)])
def test_a_failed_recheck_is_evidence(minutes: int, expected: bool) -> None:
    """One from before the verdict is about something else."""
    at = NOW + timedelta(minutes=minutes)
    assert is_confirmed(accused("a", "xid", 79, test_failed_at=at), None) is expected
