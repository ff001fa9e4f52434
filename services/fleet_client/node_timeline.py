"""Builds a node's timeline from stored messages: events in order, with the time between. Pure.

Times are storage times: they come from one clock, the server's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec

from schemas import subjects
from schemas.event_texts import Tone
from schemas.fleet_events import FACTS, HttpChange, OrderAnswered
from schemas.messages import Invalid, Message, UnknownType
from schemas.node_events import Fault
from schemas.operator_requests import batch_of
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import RequestAccepted, RequestRefused, Scaled, ScaleRefused
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.operator_text.event_text import describe_stored
from services.operator_text.quantities import first_of

AUDIT_FILTERS: Final = (
    *(
        subjects.pool_event_wildcard(POOL_FACTS[kind])
        for kind in (RequestAccepted, RequestRefused, Scaled, ScaleRefused)
    ),
    *(subjects.fleet_event(FACTS[kind]) for kind in (HttpChange, OrderAnswered)),
)
"""Under which subjects the outcomes of changes are stored."""
VIA_GATEWAY: Final = " via gateway"
GATEWAY: Final = "gateway"
"""Where a change came from that an older gateway recorded without its request."""
BUS: Final = "bus"
NAMED_MAX: Final = 3
"""Nodes and sagas that the row of an order about many nodes names."""
RECORDED_BY_POOL: Final = frozenset({"accepted", "refused"})
"""Outcomes of HTTP changes that the pool's own answer records, in the caller's name."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was requested."""

    time: datetime
    by: str
    """The user; `NAME via gateway` for a caller of the HTTP API; empty: not known."""
    where: str = ""
    """The address that an HTTP request came from; `bus`: from a command or a program, which the
    bus knows by its user alone."""
    change: str
    about: str
    """`POOL/NODE`, a pool, what the order contains, or the first of many nodes."""
    outcome: str
    reason: str = ""
    saga: str = ""
    """The saga that carries it out."""
    request: str = ""
    """ID of the request on the bus; empty: it became none."""


def audit_row(message: Message | UnknownType | Invalid) -> AuditRow | None:
    """The row of an event; None where it is no change that a person or a program requested."""
    match message:
        case RequestAccepted(by=by, verb=verb, note=note, saga=saga):
            about = _about(message.pool, message.node)
            return _row(message, by, verb, about, "accepted", note, saga=saga)
        case RequestRefused(by=by, verb=verb, reason=reason):
            about = _about(message.pool, message.node)
            return _row(message, by, verb, about, f"refused ({message.refusal})", reason)
        case Scaled(by=by, pool=pool) if by:
            change, reason = f"scale to {message.nodes}", f"it was {message.previous}"
            return _row(message, by, change, pool, "accepted", reason)
        case ScaleRefused(by=by, pool=pool, reason=reason):
            return _row(message, by, "scale", pool, f"refused ({message.refusal})", reason)
        case HttpChange(outcome=outcome, reason=reason) if outcome not in RECORDED_BY_POOL:
            by = f"{message.by}{VIA_GATEWAY}"
            return _row(message, by, message.change, "", outcome, reason)
        case OrderAnswered(by=by, outcome=outcome, reason=reason):
            return _row(message, by, message.order, message.content, outcome, reason)
        case _:
            return None


def _row(
    message: Message, by: str, change: str, about: str, outcome: str, reason: str, saga: str = ""
) -> AuditRow:
    known = message.address if isinstance(message, HttpChange) else ""
    return AuditRow(
        time=message.time,
        by=by,
        where=known or (GATEWAY if by.endswith(VIA_GATEWAY) else BUS),
        request=getattr(message, "request", ""),
        change=change,
        about=about,
        outcome=outcome,
        reason=reason,
        saga=saga,
    )


def audit_rows(
    messages: Iterable[Message | UnknownType | Invalid], *, pool: str, by: str
) -> list[AuditRow]:
    """Return the rows about a pool and of a user; empty: of all."""
    messages = list(messages)
    # Published after the pool's answer, which does not know the address.
    addresses = {
        each.request: each.address
        for each in messages
        if isinstance(each, HttpChange) and each.request
    }
    rows = (
        msgspec.structs.replace(row, where=addresses.get(row.request, row.where))
        for row in filter(None, map(audit_row, messages))
    )
    return _as_orders(
        row
        for row in rows
        if pool in ("", row.about.partition("/")[0]) and by in ("", row.by, row.by.split(" ")[0])
    )


def _as_orders(rows: Iterable[AuditRow]) -> list[AuditRow]:
    """Return one row for each order about many nodes, where its first answer was."""
    found: dict[tuple[str, ...], list[AuditRow]] = {}
    for number, row in enumerate(rows):
        # An ID is the sender's own: another user's requests are another order.
        batch = batch_of(row.request)
        found.setdefault((batch, row.by, row.change) if batch else (str(number),), []).append(row)
    return [_order(each) if batch_of(each[0].request) else each[0] for each in found.values()]


def _order(rows: Sequence[AuditRow]) -> AuditRow:
    outcomes = Counter(each.outcome for each in rows)
    count = "1 node" if len(rows) == 1 else f"{len(rows)} nodes"
    reasons = dict.fromkeys(each.reason for each in rows if each.reason)
    return msgspec.structs.replace(
        rows[0],
        about=f"{count}: {first_of([each.about for each in rows], NAMED_MAX)}",
        outcome=", ".join(f"{number} {name}" for name, number in outcomes.items()),
        reason=first_of(list(reasons), 1),
        saga=first_of([each.saga for each in rows if each.saga], NAMED_MAX),
        request=batch_of(rows[0].request),
    )


def _about(pool: str, node: str) -> str:
    return f"{pool}/{node}" if node else pool


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one message of the timeline."""

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
    """Return whether a message names the node as its subject, the old node or the new node."""
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
