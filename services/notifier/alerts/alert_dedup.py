"""Many nodes are not as many alerts: the first are told, then that there are more. Pure.

When three hundred nodes fall ill at once, people need the incident, and not three hundred messages
that hide it. So the first node is told at once; the next ones of its pool are held for a moment, in
which an incident may open that tells of them all. Each process counts what it sends itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from services.notifier.alerts.alert_rules import Alert

EACH_MAX: Final = 5
"""Nodes of a pool told one by one within the time; as many as make an incident."""
WITHIN_SECONDS: Final = 60.0
HOLD_SECONDS: Final = 10.0
"""So long the second node and those after it are held; an incident opens within a second or two of
the node that makes it one."""
HELD: Final = frozenset({"health", "lost", "operator"})
"""What incidents are made of, as alerts' keys begin."""
CROWDS_MAX: Final = 1_000
"""Kinds of alerts and pools that are counted at once; the oldest is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Alerts of one kind about nodes of one pool, since the first of them."""

    since: datetime
    events: tuple[str, ...] = ()
    """The first of them and the one after; whatever comes then is passed over."""


@dataclass(frozen=True, slots=True)
class Folding:
    """What is counted now."""

    crowds: Mapping[tuple[str, str, str], Crowd] = field(default_factory=dict)


def is_held(state: Folding, alert: Alert) -> bool:
    """Whether this may be one node of many: another of its pool was told within the time."""
    if not alert.node or alert.severity != "critical" or alert.key.partition("/")[0] not in HELD:
        return False
    crowd = state.crowds.get(_key(alert))
    if crowd is None or alert.time - crowd.since >= timedelta(seconds=WITHIN_SECONDS):
        return False
    return alert.event not in crowd.events


def _key(alert: Alert) -> tuple[str, str, str]:
    return alert.pool, alert.key.partition("/")[0], alert.severity


def folded(state: Folding, alert: Alert) -> tuple[Folding, Alert | None]:
    """The alert as it is told: as it is, as the word that there are more, or not at all.

    An alert that is delivered again is told as it was before.
    """
    if not alert.node:
        return state, alert
    key = _key(alert)
    crowd = state.crowds.get(key)
    if crowd is None or alert.time - crowd.since >= timedelta(seconds=WITHIN_SECONDS):
        crowd = Crowd(since=alert.time)
    if alert.event not in crowd.events:
        if len(crowd.events) > EACH_MAX:
            return state, None
        crowd = replace(crowd, events=(*crowd.events, alert.event))
    others = {name: each for name, each in state.crowds.items() if name != key}
    oldest = list(others)[: max(0, len(others) + 1 - CROWDS_MAX)]
    kept = {name: each for name, each in others.items() if name not in oldest}
    state = Folding({**kept, key: crowd})
    if crowd.events.index(alert.event) < EACH_MAX:
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
