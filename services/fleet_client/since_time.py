"""Since when an operator wants to see something. Pure."""

from datetime import datetime, timedelta

from schemas.duration import parse_duration


def time_since(text: str, now: datetime) -> datetime:
    """Read a duration before now, or a time, which may lack its zone; ValueError for neither."""
    try:
        return now - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration (10m, 2h) nor a time (2026-11-21T01:35:00Z)"
        ) from None
