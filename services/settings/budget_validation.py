"""Checks a budget of the configuration, and names what to write instead. Pure."""

import re
from typing import Final

from schemas.duration import Duration, format_duration
from schemas.settings import UNLIMITED

WINDOW_SECONDS_MIN: Final = 60.0
WINDOW_SECONDS_MAX: Final = 7 * 86_400.0


def level_problem(value: int | str) -> str:
    """Return what is wrong with how many nodes may be out of service; empty where nothing is."""
    if isinstance(value, int):
        return "" if value >= 1 else f"{value} lets nothing be repaired; use 1 or more"
    if re.fullmatch(r"\d{1,3}(\.\d+)?%", value) and 0 < float(value[:-1]) <= 100:  # noqa: PLR2004
        return ""
    return f"{value!r} is neither a count nor a percentage; write 2 or 20%"


def quarantine_problem(value: int | str) -> str:
    """Return what is wrong with how many nodes may be quarantined; empty where nothing is."""
    if isinstance(value, int):
        return "" if value >= 0 else f"{value} is no count; use 0 for none"
    return level_problem(value)


def rate_problem(value: int | str) -> str:
    """Return what is wrong with how many repairs may be begun in a time; empty where nothing is."""
    if isinstance(value, int):
        return "" if value >= 1 else f"{value} lets nothing be repaired; use 1 or more"
    if value == UNLIMITED or (re.fullmatch(r"\d{1,4}(\.\d+)?%", value) and float(value[:-1]) > 0):
        return ""
    return f"{value!r} is neither a count nor a percentage; write 10, 50% or {UNLIMITED}"


def rate_window_problem(value: Duration) -> str:
    """Return what is wrong with the time within which repairs are counted; empty: nothing is."""
    if value < WINDOW_SECONDS_MIN:
        return f"{format_duration(value)} is too short to count repairs in; write 1m or more"
    if value > WINDOW_SECONDS_MAX:
        return f"{format_duration(value)} is too long to keep count of; write 7d or less"
    return ""
