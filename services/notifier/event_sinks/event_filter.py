"""Stored events as CloudEvents, and which of them a sink is sent. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from schemas import subjects
from schemas.alert_records import SEVERITIES, Severity
from schemas.event_sink_settings import EventSinkSpec
from schemas.fleet_events import FACTS as FLEET_FACTS
from schemas.headers import TRACEPARENT
from schemas.messages import UNREADABLE, Invalid, Message, UnknownType
from schemas.node_events import FACTS as NODE_FACTS
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.stored_messages import decode_stored
from schemas.value_limits import Name
from services.bus.port import Stored
from services.notifier.alerts.alert_rules import alert_of
from services.notifier.cloud_events import CloudEvent, cloud_event

SEQUENCE_DIGITS: Final = 20


class _Envelope(msgspec.Struct):
    """What every message has, of whatever release."""

    type: Name
    id: Name
    time: datetime


_envelope = msgspec.json.Decoder(_Envelope)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEvent:
    """A stored event as a sink is sent it, and what filters look at."""

    cloud: CloudEvent
    pool: str
    """Empty: it is about the fleet's own services."""
    node: str
    severity: Severity


def filters_of(spec: EventSinkSpec) -> tuple[str, ...]:
    """Return what the server delivers of EVENTS: by name; the rest is filtered here."""
    if not spec.events:
        return subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS
    families = (
        (dict.fromkeys(NODE_FACTS.values()), subjects.node_event_wildcard),
        (POOL_FACTS.values(), subjects.pool_event_wildcard),
        (FLEET_FACTS.values(), subjects.fleet_event),
    )
    return tuple(
        wildcard(fact)
        for facts, wildcard in families
        for fact in sorted(facts)
        if any(fnmatchcase(fact, each) for each in spec.events)
    )


def sink_event(stored: Stored, fleet: str) -> SinkEvent | None:
    """Make it of what is stored; None where that is no event.

    One of a type that this release does not know is sent like any other.
    """
    message = decode_stored(stored)
    severity: Severity = "info"
    match message:
        case Invalid():
            return None
        case UnknownType():
            try:
                head = _envelope.decode(stored.data)
            except UNREADABLE:
                return None
            kind, id_, time = head.type, head.id, head.time
        case Message():
            kind, id_, time = str(message.__struct_config__.tag), message.id, message.time
            if (alert := alert_of(message)) is not None:
                severity = alert.severity
    pool, node = _place(stored.subject)
    cloud = cloud_event(
        id_=id_,
        source=f"/navarch/{fleet}",
        kind=kind,
        subject="/".join(filter(None, (pool, node))),
        time=time,
        data=stored.data,
        sequence=f"{stored.sequence:0{SEQUENCE_DIGITS}d}",
        severity=severity,
        traceparent=stored.headers.get(TRACEPARENT, ""),
    )
    return SinkEvent(cloud=cloud, pool=pool, node=node, severity=severity)


def wants(spec: EventSinkSpec, event: SinkEvent) -> bool:
    """Return whether the sink is sent an event, as far as its labels do not matter."""
    if SEVERITIES.index(event.severity) < SEVERITIES.index(spec.min_severity):
        return False
    if (spec.pools or spec.labels) and not event.pool:
        return False
    return not spec.pools or any(fnmatchcase(event.pool, each) for each in spec.pools)


def has_labels(spec: EventSinkSpec, labels: Mapping[str, str]) -> bool:
    """Return whether these labels of a node or a pool are those that the sink asks for."""
    return all(labels.get(name) == value for name, value in spec.labels.items())


def _place(subject: str) -> tuple[str, str]:
    """The pool and the node that a subject names."""
    if about := subjects.parse_node(subject):
        return about.pool, about.node
    of_pool = subjects.parse_pool_event(subject)
    return (of_pool.pool, "") if of_pool else ("", "")
