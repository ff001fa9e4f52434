"""Turns at something that may be asked only so often, by processes that share one record. Pure.

The record says from when on the next turn may be. A turn is taken by writing it anew, guarded by
its revision; it begins when it was stored, or where the record before says so, whichever is later.
Both are moments of the server's clock, so that the clocks of those who take turns do not matter. A
turn must be used soon after it began, or not at all; turns are further apart by just as much, so
that any two uses are an interval apart at least, however late each of them is within its turn.

Some turns are of a kind that may be had more seldom still (launches): such a turn is one of all
turns, and the record says besides from when on the next of its kind may be.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from schemas.lease_records import RateLimitRecord

SLACK_PART: Final = 0.1
SLACK_SECONDS_MAX: Final = 0.5


def slack_seconds(interval_seconds: float) -> float:
    """How late a turn may still be used."""
    return min(interval_seconds * SLACK_PART, SLACK_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRate:
    """How often turns may be had: all of them, and those of some kinds."""

    interval_seconds: float
    slower_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSlot:
    """From when on the next turn may be, and the next of each kind; absent: at once."""

    not_before: datetime | None = None
    slower: Mapping[str, datetime] = field(default_factory=dict)

    def of(self, kind: str) -> datetime | None:
        """The same for a turn of this kind."""
        both = [each for each in (self.not_before, self.slower.get(kind)) if each is not None]
        return max(both, default=None)


def slot_start(record: RateLimitRecord, stored_at: datetime) -> datetime:
    """When the turn that a record stands for begins."""
    return stored_at if record.not_before is None else max(stored_at, record.not_before)


def next_slot(record: RateLimitRecord, stored_at: datetime, pace: RequestRate) -> NextSlot:
    """What may come after a record's turn."""
    turn = slot_start(record, stored_at)
    slower = {kind: at for kind, at in record.slower.items() if at > turn}
    if record.kind in pace.slower_seconds:
        slower[record.kind] = turn + _spacing(pace.slower_seconds[record.kind])
    return NextSlot(not_before=turn + _spacing(pace.interval_seconds), slower=slower)


def slot_record(after_last: NextSlot, kind: str) -> RateLimitRecord:
    """What whoever takes the next turn writes, for one of this kind."""
    return RateLimitRecord(
        not_before=after_last.of(kind), kind=kind, slower=dict(after_last.slower)
    )


def _spacing(interval_seconds: float) -> timedelta:
    return timedelta(seconds=interval_seconds + slack_seconds(interval_seconds))


def wait_seconds(turn: datetime, stored_at: datetime) -> float:
    """How long to wait, counted from a moment at which the record was surely stored."""
    return (turn - stored_at).total_seconds()


def is_in_time(since_sent_seconds: float, wait: float, interval_seconds: float) -> bool:
    """Whether a turn may still be used, so long after its record was sent to be stored."""
    return since_sent_seconds - wait <= slack_seconds(interval_seconds)
