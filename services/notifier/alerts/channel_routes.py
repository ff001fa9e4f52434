"""Decides which channel is sent which alerts now: routes, hours, rates, and what each lacks.

Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Final, get_args
from zoneinfo import ZoneInfo

from schemas.alert_records import SEVERITIES, Alert, OpenAlertRecord
from schemas.settings import AlertRoute, HoursSpec, Weekday

DAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)
HELD_PREFIX: Final = "held/"
UNDELIVERED_PREFIX: Final = "alert-undelivered/"
NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Lists what a channel is sent now, and what waits."""

    send: tuple[str, ...] = ()
    """Keys of alerts: the most urgent first; of equal ones the oldest."""
    held: tuple[Alert, ...] = ()
    """Beyond the rate."""
    waits: bool = False
    """Some wait for the channel's hours or its rate, or for the end of their silence."""


def due(
    route: AlertRoute,
    records: Iterable[OpenAlertRecord],
    sent_at: Sequence[datetime],
    now: datetime,
) -> Due:
    """Return what a channel is sent now; `sent_at` has the times of its last alerts."""
    lacking = [(each, alert) for each in records if (alert := lacks(route, each)) is not None]
    lacking.sort(key=_urgency)
    window = timedelta(seconds=route.rate.window)
    left = route.rate.alerts - sum(now - each < window for each in sent_at)
    quiet = is_quiet(route.hours, now)
    send, held, waits = [], [], False
    for record, alert in lacking:
        silent = alert.is_silent(now) and not alert.resolved
        if silent or (quiet and alert.severity != "critical"):
            waits = True
        elif alert.resolved or alert.acknowledged_by or record.only:
            send.append(alert.key)
        elif left > 0:
            left -= 1
            send.append(alert.key)
        else:
            held.append(alert)
    return Due(send=tuple(send), held=tuple(held), waits=waits or bool(held))


def lacks(route: AlertRoute, record: OpenAlertRecord) -> Alert | None:
    """Return what a channel has yet to be sent of an alert: its beginning, news, or its end."""
    known = record.channels.get(route.name)
    if record.ended is not None:
        return record.ended if known is not None and not known.ended else None
    if record.opened is None or (known is not None and known.event == record.opened.event):
        return None
    if known is not None:
        return record.opened
    if record.only:
        return record.opened if record.only == route.name else None
    return record.opened if matches(route, record.opened) else None


def matches(route: AlertRoute, alert: Alert) -> bool:
    """Return whether a channel's route takes an alert."""
    if alert.key == f"{UNDELIVERED_PREFIX}{channel_place(route.name)}":
        return False  # the channel would be sent that it cannot be sent anything
    return (
        SEVERITIES.index(alert.severity) >= SEVERITIES.index(route.min_severity)
        and (not route.pools or any(fnmatchcase(alert.pool, each) for each in route.pools))
        and (not route.events or alert.kind in route.events)
        and (not route.faults or any(fnmatchcase(alert.fault, each) for each in route.faults))
    )


def is_quiet(hours: HoursSpec | None, now: datetime) -> bool:
    """Return whether alerts that are not critical wait."""
    if hours is None:
        return False
    local = now.astimezone(ZoneInfo(hours.timezone))
    at, today = f"{local:%H:%M}", DAYS[local.weekday()]
    if hours.start < hours.end:
        return not (hours.start <= at < hours.end and today in hours.days)
    yesterday = DAYS[local.weekday() - 1]
    return not (
        (at >= hours.start and today in hours.days) or (at < hours.end and yesterday in hours.days)
    )


def held_alert(route: AlertRoute, held: Sequence[Alert], now: datetime) -> Alert:
    """The alert that says how many others wait for a channel's rate."""
    first = held[0]
    named = "; ".join(each.title for each in held[:NAMED_MAX])
    more = f"; and {len(held) - NAMED_MAX} others" if len(held) > NAMED_MAX else ""
    minutes = f"{route.rate.window / 60:g} minutes"
    return Alert(
        severity=first.severity,
        title=f"{len(held)} more alerts wait",
        text=(
            f"{route.name} is sent {route.rate.alerts} alerts in {minutes} at most (`rate`). These "
            f"follow as it allows, unless they are over by then: {named}{more}. "
            "To see all: navarch events --since 1h."
        ),
        kind=first.kind,
        key=f"{HELD_PREFIX}{route.name}",
        event=f"held-{route.name}-{now.isoformat()}",
        time=now,
    )


def end_of_held(begun: Alert, now: datetime) -> Alert:
    """The end of that alert."""
    return Alert(
        severity=begun.severity,
        title="no more alerts wait",
        text="Those that waited were sent, or are over.",
        kind=begun.kind,
        key=begun.key,
        event=f"end-{begun.event}",
        time=now,
        since=begun.began,
        resolved=True,
    )


def channel_place(name: str) -> str:
    """Return how failures name a channel."""
    return f"alert channel {name}"


def is_settled(record: OpenAlertRecord, names: Iterable[str]) -> bool:
    """Return whether an alert is over and every channel that had it has its end."""
    known = record.channels
    return record.ended is not None and all(known[name].ended for name in names if name in known)


def _urgency(lacking: tuple[OpenAlertRecord, Alert]) -> tuple[int, datetime, str]:
    _, alert = lacking
    return -SEVERITIES.index(alert.severity), alert.began, alert.key
