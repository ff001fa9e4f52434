"""What instances cost, by day, pool and a label, from the instances' records. Pure.

A terminated instance's record is kept for seven days, which bounds how far back this reaches.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec

from schemas.instance_records import InstanceRecord
from services.fleet_client.pool_history import HOUR_SECONDS, paid_span


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the instances of a pool with one value of the label cost on a day."""

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
    """The cost of instances over a span of time."""

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
