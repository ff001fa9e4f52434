"""Decides what a message's headers ask of a stream, and which messages the server refuses. Pure.

The checks follow the server's own order: a fault of the message itself is reported before its
guard is looked at, and only then is it asked whether it is a repetition.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Final, Protocol

from schemas import headers as h
from schemas.duration import parse_duration
from services.bus.protocol.server_protocol import header_bytes
from services.bus.protocol.subject_filters import ANY, REST, matches
from services.primitives.errors import Conflict, Refused

ROLLUP: Final = "Nats-Rollup"
LIVES_MAX: Final = 1_024
"""Times to live whose meaning is remembered; the same few are asked for all the time."""

WRONG_LAST_SEQUENCE: Final = 10071
MESSAGE_TOO_LARGE: Final = 10054
ROLLUP_FAILED: Final = 10111
TTL_INVALID: Final = 10165
TTL_DISABLED: Final = 10166
SCHEDULES_DISABLED: Final = 10188
SCHEDULE_INVALID: Final = 10189
TARGET_INVALID: Final = 10190


class Allowed(Protocol):
    """The options of a stream that decide what it takes."""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Return the subjects that the stream stores."""

    @property
    def max_msg_size(self) -> int:
        """Return the most bytes of one message with its headers; -1 for no limit."""

    @property
    def allow_msg_ttl(self) -> bool:
        """Return whether a message may have a time to live of its own."""

    @property
    def allow_msg_schedules(self) -> bool:
        """Return whether a message may be a timer."""

    @property
    def allow_rollup_hdrs(self) -> bool:
        """Return whether a message may take the place of those before it."""


def check_itself(stream: Allowed, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
    """Refuse a message for what it is, whatever the stream holds."""
    if 0 <= stream.max_msg_size < len(data) + header_bytes(headers):
        raise refused(subject, "message size exceeds maximum allowed", MESSAGE_TOO_LARGE)
    if h.TTL in headers:
        if not stream.allow_msg_ttl:
            raise refused(subject, "per-message TTL is disabled", TTL_DISABLED)
        if ttl_seconds(headers) is None:
            raise refused(subject, "invalid per-message TTL", TTL_INVALID)


def check_guard(subject: str, last: int, headers: Mapping[str, str]) -> None:
    """Refuse what does not follow on `last`, the newest sequence under its guard."""
    text = headers[h.EXPECTED_LAST_SUBJECT_SEQ]
    if last != (int(text) if text.isdecimal() else 0):
        raise Conflict(f"{subject}: wrong last sequence: {last} ({WRONG_LAST_SEQUENCE})")


def check_schedule(stream: Allowed, subject: str, headers: Mapping[str, str]) -> None:
    """Refuse a timer that the stream does not allow, or that fires nowhere."""
    if h.SCHEDULE not in headers:
        return
    if not stream.allow_msg_schedules:
        raise refused(subject, "message schedules is disabled", SCHEDULES_DISABLED)
    if fires_at(headers) is None:
        raise refused(subject, "message schedules pattern is invalid", SCHEDULE_INVALID)
    target = headers.get(h.SCHEDULE_TARGET, "")
    literal = target and ANY not in target and REST not in target
    inside = any(matches(each, target) for each in stream.subjects)
    if not literal or not inside or target == subject:
        raise refused(subject, "message schedules target is invalid", TARGET_INVALID)


def check_rollup(stream: Allowed, subject: str, headers: Mapping[str, str]) -> None:
    """Refuse to let a message take the place of others where the stream does not allow it."""
    rollup = headers.get(ROLLUP)
    if rollup is None:
        return
    if not stream.allow_rollup_hdrs:
        raise refused(subject, "rollup not permitted", ROLLUP_FAILED)
    if rollup not in ("sub", "all"):
        raise refused(subject, f'rollup value invalid: "{rollup}"', ROLLUP_FAILED)


def ttl_seconds(headers: Mapping[str, str]) -> float | None:
    """A message's own time to live; 0 for one that never ends; None: it has none that is valid."""
    text = headers.get(h.TTL)
    return None if text is None else _life(text)


@lru_cache(maxsize=LIVES_MAX)
def _life(text: str) -> float | None:
    if text == "never":
        return 0.0
    try:
        # Days are no unit of the server's.
        seconds = float(text) if text.isdecimal() else parse_duration(text.replace("d", "?"))
    except ValueError:
        return None
    # Whole seconds, and at least one.
    return math.floor(seconds) or None


def written(seconds: int) -> str:
    """A span of time as the server itself writes it: `1s`, `1m0s`, `1h0m0s`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def fires_at(headers: Mapping[str, str]) -> datetime | None:
    """When a scheduled message fires; None where it is none, or says no moment."""
    text = headers.get(h.SCHEDULE, "")
    if not text.startswith("@at "):
        return None
    try:
        return datetime.fromisoformat(text.removeprefix("@at "))
    except ValueError:
        return None


def refused(subject: str, description: str, code: int) -> Refused:
    """Return the server's refusal of a message."""
    return Refused(f"{subject}: {description} ({code})", code)
