"""Limits how many alerts of one kind about a pool are sent, and finds their incident. Pure.

If three hundred nodes become unhealthy at once, or half of a fleet is lost and returns again and
again, operators need one alert, not hundreds. Five alerts of a kind and pool are sent one by one,
and one more for each ten minutes; what is beyond is summarised in one alert that stays open until
five minutes have passed without another. Alerts about further nodes are held for a few seconds, in
which an incident may open that covers them. Silence and lag are always held: both are often over
within seconds of a restart. Each replica counts its own alerts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from schemas.alert_records import Alert
from schemas.breaker_state import OpenIncident
from schemas.fault_signature import SILENCE, called, shared
from schemas.messages import Message
from schemas.node_events import Lost, Verdict
from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded

EACH_MAX: Final = 5
"""Alerts of a kind and pool that are sent one by one; as many nodes as make an incident."""
REFILL_SECONDS: Final = 600.0
"""After so long one more may be sent, up to EACH_MAX."""
QUIET_SECONDS: Final = 300.0
"""A summary ends when so long nothing was added to it."""
WITHIN_SECONDS: Final = 60.0
HOLD_SECONDS: Final = 10.0
"""How long alerts after the first are held; an incident opens within two seconds of the node that
completes it."""
HELD_KINDS: Final = frozenset({"health", "lost", "operator"})
"""Prefixes of the keys of alerts that an incident may cover."""
ALWAYS_HELD: Final = frozenset({"lost", "lag"})
"""Prefixes of the keys of alerts that are held even if they are the first."""
GROUPS_MAX: Final = 1_000
"""Counted groups; the oldest is dropped."""
SUMMARY_PREFIX: Final = "many/"

Group = tuple[str, str, str]
"""Pool, kind and severity of an alert."""


def matching_incident(
    event: Message, node: NodeRecord | None, incidents: Mapping[str, OpenIncident], at: datetime
) -> str:
    """The name of the incident that covers an event stored `at`; empty if none does.

    A released or settled incident covers no later event.
    """
    fault_signature = _fault_signature(event, node)
    for name, each in incidents.items():
        over = each.released or (each.hold_ended_at is not None and each.hold_ended_at < at)
        if each.scope == "pool":
            same = fault_signature == name
        else:
            same = node is not None and shared(node, each.scope) == each.within
        if fault_signature and same and not over:
            return name
    return ""


def _fault_signature(event: Message, node: NodeRecord | None) -> str:
    """The fault signature in an event, as incidents name it; empty if it has none."""
    match event:
        case Verdict(drill=drill) if drill:
            return ""  # no incident has a drill
        case Verdict(status="unhealthy", kind=kind, code=code) if kind:
            return called(kind, code)
        case Lost():
            return SILENCE
        case OperatorNeeded() if node is not None and node.health_drill:
            return ""
        case OperatorNeeded() if node is not None and node.health == "unhealthy":
            return called(node.health_kind, node.health_code)
        case OperatorNeeded() if node is not None and node.lost:
            return SILENCE
        case _:
            return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """Holds recent alerts of one kind, pool and severity."""

    last: datetime
    """Time of the last one, sent or not."""
    allowed: float = EACH_MAX
    """How many may be sent one by one now."""
    events: tuple[str, ...] = ()
    """The last EACH_MAX that were sent one by one."""
    summary: str = ""
    """The event with which the summary began; empty: none is open."""


@dataclass(frozen=True, slots=True)
class AlertGroups:
    """The current groups."""

    groups: Mapping[Group, AlertGroup] = field(default_factory=dict)


def is_held(state: AlertGroups, alert: Alert) -> bool:
    """Return whether an alert is held: by its kind, or since its pool alerted just before."""
    kind = _kind(alert)
    if kind in ALWAYS_HELD:
        return True
    if not alert.node or alert.severity != "critical" or kind not in HELD_KINDS:
        return False
    group = state.groups.get(group_of(alert))
    if group is None or alert.time - group.last >= timedelta(seconds=WITHIN_SECONDS):
        return False
    return alert.event not in group.events


def limit_alert(state: AlertGroups, alert: Alert) -> tuple[AlertGroups, Alert | None]:
    """The alert to send: unchanged, as the beginning of a summary, or none.

    A redelivered alert gives the same result as before.
    """
    key = group_of(alert)
    group = state.groups.get(key) or AlertGroup(last=alert.time)
    if alert.event in group.events:
        return state, alert
    if alert.event == group.summary:
        return state, _summary(alert)
    gap_seconds = max((alert.time - group.last).total_seconds(), 0.0)
    allowed = min(group.allowed + gap_seconds / REFILL_SECONDS, EACH_MAX)
    summary = "" if gap_seconds >= QUIET_SECONDS else group.summary
    limited: Alert | None = alert
    if allowed >= 1:
        allowed, events = allowed - 1, (*group.events, alert.event)[-EACH_MAX:]
    else:
        events, limited = group.events, None if summary else _summary(alert)
        summary = summary or alert.event
    last = max(group.last, alert.time)
    group = AlertGroup(last=last, allowed=allowed, events=events, summary=summary)
    others = {name: each for name, each in state.groups.items() if name != key}
    oldest = list(others)[: max(0, len(others) + 1 - GROUPS_MAX)]
    kept = {name: each for name, each in others.items() if name not in oldest}
    return AlertGroups({**kept, key: group}), limited


def summary_key(alert: Alert) -> str:
    """The key of the summary that an alert is part of."""
    return f"{SUMMARY_PREFIX}{'/'.join(group_of(alert))}"


def is_summary(key: str) -> bool:
    """Return whether the alert with this key is a summary."""
    return key.startswith(SUMMARY_PREFIX)


def lasts(summary: str, nodes: list[NodeRecord]) -> bool:
    """Return whether a node in service is still in the condition that a summary is about."""
    *_, kind, severity = summary.split("/")
    status = "unhealthy" if severity == "critical" else "degraded"
    return any(
        node.state == "active" and (node.lost if kind == "lost" else node.health == status)
        for node in nodes
        if kind in ("lost", "health")
    )


def end_of_summary(begun: Alert, now: datetime) -> Alert:
    """Return the end of a summary."""
    _, pool, kind, _ = begun.key.split("/")
    minutes = f"{QUIET_SECONDS / 60:.0f} minutes"
    return replace(
        begun,
        title=f"{pool or 'fleet'}: no more {kind} alerts",
        text=f"For {minutes} there was none, and what they were about is over.",
        event=f"end-{begun.event}",
        time=now,
        since=begun.began,
        resolved=True,
    )


def group_of(alert: Alert) -> Group:
    """The group in which an alert is counted."""
    return alert.pool, _kind(alert), alert.severity


def _kind(alert: Alert) -> str:
    return alert.key.partition("/")[0]


def _summary(alert: Alert) -> Alert:
    where = f"pool {alert.pool}" if alert.pool else "the fleet"
    command = f"navarch list --pool {alert.pool}" if alert.pool else "navarch status"
    return replace(
        alert,
        title=f"{alert.title}, like others before",
        text=(
            f"{alert.text} There are many {_kind(alert)} alerts about {where}: further ones are "
            f"not sent one by one, and this one ends when there are none any more: {command}."
        ),
        key=summary_key(alert),
    )
