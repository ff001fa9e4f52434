"""A node's timeline from stored messages: events in order, with the time between them. Pure.

Times are storage times: they come from one clock, the server's.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from schemas import subjects
from schemas.messages import Invalid, Message, UnknownType
from schemas.node_events import Fault
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.operator_text.event_text import Tone, describe_stored


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message of the timeline."""

    at: datetime
    since_ms: float
    """Since the start of the timeline."""
    step_ms: float
    """Since the previous row."""
    source: Literal["event", "saga"]
    subject: str
    title: str
    detail: str = ""
    tone: Tone = "plain"
    saga: str = ""
    seen: datetime | None = None
    """When the host saw a fault, by the host's clock."""
    id: str = ""


def mentions(message: Message | UnknownType | Invalid, node: str) -> bool:
    """Whether a message names the node as its subject, the old node or the new node."""
    if isinstance(message, SagaStarted):
        return node in (message.params.node, message.params.new_node)
    return any(getattr(message, name, "") == node for name in ("node", "old_node", "new_node"))


def sagas_about(node: str, started: Iterable[Stored]) -> list[str]:
    """IDs of the sagas that act on the node, remove it or provision it."""
    entries = (saga_codec.decode(each.data) for each in started)
    return [each.saga for each in entries if isinstance(each, SagaStarted) and mentions(each, node)]


def timeline_rows(
    stored: Iterable[Stored], start: datetime | None = None
) -> tuple[TimelineRow, ...]:
    """Merge the messages of all streams in storage order, from `start` (default: the first)."""
    rows: list[TimelineRow] = []
    for each in sorted(stored, key=lambda one: one.time):
        if start is not None and each.time < start:
            continue
        message = decode_stored(each)
        text = describe_stored(each)
        entry = subjects.parse_saga(each.subject)
        first = start or (rows[0].at if rows else each.time)
        rows.append(
            TimelineRow(
                at=each.time,
                since_ms=milliseconds(first, each.time),
                step_ms=milliseconds(rows[-1].at if rows else first, each.time),
                source="saga" if entry else "event",
                subject=text.subject,
                title=text.title,
                detail=text.summary,
                tone=text.tone,
                saga=entry.saga if entry else getattr(message, "saga", ""),
                seen=message.time if isinstance(message, Fault) else None,
                id=getattr(message, "id", ""),
            )
        )
    return tuple(rows)


def milliseconds(start: datetime, end: datetime) -> float:
    """Milliseconds between two times."""
    return round((end - start).total_seconds() * 1000, 3)
