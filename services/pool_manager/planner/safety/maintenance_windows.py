"""When a pool's windows are open, and when that changes next. Pure: windows and a moment in.

A window begins where its cron expression matches on the clocks of its time zone, and lasts for its
duration in real time: one that spans the change of the clocks is neither longer nor shorter for it.
A beginning that falls into the hour that is skipped in spring comes right after it; one in the hour
that comes twice in autumn begins once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim

from schemas.settings import WindowKind, WindowSpec
from services.pool_manager.planner.pool_snapshot import earlier

KEPT_MAX: Final = 256
"""Windows at a moment whose openings are kept: one decision asks for them for each node."""


@dataclass(frozen=True, slots=True)
class Opening:
    """One time that a window is open."""

    window: WindowSpec
    start: datetime
    end: datetime


def opening(windows: Iterable[WindowSpec], kind: WindowKind, now: datetime) -> Opening | None:
    """The window of a kind that is open now; of several the one that closes last."""
    found = [each for one in windows if one.kind == kind and (each := _current(one, now))]
    return max(found, key=lambda each: each.end, default=None)


def next_opening(windows: Iterable[WindowSpec], kind: WindowKind, now: datetime) -> Opening | None:
    """The window of a kind that opens next."""
    found = [each for one in windows if one.kind == kind and (each := _next(one, now))]
    return min(found, key=lambda each: each.start, default=None)


def next_edge(windows: Iterable[WindowSpec], now: datetime) -> datetime | None:
    """Return when a window opens or closes next."""
    edge: datetime | None = None
    for window in windows:
        current, after = _current(window, now), _next(window, now)
        edge = earlier(edge, current.end if current else None)
        edge = earlier(edge, after.start if after else None)
    return edge


@lru_cache(KEPT_MAX)
def _current(window: WindowSpec, now: datetime) -> Opening | None:
    # The clock goes back a minute at a time from just after now, because a beginning at this very
    # minute counts as well.
    local = (now + timedelta(minutes=1)).astimezone(ZoneInfo(window.timezone))
    for start in CronSim(window.start, local, reverse=True):
        found = _opening(window, start)
        if found.start <= now:
            return found if now < found.end else None
    return None


@lru_cache(KEPT_MAX)
def _next(window: WindowSpec, now: datetime) -> Opening | None:
    local = now.astimezone(ZoneInfo(window.timezone))
    for start in CronSim(window.start, local):
        found = _opening(window, start)
        if found.start > now:
            return found
    return None


def _opening(window: WindowSpec, start: datetime) -> Opening:
    begun = start.astimezone(UTC)
    return Opening(window, begun, begun + timedelta(seconds=window.duration))
