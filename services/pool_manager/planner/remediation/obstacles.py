"""Finds what forbids to act on any unhealthy node of a pool, whatever its budget says. Pure.

Nodes without work are no reason to wait for the workload system: nothing on them can be disturbed.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.disruption_budget import (
    allowance,
    for_no_fault,
    is_overdue,
)
from services.pool_manager.planner.gates import gate_table, pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import (
    automatic,
    busy,
    cordon_just_refused,
    is_down,
    is_gone,
    takes_out_no_more,
)
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediation import remedy_selection
from services.pool_manager.planner.remediator import RemedyChoice
from services.pool_manager.planner.retirements import USES_READ_MAX
from services.pool_manager.planner.safety import breaker, incidents
from services.pool_manager.planner.safety.breaker_messages import wave_words
from services.pool_manager.planner.sizing import spares
from services.pool_manager.planner.sizing.open_sagas import room_for_announced, units_of_texts
from services.pool_manager.planner.unhealthy_nodes import remediation_reason
from services.saga.definitions import DEFINITIONS


def find_obstacle(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    waiting: Sequence[NodeRecord],
    choices: Mapping[str, RemedyChoice],
    now: datetime,
) -> breaker.BreakerReason | None:
    """Return what forbids to act on any node, whatever the budget says."""
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


def put_off(
    snapshot: PoolSnapshot, record: PoolRecord, waiting: Sequence[NodeRecord], now: datetime
) -> frozenset[str]:
    """Names of the nodes that wait for no budget of faults.

    Those without work wait where a cordon has just been refused, and those that the cloud takes
    where as many are leaving as may be: by the record's room, and by the budget of what has no
    fault where there is time.
    """
    refused = cordon_just_refused(record, now)
    without_work = (node.node for node in waiting if refused and _has_no_work(node))
    beyond = _beyond_room(record, waiting, now) | _beyond_budget(snapshot, record, waiting, now)
    return frozenset(without_work) | beyond


def _beyond_room(
    record: PoolRecord, waiting: Sequence[NodeRecord], now: datetime
) -> frozenset[str]:
    """Names of the nodes that the cloud takes for which the record has no room, the last ones."""
    taken = [node for node in waiting if cloud_notices.current_notice(node) is not None]
    left, beyond = room_for_announced(record) if taken else 0, set[str]()
    for node in sorted(taken, key=lambda each: cloud_notices.urgency(each, now)):
        notice, _ = cloud_notices.current_notice(node) or ("", None)
        left -= units_of_texts(remediation_reason(node, record, now), notice)
        if left < 0:
            beyond.add(node.node)
    return frozenset(beyond)


def _beyond_budget(
    snapshot: PoolSnapshot, record: PoolRecord, waiting: Sequence[NodeRecord], now: datetime
) -> frozenset[str]:
    """Names of the nodes without a fault that the cloud takes later, and that the budget holds."""
    found = (node for node in waiting if cloud_notices.is_only_taken(node) and not is_gone(node))
    taken = [(not cloud_notices.urgent(node, record.spec, now), node) for node in found]
    if not any(can_wait for can_wait, _ in taken):
        return frozenset()
    beyond = set[str]()
    left = allowance(record, snapshot.nodes, snapshot.others, now).for_no_fault()
    taken.sort(key=lambda each: (each[0], cloud_notices.urgency(each[1], now)))
    for can_wait, node in taken:
        out = takes_out_no_more(record, snapshot.nodes, node)
        if can_wait and left.refusal(cordoned=out):
            beyond.add(node.node)
        else:
            left = left.took(cordoned=out)
    return frozenset(beyond)


def is_repairing(record: PoolRecord, now: datetime) -> bool:
    """Return whether a repair is under way for which the next of a wave waits.

    None waits for a drain that does not end, or for a node that leaves without a fault.
    """
    return any(
        DEFINITIONS[each.kind].disrupts and automatic(each)
        for each in record.open.values()
        if not (for_no_fault(each) or is_overdue(record, each, now))
    )


def asked_about(snapshot: PoolSnapshot, now: datetime) -> list[str]:
    """Return the nodes that need not queue behind drains that do not end, if they have no work."""
    record = snapshot.record
    if not any(is_overdue(record, each, now) for each in record.open.values()):
        return []
    left = allowance(record, snapshot.nodes, snapshot.others, now)
    refused = left.refusal(cordoned=False)
    if not refused or left.refusal(cordoned=False, no_work=True) == refused:
        return []
    taken = busy(record)
    found = [
        node.node
        for node in snapshot.nodes.needs_attention
        if node.node not in taken and not node.lost
        if remediation_reason(node, record, now)
        if gate_table.first(Proposal("repair", record, now, node)) is None
    ]
    return found[:USES_READ_MAX]


def gaps_wait(record: PoolRecord, obstacle: breaker.BreakerReason | None) -> bool:
    """Return whether nodes whose instances are gone are not replaced, as it would fail.

    A breaker that an operator opened holds unhealthy nodes, and a gap is none.
    """
    fails = obstacle is not None and obstacle.cause == "launches-fail"
    return fails or breaker.is_restored(record.breaker)


def _has_no_work(node: NodeRecord) -> bool:
    return is_gone(node) or is_down(node)


def workload_system(record: PoolRecord) -> str:
    """Return what cordons the pool's nodes, as its spec names it."""
    names = ", ".join(record.spec.notifiers) or "of the fleet's `notifier`"
    return f"the workload system ({names})"
