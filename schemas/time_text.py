"""Writes moments as messages, logs and answers have them."""

from datetime import UTC, datetime


def utc_text(at: datetime) -> str:
    """Return a time in the form of RFC 3339, in UTC, to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_seconds(at: datetime) -> str:
    """Return a time in the form of RFC 3339, in UTC, to the second: for sentences."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
