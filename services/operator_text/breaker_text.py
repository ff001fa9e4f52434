"""Puts the state of a breaker into words. Pure."""

from schemas.breaker_state import Breaker
from schemas.time_text import utc_seconds


def breaker_sentence(pool: str, breaker: Breaker) -> str:
    """Return the state of a breaker that is not closed, as words that follow its name."""
    since = f" since {utc_seconds(breaker.since)}" if breaker.since else ""
    if breaker.state == "half-open":
        return f"is half-open{since}: {breaker.probe} is the probe, and its outcome decides."
    by = f" by {breaker.by}" if breaker.by else ""
    if breaker.forced:
        then = f"it stays open until an operator closes it: navarch breaker close {pool} --reason …"
    elif breaker.cause == "wave":
        return f"is open{by}{since}: {breaker.reason}."  # which names the command
    elif breaker.probe_at is not None:
        then = f"one probe is tried at {utc_seconds(breaker.probe_at)} at the earliest"
    else:
        then = "when that has passed, one probe is tried, and then others"
    return f"is open{by}{since}: {breaker.reason}; {then}."
