"""What forbids to act on any unhealthy node of a pool, whatever its budget says. Pure.

Nodes without work are no reason to wait for the workload system: nothing on them can be disturbed.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.gates import pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import (
    cordon_just_refused,
    is_down,
    is_gone,
)
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediation import remedy_selection
from services.pool_manager.planner.remediator import RemedyChoice
from services.pool_manager.planner.safety import breaker, incidents
from services.pool_manager.planner.safety.breaker_messages import wave_words
from services.pool_manager.planner.sizing import spares


def find_obstacle(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    waiting: Sequence[NodeRecord],
    choices: Mapping[str, RemedyChoice],
    now: datetime,
) -> breaker.BreakerReason | None:
    """What forbids to act on any node, whatever the budget says."""
    proposed = Proposal("repair", record, now)
    if pool_gates.auto_replace_off(proposed) is not None:
        return None
    held = incidents.holding(record)
    if held:
        return breaker.BreakerReason("wave", wave_words(record, held, now))
    replaced = remedy_selection.to_be_replaced(choices, waiting)
    uncovered = len(replaced) - len(spares.covered(record, snapshot.nodes, replaced, now))
    if uncovered and pool_gates.retry(proposed) is not None:
        # A node terminated now would leave a gap, unless a spare is ready to take its place.
        # Unhealthy nodes wait in theirs.
        reason = f"new nodes do not come up: launches fail ({record.failures} in a row)"
        return breaker.BreakerReason("launches-fail", reason)
    refused = pool_gates.workload_system(proposed)
    if refused is not None and not all(map(_has_no_work, waiting)):
        times = record.refused_cordons
        reason = f"{workload_system(record)} has not cordoned a node ({times} times in a row)"
        return breaker.BreakerReason("workload-system", reason)
    return None


def put_off(record: PoolRecord, waiting: Sequence[NodeRecord], now: datetime) -> frozenset[str]:
    """Names of the nodes without work that wait a moment, as a cordon has just been refused."""
    if not cordon_just_refused(record, now):
        return frozenset()
    return frozenset(node.node for node in waiting if _has_no_work(node))


def gaps_wait(record: PoolRecord, obstacle: breaker.BreakerReason | None) -> bool:
    """Whether nodes whose instances are gone are not replaced: it would fail, or may be outdated.

    A breaker that an operator opened holds unhealthy nodes, and a gap is none.
    """
    fails = obstacle is not None and obstacle.cause == "launches-fail"
    return fails or breaker.is_restored(record.breaker)


def _has_no_work(node: NodeRecord) -> bool:
    return is_gone(node) or is_down(node)


def workload_system(record: PoolRecord) -> str:
    """What cordons the pool's nodes, as its spec names it."""
    names = ", ".join(record.spec.notifiers) or "of the fleet's `notifier`"
    return f"the workload system ({names})"
