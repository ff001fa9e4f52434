"""Who requested which change, and what came of it. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_events import FACTS, HttpChange, OrderAnswered
from schemas.messages import Invalid, Message, UnknownType
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import RequestAccepted, RequestRefused, Scaled, ScaleRefused

AUDIT_FILTERS: Final = (
    *(
        subjects.pool_event_wildcard(POOL_FACTS[kind])
        for kind in (RequestAccepted, RequestRefused, Scaled, ScaleRefused)
    ),
    *(subjects.fleet_event(FACTS[kind]) for kind in (HttpChange, OrderAnswered)),
)
"""Under which subjects the outcomes of changes are stored."""
RECORDED_BY_POOL: Final = frozenset({"accepted", "refused"})
"""Outcomes of HTTP changes that the pool's own answer records, in the caller's name."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was requested."""

    time: datetime
    by: str
    """The user; `NAME via gateway` for a caller of the HTTP API; empty: not known."""
    change: str
    about: str
    """`POOL/NODE`, a pool, or what the order contains."""
    outcome: str
    reason: str = ""
    saga: str = ""
    """The saga that carries it out."""


def audit_row(message: Message | UnknownType | Invalid) -> AuditRow | None:
    """The row of an event; None where it is no change that a person or a program requested."""
    match message:
        case RequestAccepted():
            return AuditRow(
                time=message.time,
                by=message.by,
                change=message.verb,
                about=_about(message.pool, message.node),
                outcome="accepted",
                reason=message.note,
                saga=message.saga,
            )
        case RequestRefused():
            return AuditRow(
                time=message.time,
                by=message.by,
                change=message.verb,
                about=_about(message.pool, message.node),
                outcome=f"refused ({message.refusal})",
                reason=message.reason,
            )
        case Scaled() if message.by:
            return AuditRow(
                time=message.time,
                by=message.by,
                change=f"scale to {message.nodes}",
                about=message.pool,
                outcome="accepted",
                reason=f"it was {message.previous}",
            )
        case ScaleRefused():
            return AuditRow(
                time=message.time,
                by=message.by,
                change="scale",
                about=message.pool,
                outcome=f"refused ({message.refusal})",
                reason=message.reason,
            )
        case HttpChange() if message.outcome not in RECORDED_BY_POOL:
            return AuditRow(
                time=message.time,
                by=f"{message.by} via gateway",
                change=message.change,
                about=message.address,
                outcome=message.outcome,
                reason=message.reason,
            )
        case OrderAnswered():
            return AuditRow(
                time=message.time,
                by=message.by,
                change=message.order,
                about=message.content,
                outcome=message.outcome,
                reason=message.reason,
            )
        case _:
            return None


def audit_rows(
    messages: Iterable[Message | UnknownType | Invalid], *, pool: str, by: str
) -> list[AuditRow]:
    """The rows about a pool and of a user; empty: of all."""
    rows = filter(None, map(audit_row, messages))
    return [
        row
        for row in rows
        if pool in ("", row.about.partition("/")[0]) and by in ("", row.by, row.by.split(" ")[0])
    ]


def _about(pool: str, node: str) -> str:
    return f"{pool}/{node}" if node else pool
