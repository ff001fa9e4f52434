"""A pool's instances and their cost over time, from the instances' records. Pure.

A terminated instance's record is kept for seven days, which bounds how far back this reaches.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.instance_records import InstanceRecord

SPAN_MAX: Final = timedelta(days=7)
POINTS_MAX: Final = 2_000
"""Changes of a pool's instances in one answer; the newest."""
HOUR_SECONDS: Final = 3_600.0


class PoolPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What runs, and costs, from a time on until the next point."""

    time: datetime
    instances: int
    dollars_per_hour: float


class PoolHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A pool over a span of time."""

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
    """From when until when within a time an instance ran; None: it did not."""
    begin = max(record.running_at, since) if record.running_at else until
    end = min(record.terminated_at or until, until)
    return (begin, end) if begin < end else None


def _points(changes: dict[datetime, list[tuple[int, float]]]) -> Iterator[PoolPoint]:
    instances, price = 0, 0.0
    for time, changed in sorted(changes.items()):
        instances += sum(count for count, _ in changed)
        price += sum(dollars for _, dollars in changed)
        yield PoolPoint(time=time, instances=instances, dollars_per_hour=round(price, 4))
