"""Unhealthy nodes of one job are begun in one interruption, within a cap."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.breaker_state import Breaker
from schemas.enums import BreakerCause
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec
from services.pool_manager.planner.disruption_budget import counted, limit
from services.pool_manager.planner.node_counts import Nodes, unavailable
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.remediation import gangs
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec


def unhealthy(name: str, *jobs: str, **changes: Any) -> NodeRecord:
    """A node with a fault of its own, on which these jobs run."""
    at = NOW - timedelta(minutes=1)
    return node(name, health="unhealthy", health_at=at, gangs=jobs, **changes)


def begun(*others: NodeRecord, budget: BudgetSpec | None = None, **changes: Any) -> dict[str, str]:
    """Node -> reason of each saga that is begun beside the open one of `a`, in the job 4711."""
    opened = OpenSaga(
        kind="replace", node="a", new_node="new", since=NOW, drain=changes.pop("drain", "")
    )
    allowed = budget or BudgetSpec(
        max_quarantined=0, max_unavailable=1, max_replacements="unlimited"
    )
    record = pool(4 + len(others), spec=spec(budget=allowed), open={"saga-a": opened}, **changes)
    first = unhealthy("a", "4711", cordoned=True, saga="saga-a")
    rest = tuple(node(f"z{number}") for number in range(3))
    decided = plan(snapshot(record, first, *others, *rest), NOW)
    return {each.node: each.reason for each in decided.start.values()}


def spent(cause: BreakerCause, **changes: Any) -> Breaker:
    """Return an open breaker."""
    return Breaker(
        state="open", cause=cause, since=NOW, probe_at=NOW + timedelta(hours=1), **changes
    )


def test_a_node_of_the_same_job_joins_beyond_the_level_and_says_why() -> None:
    """One may be out of service; the job stops anyway. The third of the job waits: the cap is 2."""
    found = begun(unhealthy("b", "4711"), unhealthy("c", "4711"), unhealthy("d", "4712"))
    assert list(found) == ["b"]
    assert found["b"].endswith("; with a, which runs the same job 4711")


def test_three_unhealthy_nodes_of_a_job_of_four_are_one_interruption() -> None:
    """Two may be out of service, so four may be with the job's."""
    budget = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements=2)
    assert list(begun(unhealthy("b", "4711"), unhealthy("c", "4711"), budget=budget)) == ["b", "c"]


@pytest.mark.parametrize(
    ("changes", "joins"),
    [
        ({}, True),
        ({"breaker": spent("level")}, True),
        ({"breaker": spent("rate")}, True),
        ({"breaker": spent("fleet-level")}, False),
        ({"breaker": spent("level", forced=True)}, False),
        # its work is waited for, so it is not interrupted
        ({"drain": "wait"}, False),
        (
            {
                "budget": BudgetSpec(
                    max_quarantined=0, max_unavailable=0, max_replacements="unlimited"
                )
            },
            False,
        ),
        ({"budget": BudgetSpec(max_quarantined=0, max_unavailable=1, max_replacements=1)}, True),
    ],
)
def test_only_the_pools_own_budget_is_exceeded(changes: dict[str, Any], joins: bool) -> None:
    """Operators and the fleet's budget hold the job's other nodes too."""
    assert bool(begun(unhealthy("b", "4711"), **changes)) == joins


@pytest.mark.parametrize(
    "changes",
    [
        {"held_until": NOW + timedelta(hours=1), "held_by": "alice", "held_reason": "debugging"},
        {"gangs": ("4712",)},
        {"gangs": ()},
    ],
)
def test_held_nodes_and_those_of_other_jobs_wait(changes: dict[str, Any]) -> None:
    """A hold is an operator's word."""
    assert begun(msgspec.structs.replace(unhealthy("b", "4711"), **changes)) == {}


@given(
    jobs=st.lists(st.sampled_from(["", "1", "2"]), min_size=1, max_size=12),
    level=st.integers(0, 4),
    rate=st.integers(0, 4),
)
def test_the_cap_is_never_exceeded(jobs: list[str], level: int, rate: int) -> None:
    """The cap holds however many nodes share a job, and however often it is decided."""
    nodes = tuple(
        unhealthy(f"n{number}", *([job] if job else [])) for number, job in enumerate(jobs)
    )
    budget = BudgetSpec(max_quarantined=0, max_unavailable=level, max_replacements=rate)
    record: PoolRecord = pool(len(nodes), spec=spec(budget=budget))
    for turn in range(4):
        now = NOW + timedelta(seconds=turn)
        record = plan(snapshot(record, *nodes), now).record
        assert unavailable(record, Nodes(nodes)) <= gangs.CAP_TIMES * limit(level, len(nodes))
        assert counted(record.disruptions, float(budget.window), now) <= gangs.CAP_TIMES * rate
