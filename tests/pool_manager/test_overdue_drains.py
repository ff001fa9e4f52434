"""An unhealthy node that has no work does not queue behind a drain that does not end."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.node_records import GpuUse
from schemas.pool_records import OpenSaga
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec
from services.pool_manager.planner.disruption_budget import allowance, is_overdue
from services.pool_manager.planner.gates import pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolSnapshot
from services.pool_manager.planner.remediation import obstacles
from services.pool_manager.planner.sizing.open_sagas import begin
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

LIMIT = Duration(1800)
RESTING = GpuUse(busy=False, since=NOW - timedelta(minutes=20))
EMPTY = NodeUse(gpus=RESTING, work="none")


def world(minutes: int, **changes: Any) -> PoolSnapshot:
    """Return a pool whose budget a drain has taken for some minutes, and an unhealthy node."""
    chosen = spec(
        budget=BudgetSpec(max_unavailable=1),
        drain="wait",
        drain_timeout=LIMIT,
        health=HealthSpec(incident=IncidentSpec(stage=Duration(0), hold=Duration(0))),
    )
    since = NOW - timedelta(minutes=minutes)
    opened = OpenSaga(kind="replace", node="a", new_node="x", since=since, fault_signature="ecc")
    record = pool(4, spec=chosen, open={"replace-a-1": opened})
    broken = node("b", health="unhealthy", health_at=NOW, health_kind="nvml", **changes)
    return snapshot(record, node("a", cordoned=True), broken, node("c"), node("d"))


@pytest.mark.parametrize(
    ("use", "minutes", "begun"),
    [
        (EMPTY, 30, True),
        (EMPTY, 29, False),
        (NodeUse(gpus=RESTING, work="runs"), 30, False),
        (NodeUse(gpus=RESTING, work="unknown"), 30, False),
        (NodeUse(gpus=GpuUse(busy=True, since=NOW), work="none"), 30, False),
        (NodeUse(), 30, False),
        (None, 30, False),
    ],
    ids=["empty", "the drain has its time", "runs", "unknown", "busy", "silence", "not asked"],
)
def test_an_empty_node_does_not_queue_behind_a_drain_that_does_not_end(
    use: NodeUse | None, minutes: int, *, begun: bool
) -> None:
    """A node that is not known to be empty waits, and `navarch why` names the budget."""
    seen = replace(world(minutes), use={"b": use} if use is not None else None)
    decided = plan(seen, NOW)
    assert begun == any(
        each.node == "b" and each.kind == "replace" for each in decided.start.values()
    )
    allowed = allowance(seen.record, seen.nodes, None, NOW)
    proposed = Proposal(
        "repair", seen.record, NOW, seen.nodes.by_name["b"], use=seen.use, allowed=allowed
    )
    assert begun == (pool_gates.budget(proposed) is None)


@pytest.mark.parametrize(
    ("minutes", "changes", "asked"),
    [(30, {}, ["b"]), (29, {}, []), (30, {"lost": True, "lost_at": NOW}, [])],
    ids=["overdue", "not overdue", "silent"],
)
def test_work_is_asked_about_only_where_it_decides(
    minutes: int, changes: dict[str, Any], asked: list[str]
) -> None:
    """A silent node has none that could be asked about."""
    assert obstacles.asked_about(world(minutes, **changes), NOW) == asked


@pytest.mark.parametrize(
    ("changes", "overdue"),
    [
        ({}, True),
        ({"drain": "deadline"}, False),
        ({"drain": "immediate"}, False),
        ({"dead": True}, False),
        ({"gone": True}, False),
        ({"drain_timeout_seconds": 3600.0}, False),
        ({"kind": "quarantine"}, False),
    ],
    ids=[
        "waits",
        "has a deadline",
        "waits for nothing",
        "off",
        "gone",
        "has more time",
        "no drain",
    ],
)
def test_only_a_drain_that_waits_for_work_is_overdue(
    changes: dict[str, Any], *, overdue: bool
) -> None:
    """The end of any other is in sight, and its place is counted."""
    record = world(30).record
    opened = msgspec.structs.replace(record.open["replace-a-1"], **changes)
    assert is_overdue(record, opened, NOW) is overdue


@pytest.mark.parametrize(
    ("drain", "changes", "expected"),
    [
        ("wait", {"lost": True, "lost_at": NOW}, "deadline"),
        ("wait", {}, ""),
        ("wait", {"lost": True, "lost_at": NOW, "health": "unhealthy"}, ""),
        ("deadline", {"lost": True, "lost_at": NOW}, ""),
    ],
    ids=["silent", "heard", "unhealthy before", "it has a deadline"],
)
def test_the_work_of_a_silent_node_is_not_waited_for_without_end(
    drain: Any, changes: dict[str, Any], expected: str
) -> None:
    """The work may be dead, and cannot be asked to leave: it has its time."""
    record = pool(1, spec=spec(drain=drain, drain_timeout=LIMIT))
    _, opened, _ = begin("f", record, "replace", NOW, node=node("a", **changes))
    assert opened.drain == expected
