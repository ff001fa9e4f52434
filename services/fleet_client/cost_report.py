"""Sums what instances cost, by day, pool and a label, and over time, from their records. Pure.

A terminated instance's record is kept for seven days, which bounds how far back this reaches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord

SPAN_MAX: Final = timedelta(days=7)
POINTS_MAX: Final = 2_000
"""Changes of a pool's instances in one answer; the newest."""
HOUR_SECONDS: Final = 3_600.0


class PoolPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what runs, and costs, from a time on until the next point."""

    time: datetime
    instances: int
    dollars_per_hour: float


class PoolHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a pool's size and cost over a span of time."""

    pool: str
    since: datetime
    until: datetime
    dollars: float
    """What the pool's instances cost in that time, by the prices at which they were launched."""
    unpriced: int = 0
    """Instances whose price is not known; they count as free."""
    points: tuple[PoolPoint, ...] = ()
    """Oldest first; the first is at `since`, unless there are more than POINTS_MAX."""


def pool_history(
    pool: str, records: Iterable[InstanceRecord], since: datetime, until: datetime
) -> PoolHistory:
    """Sum the pool's instances; one runs from when its provider says so until it has gone."""
    changes: dict[datetime, list[tuple[int, float]]] = {since: []}
    dollars, unpriced = 0.0, 0
    for each in records:
        span = paid_span(each, since, until)
        if each.pool != pool or span is None:
            continue
        begin, end = span
        price = each.dollars_per_hour
        unpriced += not price
        dollars += price * (end - begin).total_seconds() / HOUR_SECONDS
        changes.setdefault(begin, []).append((1, price))
        if end < until:
            changes.setdefault(end, []).append((-1, -price))
    return PoolHistory(
        pool=pool,
        since=since,
        until=until,
        dollars=round(dollars, 2),
        unpriced=unpriced,
        points=tuple(_points(changes))[-POINTS_MAX:],
    )


def paid_span(
    record: InstanceRecord, since: datetime, until: datetime
) -> tuple[datetime, datetime] | None:
    """Return from when until when within a time an instance ran; None: it did not."""
    begin = max(record.running_at, since) if record.running_at else until
    end = min(record.terminated_at or until, until)
    return (begin, end) if begin < end else None


def _points(changes: dict[datetime, list[tuple[int, float]]]) -> Iterator[PoolPoint]:
    instances, price = 0, 0.0
    for time, changed in sorted(changes.items()):
        instances += sum(count for count, _ in changed)
        price += sum(dollars for _, dollars in changed)
        yield PoolPoint(time=time, instances=instances, dollars_per_hour=round(price, 4))


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the instances of a pool with one value of the label cost on a day."""

    day: str
    """Of UTC: `2026-11-26`."""
    pool: str
    label: str = ""
    """The label's value; empty: they have none, or no label was asked for."""
    instance_hours: float
    dollars: float
    unpriced_hours: float = 0.0
    """Of instances whose price is not known; they count as free."""


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the cost of instances over a span of time."""

    since: datetime
    until: datetime
    label: str = ""
    """The label that instances are grouped by; empty: none."""
    instance_hours: float
    dollars: float
    unpriced_hours: float
    rows: tuple[CostRow, ...] = ()
    """By day, pool and value of the label."""


@dataclass(slots=True)
class _Sum:
    hours: float = 0.0
    dollars: float = 0.0
    unpriced: float = 0.0


def cost_report(
    records: Iterable[InstanceRecord], since: datetime, until: datetime, label: str = ""
) -> CostReport:
    """Sum what ran between two moments, by the prices at which it was launched."""
    sums: dict[tuple[str, str, str], _Sum] = {}
    for each in records:
        span = paid_span(each, since, until)
        value = each.launch.labels.get(label, "") if label else ""
        for day, hours in _days(*span) if span else ():
            found = sums.setdefault((day, each.pool, value), _Sum())
            found.hours += hours
            found.dollars += hours * each.dollars_per_hour
            found.unpriced += 0.0 if each.dollars_per_hour else hours
    return CostReport(
        since=since,
        until=until,
        label=label,
        instance_hours=round(sum((each.hours for each in sums.values()), 0.0), 2),
        dollars=round(sum((each.dollars for each in sums.values()), 0.0), 2),
        unpriced_hours=round(sum((each.unpriced for each in sums.values()), 0.0), 2),
        rows=tuple(
            CostRow(
                day=day,
                pool=pool,
                label=value,
                instance_hours=round(found.hours, 2),
                dollars=round(found.dollars, 2),
                unpriced_hours=round(found.unpriced, 2),
            )
            for (day, pool, value), found in sorted(sums.items())
        ),
    )


def _days(begin: datetime, end: datetime) -> Iterator[tuple[str, float]]:
    """Each day of UTC in a span of time, and how many hours of it are in the span."""
    at = begin.astimezone(UTC)
    while at < end:
        midnight = at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        until = min(midnight, end)
        yield f"{at:%Y-%m-%d}", (until - at).total_seconds() / HOUR_SECONDS
        at = until
