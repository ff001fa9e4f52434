"""Limits alerts about many nodes of a pool. Pure.

If three hundred nodes become unhealthy at once, operators need one incident, not three hundred
alerts. The first node alerts at once; alerts for further nodes of the pool are held for a few
seconds, in which an incident may open that covers them. Silence and lag are always held: both are
often over within seconds of a restart. Each replica counts its own alerts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from services.notifier.alerts.alert_rules import Alert

EACH_MAX: Final = 5
"""Nodes of a pool that alert one by one within WITHIN_SECONDS; as many as make an incident."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertGroup:
    """Recent alerts of one kind about nodes of one pool."""

    since: datetime
    events: tuple[str, ...] = ()
    """The first EACH_MAX and the next one; later alerts are dropped."""


@dataclass(frozen=True, slots=True)
class AlertGroups:
    """The current groups."""

    groups: Mapping[tuple[str, str, str], AlertGroup] = field(default_factory=dict)


def is_held(state: AlertGroups, alert: Alert) -> bool:
    """Whether the alert is held: by its kind, or since its pool alerted within WITHIN_SECONDS."""
    kind = alert.key.partition("/")[0]
    if kind in ALWAYS_HELD:
        return True
    if not alert.node or alert.severity != "critical" or kind not in HELD_KINDS:
        return False
    group = state.groups.get(_key(alert))
    if group is None or alert.time - group.since >= timedelta(seconds=WITHIN_SECONDS):
        return False
    return alert.event not in group.events


def _key(alert: Alert) -> tuple[str, str, str]:
    return alert.pool, alert.key.partition("/")[0], alert.severity


def limit_alert(state: AlertGroups, alert: Alert) -> tuple[AlertGroups, Alert | None]:
    """The alert to send: unchanged, marked as one of many, or none.

    A redelivered alert gives the same result as before.
    """
    if not alert.node:
        return state, alert
    key = _key(alert)
    group = state.groups.get(key)
    if group is None or alert.time - group.since >= timedelta(seconds=WITHIN_SECONDS):
        group = AlertGroup(since=alert.time)
    if alert.event not in group.events:
        if len(group.events) > EACH_MAX:
            return state, None
        group = replace(group, events=(*group.events, alert.event))
    others = {name: each for name, each in state.groups.items() if name != key}
    oldest = list(others)[: max(0, len(others) + 1 - GROUPS_MAX)]
    kept = {name: each for name, each in others.items() if name not in oldest}
    state = AlertGroups({**kept, key: group})
    if group.events.index(alert.event) < EACH_MAX:
        return state, alert
    return state, replace(
        alert,
        title=f"{alert.title}, like other nodes of the pool",
        text=(
            f"{alert.text} This is alert {EACH_MAX + 1} of its kind within a minute; further nodes "
            f"are not reported one by one: navarch list --pool {alert.pool}."
        ),
        key=f"many/{'/'.join(key)}",
    )
