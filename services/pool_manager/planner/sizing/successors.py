"""Successors of adopted nodes: others make them, and the next node that joins is one. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.pool_events import NodeReplaced, OperatorNeeded
from schemas.pool_records import AwaitedSuccessor, OpenSaga, PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot

AWAITED_MAX: Final = 500
"""Beyond it no successor of a removed node is awaited by name."""


def await_successor(record: PoolRecord, saga: str, ended: OpenSaga, now: datetime) -> PoolRecord:
    """The record after a replacement that launched nothing."""
    launched = ended.kind != "replace" or ended.new_node or record.spec.nodes == "launched"
    if launched or len(record.awaited) >= AWAITED_MAX:
        return record
    awaited = AwaitedSuccessor(saga=saga, since=now, began_at=ended.since, reason=ended.reason)
    return msgspec.structs.replace(record, awaited={**record.awaited, ended.node: awaited})


def note_overdue(snapshot: PoolSnapshot, now: datetime) -> PoolPlan:
    """Notify operators of successors that have not joined in time, and expect so many fewer.

    Else the gap would count against the budget for ever, as where demand makes the nodes.
    """
    record = snapshot.record
    limit = timedelta(seconds=float(record.spec.launch_timeout))
    waiting = {node: each for node, each in record.awaited.items() if not each.overdue}
    late = {node: each for node, each in waiting.items() if each.since + limit <= now}
    wake_at = min((e.since + limit for n, e in waiting.items() if n not in late), default=None)
    if not late:
        return PoolPlan(record=record, wake_at=wake_at)
    desired = max(record.desired - len(late), record.spec.min_nodes)
    overdue = {node: msgspec.structs.replace(each, overdue=True) for node, each in late.items()}
    changed = msgspec.structs.replace(
        record, desired=desired, awaited={**record.awaited, **overdue}
    )
    events = tuple(_missing(changed, node, each, now) for node, each in late.items())
    return PoolPlan(record=changed, events=events, wake_at=wake_at)


def _missing(
    record: PoolRecord, node: str, awaited: AwaitedSuccessor, now: datetime
) -> OperatorNeeded:
    minutes = float(record.spec.launch_timeout) / 60
    return OperatorNeeded(
        id=f"no-successor-{awaited.saga}",
        time=now,
        cause=awaited.saga,
        pool=record.name,
        node=node,
        reason=f"it was removed, and no node has joined in its place within {minutes:g} minutes",
        remedy=f"see why its group or NodePool makes none; the pool expects {record.desired} now",
        cordoned=True,
    )


def successor_event(record: PoolRecord, new_node: str, now: datetime) -> NodeReplaced | None:
    """The event that a node which joins is the successor of the one awaited longest."""
    old = min(record.awaited, key=lambda each: record.awaited[each].since, default="")
    if not old:
        return None
    awaited = record.awaited[old]
    return NodeReplaced(
        id=f"replaced-{awaited.saga}",
        time=now,
        cause=awaited.saga,
        pool=record.name,
        old_node=old,
        new_node=new_node,
        saga=awaited.saga,
        reason=awaited.reason,
        duration_seconds=(now - awaited.began_at).total_seconds(),
    )


def without_awaited(record: PoolRecord, node: str) -> PoolRecord:
    """The record when the successor of a node has joined."""
    left = {name: each for name, each in record.awaited.items() if name != node}
    return msgspec.structs.replace(record, awaited=left)
