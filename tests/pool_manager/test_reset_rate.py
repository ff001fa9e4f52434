"""Resets and reboots have their own rate, so that a ladder spends no replacements."""

import msgspec

from schemas.pool_records import PoolRecord
from schemas.settings import BudgetSpec
from services.pool_manager.planner.pool_planner import close, plan
from tests.pool_manager.test_pool_planner import NOW, node
from tests.pool_manager.test_remediation import LADDER, attempt, under, under_with, unhealthy


def climb_ladder(rungs: int, budget: BudgetSpec, size: int = 3) -> tuple[list[str], PoolRecord]:
    """The sagas a pool starts one after another for nodes that no remedy helps; and its record."""
    nodes = [node(name) for name in "abcdefgh"[:size]]
    nodes[0] = unhealthy()
    decided = under(LADDER, *nodes)
    made = msgspec.structs.replace(decided.record.spec, budget=budget)
    record, kinds = msgspec.structs.replace(decided.record, spec=made), []
    for _ in range(rungs):
        now_begun = plan(under_with(decided, record, *nodes), NOW)
        record = now_begun.record
        for saga, opened in now_begun.start.items():
            kinds.append(opened.kind)
            record = close(record, saga, failed=False, now=NOW)
            place = next(i for i, each in enumerate(nodes) if each.node == opened.node)
            tried = attempt(opened.kind) if opened.kind != "replace" else None
            attempts = (*nodes[place].attempts, *([tried] if tried else []))
            nodes[place] = msgspec.structs.replace(nodes[place], attempts=attempts)
            if tried is None:
                nodes[place] = node(opened.node)
                following = min(place + 1, size - 1)
                nodes[following] = msgspec.structs.replace(unhealthy(), node=nodes[following].node)
    return kinds, record


RUNGS = ["reset-gpu", "reset-gpu", "reboot", "replace"]


def test_small_pool_may_climb_the_ladder_for_each_node() -> None:
    """The defaults allow it within an hour: remedies below the last spend no replacement."""
    kinds, record = climb_ladder(12, BudgetSpec(max_quarantined=0, max_unavailable=1))

    assert RUNGS * 3 == kinds
    assert "closed" == record.breaker.state
    assert (3, 9) == (sum(record.disruptions.values()), sum(record.resets.values()))


def test_resets_have_their_own_rate() -> None:
    """The third remedy waits where two are allowed, and the breaker says why."""
    kinds, record = climb_ladder(6, BudgetSpec(max_quarantined=0, max_unavailable=1, max_resets=2))

    assert ["reset-gpu", "reset-gpu"] == kinds
    assert ("open", "reset-rate") == (record.breaker.state, record.breaker.cause)
    assert "2 GPU resets and reboots began within 1h and 2 may be" in record.breaker.reason
    assert "budget.max_resets: 2" in record.breaker.reason
