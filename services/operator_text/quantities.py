"""Times, durations, GPU-hours and lists of names as operators read them. Pure."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

_UTC_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
MINUTE: Final = 60
HOUR: Final = 3_600
DAY: Final = 86_400


def local_time(at: datetime) -> str:
    """Format a time in the local time zone."""
    return at.astimezone().strftime("%m-%d %H:%M:%S")


def local_time_text(text: str) -> str:
    """A time in the local time zone; a text that is not a time stays as it is."""
    try:
        return local_time(datetime.fromisoformat(text))
    except ValueError:
        return text


def localized(sentence: str) -> str:
    """Return a sentence with the times that a service wrote, in the local time zone."""
    return _UTC_TEXT.sub(lambda found: local_time_text(found[0]), sentence)


def elapsed(seconds: float) -> str:
    """Format a duration in its most readable unit."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"  # noqa: PLR2004


def rough_time(seconds: float) -> str:
    """Format a duration in its two largest units: `2 h 10 min`."""
    minutes = int(seconds // 60)
    hours, days = minutes // 60, minutes // 1440
    if days:
        return f"{days} d {hours % 24} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"


def age(seconds: float) -> str:
    """Return an age in its two largest units: `2h10m`. Lists have thousands of them."""
    whole = max(int(seconds), 0)
    if whole < MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE}m"
    return f"{whole // DAY}d{whole % DAY // HOUR}h"


def age_since(began: datetime, now: datetime) -> str:
    """Return how long ago something began."""
    return age((now - began).total_seconds())


def age_since_text(began: str, now: datetime) -> str:
    """Return how long ago that was; `-` for a text that is not a time."""
    try:
        return age_since(datetime.fromisoformat(began), now)
    except (ValueError, TypeError):
        return "-"


def first_of(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are: `a, b and 7 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def gpu_hours(count: float) -> str:
    """Format GPU-hours, with more digits for small values."""
    if count >= 0.1 or not count:  # noqa: PLR2004
        return f"{count:.2f}"
    return f"{count:.3f}" if count >= 0.001 else "<0.001"  # noqa: PLR2004
