"""What is wrong with the intervals of agents and of checks: a process would refuse them. Pure."""

from collections.abc import Iterator
from typing import Final

from schemas.duration import format_duration
from schemas.settings import Settings
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
