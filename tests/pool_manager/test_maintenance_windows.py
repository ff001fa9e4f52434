"""When windows are open: tables over moments, daylight-saving changes included."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.settings import WindowKind, WindowSpec
from services.pool_manager.planner.safety.maintenance_windows import (
    next_edge,
    next_opening,
    opening,
)

HOUR = 3600.0


def window(start: str, hours: float, *, zone: str = "UTC", name: str = "w") -> WindowSpec:
    """Return a freeze window of so many hours."""
    return WindowSpec(
        name=name, kind="freeze", start=start, duration=Duration(hours * HOUR), timezone=zone
    )


def at(text: str) -> datetime:
    """Return a moment in UTC, such as `2026-03-29 00:59`."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


NIGHTLY = window("30 2 * * *", 2, zone="Europe/Berlin")
TABLE = [
    # window, now, open from (UTC) or nothing, next edge (UTC)
    (window("0 22 * * 5", 3), "2026-11-20 21:59", "", "2026-11-20 22:00"),
    (window("0 22 * * 5", 3), "2026-11-20 22:00", "2026-11-20 22:00", "2026-11-21 01:00"),
    (window("0 22 * * 5", 3), "2026-11-21 00:59", "2026-11-20 22:00", "2026-11-21 01:00"),
    (window("0 22 * * 5", 3), "2026-11-21 01:00", "", "2026-11-27 22:00"),
    # Winter and summer: the same local time, another hour of UTC.
    (NIGHTLY, "2026-01-10 01:29", "", "2026-01-10 01:30"),
    (NIGHTLY, "2026-01-10 01:30", "2026-01-10 01:30", "2026-01-10 03:30"),
    (NIGHTLY, "2026-07-10 00:30", "2026-07-10 00:30", "2026-07-10 02:30"),
    # Clocks jump from 02:00 to 03:00: a window for 02:30 opens at 03:00.
    (NIGHTLY, "2026-03-29 00:59", "", "2026-03-29 01:00"),
    (NIGHTLY, "2026-03-29 01:00", "2026-03-29 01:00", "2026-03-29 03:00"),
    (NIGHTLY, "2026-03-29 03:00", "", "2026-03-30 00:30"),
    # 02:30 occurs twice: the window opens the first time, for two hours, and only once.
    (NIGHTLY, "2026-10-25 00:29", "", "2026-10-25 00:30"),
    (NIGHTLY, "2026-10-25 00:30", "2026-10-25 00:30", "2026-10-25 02:30"),
    (NIGHTLY, "2026-10-25 01:30", "2026-10-25 00:30", "2026-10-25 02:30"),
    (NIGHTLY, "2026-10-25 02:30", "", "2026-10-26 01:30"),
    # A window of four hours across the jump lasts four hours.
    (
        window("0 0 * * *", 4, zone="Europe/Berlin"),
        "2026-03-29 02:59",
        "2026-03-28 23:00",
        "2026-03-29 03:00",
    ),
    # A window longer than its period is always open.
    (window("0 0 * * *", 30), "2026-05-05 05:00", "2026-05-05 00:00", "2026-05-06 00:00"),
]


@pytest.mark.parametrize(("spec", "now", "since", "edge"), TABLE)
def test_window_is_open_from_its_start_for_its_duration(
    spec: WindowSpec, now: str, since: str, edge: str
) -> None:
    """The start belongs to the window and the end does not, in its own time zone."""
    found = opening([spec], "freeze", at(now))

    assert (at(since) if since else None) == (found.start if found else None)
    assert at(edge) == next_edge([spec], at(now))


def test_overlapping_windows_of_one_kind_are_merged() -> None:
    """The last to close counts; a service window is not merged with freezes."""
    both = [window("0 0 * * *", 2, name="short"), window("0 1 * * *", 5, name="long")]
    found = opening(both, "freeze", at("2026-05-05 01:30"))
    coming = next_opening(both, "freeze", at("2026-05-05 00:30"))

    assert "long" == (found.window.name if found else "")
    assert "long" == (coming.window.name if coming else "")
    assert opening(both, "service", at("2026-05-05 01:30")) is None


KINDS: tuple[WindowKind, ...] = ("freeze", "service")
EXPRESSIONS = ("30 2 * * *", "0 22 * * 5", "*/20 * * * *", "15 1 1 * *", "0 0 29 2 *")
ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe")


@given(
    st.sampled_from(EXPRESSIONS),
    st.integers(1, 600),
    st.sampled_from(ZONES),
    st.datetimes(datetime(2025, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_nothing_changes_before_the_next_edge(
    start: str, minutes: int, zone: str, now: datetime
) -> None:
    """The next edge is in the future, and the state stays the same until just before it."""
    spec = window(start, minutes / 60, zone=zone)
    edge = next_edge([spec], now)

    assert edge is not None
    assert edge > now
    is_open = opening([spec], "freeze", now) is not None
    assert is_open == (opening([spec], "freeze", edge - timedelta(microseconds=1)) is not None)
