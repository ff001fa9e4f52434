"""A node's story out of stored messages: what happened, in order, and how long each step took.

Pure. Times are those of storing, because they come from one clock, the server's; what a host saw
earlier than its message arrived stands in `seen`.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from schemas import subjects
from schemas.fleet_events import fleet_codec
from schemas.messages import Invalid, Message, UnknownType
from schemas.node_events import Fault, node_codec
from schemas.pool_events import pool_codec
from schemas.saga_log_entries import SagaStarted, saga_codec
from services.bus.port import Stored
from services.cli.text.event_text import Mood, tell


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the story."""

    at: datetime
    since_ms: float
    """From the story's beginning."""
    step_ms: float
    """From the line before."""
    source: Literal["event", "saga"]
    about: str
    what: str
    detail: str = ""
    mood: Mood = "plain"
    saga: str = ""
    seen: datetime | None = None
    """When the host saw a fault, by the host's clock."""
    id: str = ""


def decode(stored: Stored) -> Message | UnknownType | Invalid:
    """Read an event or a saga's entry, whichever its subject says it is."""
    if subjects.parse_saga(stored.subject):
        return saga_codec.decode(stored.data)
    if subjects.parse_pool_event(stored.subject):
        return pool_codec.decode(stored.data)
    if subjects.parse_fleet_event(stored.subject):
        return fleet_codec.decode(stored.data)
    return node_codec.decode(stored.data)


def mentions(message: Message | UnknownType | Invalid, node: str) -> bool:
    """Whether a message names the node, as the one that it is about, that leaves or that comes."""
    if isinstance(message, SagaStarted):
        return node in (message.params.node, message.params.new_node)
    return any(getattr(message, name, "") == node for name in ("node", "old_node", "new_node"))


def sagas_about(node: str, started: Iterable[Stored]) -> list[str]:
    """Ids of the sagas that take the node away, bring it, or act on it."""
    found = (saga_codec.decode(each.data) for each in started)
    return [each.saga for each in found if isinstance(each, SagaStarted) and mentions(each, node)]


def assemble(stored: Iterable[Stored], begun: datetime | None = None) -> tuple[Moment, ...]:
    """Put messages of all streams into one order, with the time from line to line.

    The story begins at `begun`, and what was before is left out; None: with its first message.
    """
    moments: list[Moment] = []
    for each in sorted(stored, key=lambda one: one.time):
        if begun is not None and each.time < begun:
            continue
        message = decode(each)
        told = tell(message)
        entry = subjects.parse_saga(each.subject)
        first = begun or (moments[0].at if moments else each.time)
        last = moments[-1].at if moments else first
        moments.append(
            Moment(
                at=each.time,
                since_ms=milliseconds(first, each.time),
                step_ms=milliseconds(last, each.time),
                source="saga" if entry else "event",
                about=told.about or each.subject,
                what=told.what,
                detail=told.detail,
                mood=told.mood,
                saga=entry.saga if entry else getattr(message, "saga", ""),
                seen=message.time if isinstance(message, Fault) else None,
                id=getattr(message, "id", ""),
            )
        )
    return tuple(moments)


def milliseconds(start: datetime, end: datetime) -> float:
    """From one moment to another."""
    return round((end - start).total_seconds() * 1000, 3)
