"""Successors of adopted nodes: others make them, and the next node that joins is one. Pure."""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.pool_events import NodeReplaced, OperatorNeeded
from schemas.pool_records import AwaitedSuccessor, OpenSaga, PoolRecord
from services.pool_manager.planner.node_counts import size
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.saga.saga_state import SagaState

AWAITED_MAX: Final = 500
"""Beyond it no successor of a removed node is awaited by name."""


def await_successor(record: PoolRecord, saga: str, ended: OpenSaga, now: datetime) -> PoolRecord:
    """The record after a replacement that launched nothing."""
    launched = ended.kind != "replace" or ended.new_node or record.spec.nodes == "launched"
    if launched or len(record.awaited) >= AWAITED_MAX:
        return record
    awaited = AwaitedSuccessor(saga=saga, since=now, began_at=ended.since, reason=ended.reason)
    return msgspec.structs.replace(record, awaited={**record.awaited, ended.node: awaited})


def forgotten(record: PoolRecord, sagas: Iterable[SagaState]) -> list[SagaState]:
    """The replacements that launched nothing, of whose nodes no successor is awaited.

    That is as it should be where it has joined; else the pool's record was lost or rolled back.
    """
    if record.spec.nodes == "launched":
        return []
    return [
        each
        for each in sagas
        if each.kind == "replace" and each.status == "done" and not each.params.new_node
        if each.params.node not in record.awaited
    ]


def awaited_again(
    record: PoolRecord, sagas: Iterable[SagaState], published: Collection[str]
) -> PoolRecord:
    """The record that awaits the successors of these sagas' nodes again.

    Except of those that have joined, by the IDs of the events that were published.
    """
    awaited = dict(record.awaited)
    for each in sagas:
        joined = _joined_id(each.saga) in published or each.params.node in awaited
        if not joined and len(awaited) < AWAITED_MAX:
            awaited[each.params.node] = AwaitedSuccessor(
                saga=each.saga,
                since=each.step("terminate").ended_at or each.started_at,
                began_at=each.started_at,
                reason=each.params.reason,
                overdue=_overdue_id(each.saga) in published,
            )
    return msgspec.structs.replace(record, awaited=awaited)


def _joined_id(saga: str) -> str:
    return f"replaced-{saga}"


def _overdue_id(saga: str) -> str:
    return f"no-successor-{saga}"


def expect(snapshot: PoolSnapshot, now: datetime) -> PoolPlan:
    """Expect the nodes that others have made, and the successors of those that Navarch removed.

    Of successors that have not joined in time operators are notified, and they are expected no
    longer: else the gap would count against the budget for ever, as where demand makes the nodes.
    """
    record = snapshot.record
    if record.spec.nodes == "launched":
        return PoolPlan(record=record)
    record, replaced = _joined(record, snapshot, now)
    limit = timedelta(seconds=float(record.spec.launch_timeout))
    waiting = {name: each for name, each in record.awaited.items() if _is_expected(each)}
    late = {name: each for name, each in waiting.items() if each.since + limit <= now}
    wake_at = min((e.since + limit for n, e in waiting.items() if n not in late), default=None)
    overdue = {name: msgspec.structs.replace(each, overdue=True) for name, each in late.items()}
    coming = size(record, snapshot.nodes) + len(waiting) - len(late)
    desired = max(coming, record.spec.min_nodes)
    if late or desired != record.desired:
        awaited = {**record.awaited, **overdue}
        record = msgspec.structs.replace(record, desired=desired, awaited=awaited)
    missing = (_missing(snapshot, record.desired, node, now) for node in late)
    return PoolPlan(record=record, events=(*replaced, *missing), wake_at=wake_at)


def _joined(
    record: PoolRecord, snapshot: PoolSnapshot, now: datetime
) -> tuple[PoolRecord, list[NodeReplaced]]:
    """The record once the successors that are recorded have joined, and what is published of them.

    One that has gone before it was recorded is awaited again.
    """
    limit = timedelta(seconds=float(record.spec.launch_timeout))
    events: list[NodeReplaced] = []
    for old, each in record.awaited.items():
        if not each.successor:
            continue
        event = successor_event(record, each.successor, now)
        if event is not None and each.successor in snapshot.nodes.by_name:
            events.append(event)
            record = without_awaited(record, old)
        elif each.since + limit <= now:
            again = msgspec.structs.replace(each, successor="")
            record = msgspec.structs.replace(record, awaited={**record.awaited, old: again})
    return record, events


def _is_expected(awaited: AwaitedSuccessor) -> bool:
    return not awaited.overdue and not awaited.successor


def _missing(snapshot: PoolSnapshot, desired: int, node: str, now: datetime) -> OperatorNeeded:
    saga = snapshot.record.awaited[node].saga
    minutes = float(snapshot.record.spec.launch_timeout) / 60
    known = snapshot.nodes.by_name.get(node)
    return OperatorNeeded(
        id=_overdue_id(saga),
        time=now,
        cause=saga,
        pool=snapshot.record.name,
        node=node,
        reason=f"it was removed, and no node has joined in its place within {minutes:g} minutes",
        remedy=f"see why its group or NodePool makes none; the pool expects {desired} now",
        cordoned=True,
        removed=known is None or known.state == "terminated",
    )


def claimed(record: PoolRecord, new_node: str) -> PoolRecord:
    """The record in which a node that joins is a successor: of its name, or of the first awaited.

    One that is overdue comes last: its successor is not expected any more.
    """
    if _predecessor(record, new_node):
        return record
    free = {name: each for name, each in record.awaited.items() if not each.successor}

    def turn(name: str) -> tuple[bool, bool, datetime]:
        return free[name].overdue, name != new_node, free[name].since

    old = min(free, key=turn, default="")
    if not old:
        return record
    taken = msgspec.structs.replace(free[old], successor=new_node)
    return msgspec.structs.replace(record, awaited={**record.awaited, old: taken})


def _predecessor(record: PoolRecord, new_node: str) -> str:
    return next((old for old, each in record.awaited.items() if each.successor == new_node), "")


def successor_event(record: PoolRecord, new_node: str, now: datetime) -> NodeReplaced | None:
    """The event that a node which has joined is a successor; None: it is none."""
    old = _predecessor(record, new_node)
    if not old:
        return None
    awaited = record.awaited[old]
    return NodeReplaced(
        id=_joined_id(awaited.saga),
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
