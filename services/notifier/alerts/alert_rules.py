"""Makes alerts of events, and ends them, by the rules that `schemas.event_alerts` declares. Pure.

The text is `services.operator_text.event_text`. A condition and its end have the same key, so that
a channel can match the end with the beginning and recognise repetitions. Every alert ends: by an
event that `ended_keys` names, or when nothing more was heard of it for `quiet_seconds`.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Final

from schemas import node_events as n
from schemas import pool_events as p
from schemas import subjects
from schemas.alert_records import Alert, OpenAlertRecord, Severity
from schemas.duration import format_duration
from schemas.enums import AlertKind
from schemas.event_alerts import (
    ALERTS,
    ENDS,
    NODE_KEYS,
    QUIET_SECONDS,
    QUIET_SECONDS_DEFAULT,
    AlertEnd,
    AlertRule,
)
from schemas.event_subjects import FACTS
from schemas.fault_signature import SILENCE, called
from schemas.fleet_queries import CurrentFailure
from schemas.messages import Message
from schemas.node_records import NodeRecord
from services.operator_text.event_text import describe, holds, rendered

STORE_KEY: Final = "store-unwritable/"
"""Begins the keys of alerts about streams that take no writes."""
TEXT_CHARS_MAX: Final = 4_000
TITLE_CHARS_MAX: Final = 300
UNKNOWN_AFTER: Final = timedelta(minutes=15)
"""A machine that others made and removed again before it was adopted leaves nothing else."""


def alert_of(event: Message) -> Alert | None:
    """Make the alert that an event begins or repeats; None where operators need none."""
    rule = _rule(event)
    if rule is None or rule.severity is None:
        return None
    node = getattr(event, rule.node) if rule.node else ""
    return _alert(event, rule.severity, rule.kind, _key(rule.key, event, rule.node), node)


def end_of(event: Message, begun: Alert) -> Alert:
    """The end of an alert, by an event that ends it."""
    end = _alert(event, begun.severity, begun.kind, begun.key, begun.node)
    return _resolved(begun, end.title, end.text, end.event, event.time)


def end_by_quiet(begun: Alert, now: datetime) -> Alert:
    """The end of an alert of which nothing more was heard."""
    quiet = format_duration(quiet_seconds(begun.key))
    text = f"Nothing more was reported for {quiet}. If it still holds, `navarch status` shows it."
    return _resolved(begun, begun.title, text, f"quiet-{begun.event}", now)


def may_be_unknown(record: OpenAlertRecord, now: datetime) -> bool:
    """Return whether an alert has lasted so long that a node that was to stay has a record."""
    opened = record.opened
    of_node = opened is not None and opened.kind in ("lost", "verdict") and opened.node
    return bool(of_node) and now - record.at >= UNKNOWN_AFTER


def end_of_unknown(begun: Alert, now: datetime) -> Alert:
    """Return the end of an alert about a node that has no record, or is gone by its record."""
    text = "The fleet has no node of this name any more."
    title = f"{begun.pool}/{begun.node}: gone"
    return _resolved(begun, title, text, f"unknown-{begun.event}", now)


def is_of_predecessor(record: OpenAlertRecord, node: NodeRecord) -> bool:
    """Return whether an alert is about the silence of an earlier machine of a node's name.

    The event that the node has a successor ends it, unless what was recorded of that is lost.
    """
    opened, admitted_at = record.opened, node.admitted_at
    of_silence = opened is not None and opened.kind == "lost"
    return of_silence and not node.lost and admitted_at is not None and record.at < admitted_at


def end_of_predecessor(begun: Alert, now: datetime) -> Alert:
    """Return the end of an alert about the silence of an earlier machine."""
    text = "Another machine has joined under this name since, and it beats."
    title = f"{begun.pool}/{begun.node}: replaced"
    return _resolved(begun, title, text, f"replaced-{begun.event}", now)


def quiet_seconds(key: str) -> float:
    """Return how long an alert lasts without another event."""
    return QUIET_SECONDS.get(key.partition("/")[0], QUIET_SECONDS_DEFAULT)


def _resolved(begun: Alert, title: str, text: str, event: str, now: datetime) -> Alert:
    return Alert(
        severity=begun.severity,
        title=title,
        text=text,
        pool=begun.pool,
        node=begun.node,
        kind=begun.kind,
        fault=begun.fault,
        key=begun.key,
        event=event,
        time=now,
        since=begun.began,
        resolved=True,
    )


def _alert(event: Message, severity: Severity, kind: AlertKind, key: str, node: str) -> Alert:
    text = describe(event)
    detail = text.detail.rstrip(".")
    return Alert(
        severity=severity,
        title=f"{text.subject}: {text.title}"[:TITLE_CHARS_MAX],
        text=f"{detail[:1].upper()}{detail[1:]}."[:TEXT_CHARS_MAX] if detail else "",
        pool=getattr(event, "pool", ""),
        node=node,
        kind=kind,
        fault=_fault(event),
        key=key,
        event=event.id,
        time=event.time,
    )


def store_key(failure: CurrentFailure) -> str:
    """Return the key of the alert for a store that refuses what is written."""
    return f"{STORE_KEY}{failure.about}"


def store_alert(failure: CurrentFailure, now: datetime) -> Alert:
    """The alert for a store that refuses what is written."""
    return Alert(
        severity="critical",
        title=f"{failure.about}: not writable",
        text=f"{failure.reason}. Cause: {failure.store_cause or 'unknown'}. "
        f"To resolve: {failure.remedy}.",
        kind="service-failure",
        key=store_key(failure),
        event=f"store-unwritable-{failure.about}-{now.isoformat()}",
        time=now,
    )


def end_of_store_alert(begun: Alert, now: datetime) -> Alert:
    """Return the end of an alert about a condition."""
    title = f"{begun.key.removeprefix(STORE_KEY)}: writable again"
    return _resolved(begun, title, "It stores again.", f"end-{begun.event}", now)


def _rule(event: Message) -> AlertRule | None:
    """Return the rule of an event; None where operators need no alert."""
    rules = ALERTS.get(type(event), ())
    rule = next((each for each in rules if holds(each.when, event)), None)
    return rule if rule is not None and rule.severity is not None else None


def _key(template: str, event: Message, node: str) -> str:
    """Return a key; `node`: the field that names the node."""
    named = template.replace("{node}", f"{{{node or 'node'}}}")
    return rendered(named, event)


def ended_keys(event: Message) -> tuple[str, ...]:
    """Return the keys of the alerts that an event ends."""
    return tuple(
        _key(key, event, end.node)
        for end in _ends().get(type(event), ())
        if holds(end.when, event) and not (end.unless and end.unless(event))
        for key in end.keys
    )


@cache
def _ends() -> Mapping[type[Message], Sequence[AlertEnd]]:
    found: dict[type[Message], list[AlertEnd]] = {}
    for each in ENDS:
        found.setdefault(each.event, []).append(each)
    return found


def ends_pool(event: Message) -> str:
    """The pool all of whose alerts an event ends; empty: none."""
    return event.pool if isinstance(event, p.PoolRemoved) else ""


def keys_of_node(pool: str, node: str) -> tuple[str, ...]:
    """Return the keys of the alerts about a node's condition."""
    return tuple(each.format(pool=pool, node=node) for each in NODE_KEYS)


def ending_subjects(event: Message) -> tuple[str, ...]:
    """Return where the events that end the alert about this one are published."""
    rule = _rule(event)
    if rule is None:
        return ()
    kinds = dict.fromkeys(each.event for each in ENDS if rule.key in each.keys)
    pool = getattr(event, "pool", "")
    node = getattr(event, rule.node, "") if "{node}" in rule.key else ""
    return tuple(_subject(FACTS[kind], kind, pool, node) for kind in kinds)


def _subject(fact: str, kind: type[Message], pool: str, node: str) -> str:
    if issubclass(kind, n.NodeEvent):
        found = subjects.node_event if node else None
        return found(pool, node, fact) if found else subjects.node_event_in(pool, fact)
    if issubclass(kind, p.PoolEvent):
        return subjects.pool_event(pool, fact)
    return subjects.fleet_event(fact)


def _fault(event: Message) -> str:
    match event:
        case n.Verdict(kind=kind, code=code, drill=drill):
            return called(kind, code, drill=bool(drill))
        case p.Incident(kind=kind, code=code):
            return called(kind, code)
        case n.Lost():
            return SILENCE
        case _:
            return ""
