"""Begins to drain nodes that the cloud is about to restart. Pure.

The cloud does not wait for the budget, so neither does the drain, which counts in it all the same.
The notices of a node whose notices come and go wait for it. The node is not replaced: once it has
restarted and its boot checks have passed, `withdrawn_notices.py` gives it back.
"""

from dataclasses import replace
from datetime import datetime

import msgspec

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import announced_restarts, cloud_notices
from services.pool_manager.planner.disruption_budget import allowance, with_begun
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.safety import eligibility
from services.pool_manager.planner.sizing.open_sagas import begin, room_for_sagas, with_open


def drain_ahead(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
    """Begin the drains that are due."""
    if begun.record.breaker.forced or not begun.record.spec.health.auto_replace:
        return begun
    window = float(snapshot.others.spec.window) if snapshot.others is not None else 0.0
    for node in _due(begun.record, snapshot, now):
        if not room_for_sagas(begun.record):
            break
        left = allowance(begun.record, snapshot.nodes, snapshot.others, now)
        doubted = (cloud_notices.doubted_until(node) or now) > now
        if doubted and left.refusal(cordoned=False):
            continue
        found = announced_restarts.restart_notice(node)
        assert found is not None
        saga, opened, record = begin(snapshot.fleet, begun.record, "drain", now, node=node)
        opened = msgspec.structs.replace(
            opened, notice=found[0], sole_notice=found[0], reason=found[1].reason, action="none"
        )
        record = with_begun(with_open(record, saga, opened), window, now, ("drain",))
        begun = replace(begun, record=record, start={**begun.start, saga: opened})
    return begun


def _due(record: PoolRecord, snapshot: PoolSnapshot, now: datetime) -> list[NodeRecord]:
    """Nodes in service that a restart interrupts soon; those that it interrupts first, first."""
    taken, found = busy(record), []
    for node in snapshot.nodes.needs_attention:
        notice = announced_restarts.restart_notice(node)
        if notice is None or not announced_restarts.awaits_restart(node, now):
            continue
        at = announced_restarts.drain_at(notice[1], record.spec)
        well = node.health != "unhealthy" and not node.lost
        serves = node.state == "active" and not node.cordoned and node.node not in taken
        if serves and well and now >= at and not eligibility.is_held(node, now):
            found.append((at, node.node, node))
    return [node for _, _, node in sorted(found, key=lambda each: each[:2])]
