"""Bringing a pool to the size that is wanted: which nodes are begun and which may leave. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.records import NodeRecord, PoolRecord
from services.pool_manager import touching
from services.pool_manager.opening import begin, with_open
from services.pool_manager.sickness import sick
from services.pool_manager.world import Plan, World, busy, size

LAUNCHES_MAX: Final = 200
"""New nodes begun in one decision; the next decision goes on from there."""


def resize(world: World, begun: Plan, now: datetime) -> Plan:
    """Begin what fills the gap, or takes the surplus away."""
    record = begun.record
    gap = record.desired - size(record, world.nodes)
    start = dict(begun.start)
    if gap > 0:
        if record.retry_at is not None and now < record.retry_at:
            return replace(begun, wake_at=record.retry_at)
        for _ in range(min(gap, LAUNCHES_MAX)):
            saga, opened, record = begin(world.fleet, record, "scale-up", now)
            reason = f"{record.desired - gap} of {record.desired} nodes"
            start[saga] = msgspec.structs.replace(opened, reason=reason)
            record = with_open(record, saga, start[saga])
    elif gap < 0 and (record.retry_at is None or now >= record.retry_at):
        for node in _surplus(record, world.nodes, now)[:-gap]:
            saga, opened, record = begin(world.fleet, record, "scale-down", now, node=node)
            reason = f"{record.desired - gap} nodes where {record.desired} are wanted"
            start[saga] = msgspec.structs.replace(opened, reason=reason)
            record = with_open(record, saga, start[saga])
    return replace(begun, record=record, start=start)


def _surplus(record: PoolRecord, nodes: Iterable[NodeRecord], now: datetime) -> list[NodeRecord]:
    """Nodes that may leave, those first that are of least use: sick, cordoned, then youngest."""
    taken = busy(record)
    free = [
        node
        for node in nodes
        if node.node not in taken
        and node.state == "active"
        and not touching.kept(node, record, now)
    ]

    def use(node: NodeRecord) -> tuple[int, float, str]:
        rank = 0 if sick(node, record, now) else 1 if node.cordoned else 2
        age = (now - (node.admitted_at or now)).total_seconds()
        return rank, age, node.node

    return sorted(free, key=use)
