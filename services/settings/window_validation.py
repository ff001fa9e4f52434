"""Checks a window, an interval or a diagnostic, and names what to write instead. Pure."""

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from schemas.duration import format_duration
from schemas.settings import Settings, WindowSpec
from services.settings.provider_choices import Problem

POSITIVE: Final = {
    "agent": (
        "heartbeat_interval",
        "sample_interval",
        "telemetry_interval",
        "enroll_within",
        "credentials_valid",
    ),
    "lag": ("interval",),
}
FIELDS: Final = 5
"""Minute, hour, day of the month, month, day of the week; a sixth would be seconds."""
DURATION_SECONDS_MAX: Final = 31 * 86_400.0
_ANY: Final = datetime(2026, 1, 1, tzinfo=UTC)


def interval_problems(settings: Settings) -> Iterator[Problem]:
    """The keys that are wrong, and why."""
    for section, keys in POSITIVE.items():
        for key in keys:
            if getattr(getattr(settings, section), key) <= 0:
                yield (section, key), "must be more than 0: write 10s, 1m or 24h"
    interval, ttl = settings.agent.heartbeat_interval, settings.agent.heartbeat_ttl
    if ttl < 1 or not float(ttl).is_integer():
        yield ("agent", "heartbeat_ttl"), "must be whole seconds, 1s or more: the server counts so"
    elif interval >= ttl:
        text = (
            f"{format_duration(ttl)} is not above heartbeat_interval {format_duration(interval)}, "
            "so every node would be lost between two heartbeats; three intervals are usual"
        )
        yield ("agent", "heartbeat_ttl"), text


def window_problem(window: WindowSpec, before: Iterable[WindowSpec]) -> tuple[str, str] | None:
    """Return the key that is wrong, and why; None where all is right. `before`: those above it."""
    if any(other.name == window.name for other in before):
        return "name", f"{window.name!r} is there twice; rename one"
    if wrong := _cron_problem(window.start):
        return "start", (
            f"{window.start!r} is not a cron expression ({wrong}); write minute, hour, day, month "
            "and day of the week: 0 22 * * 5 is 22:00 on Fridays"
        )
    try:
        ZoneInfo(window.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return "timezone", f"{window.timezone!r} is no time zone; write one like Europe/Berlin"
    if not 60 <= window.duration <= DURATION_SECONDS_MAX:  # noqa: PLR2004 - a minute
        return "duration", "a window lasts from 1m to 31 days (744h)"
    return None


def _cron_problem(expression: str) -> str:
    if len(expression.split()) != FIELDS:
        return "it needs five fields"
    try:
        CronSim(expression, _ANY)
    except CronSimError as error:
        return str(error)
    return ""


def diagnostic_problem(name: str) -> str:
    """Return what is wrong with the name of a diagnostic; empty where nothing is."""
    if re.fullmatch(r"(dcgm-[1-4]|(?!dcgm)[a-z][a-z0-9-]{0,62})?", name):
        return ""
    return f"{name!r} is no diagnostic; write boot, memory, dcgm-1 to dcgm-4, or a plugin's name"
