"""Composes the review of an incident, or of a span of time, from what is stored. Pure.

Times are storage times: they come from one clock, the server's.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import fleet_events as f
from schemas import node_events as n
from schemas import pool_events as p
from schemas.evidence_bundles import KeptEvidence
from schemas.messages import Invalid, Message, UnknownType
from schemas.present_answers import Block, Gate
from schemas.stored_messages import decode_stored
from services.bus.port import Stored
from services.fleet_client.history_text import HistoryLine, history_lines
from services.fleet_client.node_timeline import AuditRow, audit_rows
from services.fleet_client.saga_summaries import SagaSummary
from services.operator_text.event_text import describe_stored

MARGIN: Final = timedelta(minutes=15)
"""Before an incident's first fault, and after its end: what led to it, and what followed."""
LINES_MAX: Final = 100
"""Of each section, from the first on."""
GATES: Final[dict[type, Gate]] = {
    p.BreakerOpened: "breaker",
    p.Incident: "incident",
    p.QuarantineFull: "quarantine-cap",
    p.OnDemandShort: "on-demand",
    p.PoolCondition: "condition",
    p.WouldStart: "observe",
    p.OperatorNeeded: "operator",
    n.NodeHeld: "hold",
    f.AutomationStopped: "stop",
}
"""Event -> the gate that it reports."""


class ReviewSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a review is about."""

    title: str
    pool: str = ""
    """Empty: every pool."""
    start: datetime
    end: datetime
    lasts: bool = False
    """The incident is still open."""
    incident: str = ""
    nodes: tuple[str, ...] = ()
    """The first affected nodes of an incident."""


class WaitedLine(msgspec.Struct, frozen=True, kw_only=True):
    """Says what waited, and by which gate."""

    at: datetime
    gate: str
    """Empty: a refusal, or none of the gates."""
    text: str


class IncidentReview(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a review needs, each part in the order of time."""

    about: ReviewSpan
    seen: tuple[HistoryLine, ...] = ()
    decided: tuple[HistoryLine, ...] = ()
    done: tuple[HistoryLine, ...] = ()
    waited: tuple[WaitedLine, ...] = ()
    omitted: dict[str, int] = {}
    """Section -> lines beyond LINES_MAX."""
    requested: tuple[AuditRow, ...] = ()
    sagas: tuple[SagaSummary, ...] = ()
    evidence: tuple[KeptEvidence, ...] = ()
    waits_now: tuple[Block, ...] = ()
    """What the pool waits for at this moment, of an incident that is open."""


def incident_span(events: Iterable[Stored], name: str, now: datetime) -> ReviewSpan | None:
    """Return the span of the incident of this name; None: no event has it."""
    found = [
        each
        for each in map(decode_stored, events)
        if isinstance(each, p.Incident) and each.incident == name
    ]
    if not found:
        return None
    last = found[-1]
    lasts = last.status == "opened"
    place = f"{last.scope} {last.within}".strip() if last.within else "the pool"
    return ReviewSpan(
        title=f"Incident {name} in pool {last.pool}: {last.nodes} nodes of {place}",
        pool=last.pool,
        start=found[0].first - MARGIN,
        end=now if lasts else min(now, last.time + MARGIN),
        lasts=lasts,
        incident=name,
        nodes=last.named,
    )


def incident_names(events: Iterable[Stored]) -> list[str]:
    """Return the names of all incidents, the newest last."""
    found = (each for each in map(decode_stored, events) if isinstance(each, p.Incident))
    return list(dict.fromkeys(each.incident for each in found))


def review(
    about: ReviewSpan,
    stored: Iterable[Stored],
    sagas: Sequence[SagaSummary],
    evidence: Iterable[KeptEvidence],
    waits_now: Sequence[Block] = (),
) -> IncidentReview:
    """Compose the review; `stored`: the events and the entries of sagas, more than the span's."""
    inside = [each for each in stored if about.start <= each.time <= about.end]
    topics: dict[str, list[HistoryLine]] = {"seen": [], "decided": [], "done": []}
    for line in history_lines(each for each in inside if not _is_routine(decode_stored(each))):
        if section := SECTIONS.get(line.topic):
            topics[section].append(line)
    waited = list(_waited(inside))
    requested = audit_rows(map(decode_stored, inside), pool=about.pool, by="")
    parts: dict[str, Sequence[object]] = {**topics, "waited": waited, "requested": requested}
    return IncidentReview(
        about=about,
        seen=tuple(topics["seen"][:LINES_MAX]),
        decided=tuple(topics["decided"][:LINES_MAX]),
        done=tuple(topics["done"][:LINES_MAX]),
        waited=tuple(waited[:LINES_MAX]),
        requested=tuple(requested[:LINES_MAX]),
        omitted={
            name: len(part) - LINES_MAX for name, part in parts.items() if len(part) > LINES_MAX
        },
        sagas=tuple(each for each in sagas if about.start <= each.started_at <= about.end),
        evidence=tuple(each for each in evidence if _is_within(each, about)),
        waits_now=tuple(waits_now),
    )


SECTIONS: Final = {
    "observed": "seen",
    "judged": "seen",
    "decided": "decided",
    "done": "done",
    "tried": "done",
}
"""Topic -> the section of its lines; `blocked`, `requested` and `refused` have their own."""


def _waited(stored: Iterable[Stored]) -> Iterable[WaitedLine]:
    for each in stored:
        message = decode_stored(each)
        gate = _gate(message)
        held = [line for line in history_lines([each]) if line.topic in ("blocked", "refused")]
        if gate or held:
            text = describe_stored(each)
            detail = f": {text.summary}" if text.detail else ""
            line = f"{text.name} {text.title}{detail}".strip()
            yield WaitedLine(at=each.time, gate=gate, text=line)


def _is_routine(message: Message | UnknownType | Invalid) -> bool:
    """Return whether a message only says that a new node is as it should be: there are many."""
    if isinstance(message, n.Verdict):
        return (message.previous, message.status) == ("unknown", "healthy")
    return isinstance(message, n.Registered | n.Admitted)


def _gate(message: Message | UnknownType | Invalid) -> str:
    ends = getattr(message, "status", "") in ("closed", "resumed")
    return "" if ends else GATES.get(type(message), "")


def _is_within(kept: KeptEvidence, about: ReviewSpan) -> bool:
    began, ended = kept.unhealthy_at or kept.time, kept.restored_at or about.end
    return about.pool in ("", kept.pool) and began <= about.end and ended >= about.start
