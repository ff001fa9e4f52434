"""A person's hold on a node: how long it may last, and what it makes of the record. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.node_events import NodeEvent, NodeHeld, Released
from schemas.node_records import NodeRecord
from schemas.operator_requests import HoldRequest

SECONDS_MAX: Final = 7 * 86_400.0
"""A hold lasts while an operator looks at the node; it is not meant for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHold:
    """A hold says how a node is held from now on; `until` None: not any more."""

    pool: str
    node: str
    until: datetime | None = None
    by: str = ""
    reason: str = ""


def problem(request: HoldRequest) -> str:
    """Return what is wrong with a request to hold; empty where nothing is."""
    if not request.reason.strip():
        return "a hold needs a reason, for the operator who finds it at night; give one"
    if not 0 < request.for_ <= SECONDS_MAX:
        return f"a hold lasts up to {SECONDS_MAX / 86_400:.0f} days; ask for less, and again later"
    return ""


def requested_hold(request: HoldRequest, pool: str, asked_at: datetime) -> NodeHold:
    """The hold that is asked for, from when that was stored: repeating it changes nothing."""
    return NodeHold(
        pool=pool,
        node=request.node,
        until=asked_at + timedelta(seconds=request.for_),
        by=request.by,
        reason=request.reason,
    )


def with_hold(record: NodeRecord | None, hold: NodeHold) -> NodeRecord | None:
    """Return the node's record with the hold, or without any."""
    if record is None:
        return None
    if hold.until is None:
        return msgspec.structs.replace(record, held_until=None, held_by="", held_reason="")
    return msgspec.structs.replace(
        record, held_until=hold.until, held_by=hold.by, held_reason=hold.reason
    )


def hold_event(hold: NodeHold, cause: str, now: datetime) -> NodeEvent:
    """Return the event of the hold, or of its end."""
    if hold.until is None:
        return Released(
            id=f"released-{cause}",
            time=now,
            cause=cause,
            pool=hold.pool,
            node=hold.node,
            by=hold.by,
            reason=hold.reason,
        )
    return NodeHeld(
        id=f"held-{cause}",
        time=now,
        cause=cause,
        pool=hold.pool,
        node=hold.node,
        until=hold.until,
        by=hold.by,
        reason=hold.reason,
    )


def over(nodes: Iterable[NodeRecord], now: datetime) -> tuple[NodeRecord, ...]:
    """Return the nodes whose hold has come to its end."""
    held = (node for node in nodes if node.held_until is not None)
    return tuple(node for node in held if node.held_until is not None and now >= node.held_until)


def expire(record: NodeRecord, now: datetime) -> tuple[NodeHold, NodeEvent]:
    """The end of a hold whose time has come, and the event of it."""
    assert record.held_until is not None
    end = NodeHold(pool=record.pool, node=record.node, reason="its time is over")
    ident = f"{record.node}-{record.held_until.timestamp():.0f}"
    return end, msgspec.structs.replace(hold_event(end, ident, now), cause="")
