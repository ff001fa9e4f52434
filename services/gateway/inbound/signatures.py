"""Decides whether a request comes from PagerDuty or Slack, as their contracts say. Pure.

PagerDuty signs the raw body, and its events say when they occurred; Slack signs a time and the
raw body. The time that a comparison takes depends on no signature.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final

PAGERDUTY_HEADER: Final = "X-PagerDuty-Signature"
SLACK_HEADER: Final = "X-Slack-Signature"
SLACK_TIME_HEADER: Final = "X-Slack-Request-Timestamp"
PAGERDUTY_VERSION: Final = "v1"
SLACK_VERSION: Final = "v0"
WINDOW_SECONDS: Final = 300
"""A request that is older, or of a later time than ours, is refused."""
SIGNATURES_MAX: Final = 8
"""Of one request: while a secret is changed there are two."""
TIME_DIGITS_MAX: Final = 12


def is_of_pagerduty(secret: str, header: str, body: bytes) -> bool:
    """Return whether one of the signatures in a header is that of the body."""
    expected = f"{PAGERDUTY_VERSION}={_digest(secret, body)}".encode()
    given = header.split(",", SIGNATURES_MAX)[:SIGNATURES_MAX]
    # Each is compared, so that the time does not say which one fits.
    return sum(_is_same(each.strip(), expected) for each in given) > 0


def is_of_slack(secret: str, header: str, timestamp: str, body: bytes) -> bool:
    """Return whether a header is the signature of the time and the body."""
    signed = f"{SLACK_VERSION}:{timestamp}:".encode("utf-8", "replace") + body
    return _is_same(header, f"{SLACK_VERSION}={_digest(secret, signed)}".encode())


def slack_time(timestamp: str) -> datetime | None:
    """Return the time that a header says in seconds since 1970; None: it says none."""
    if not (timestamp.isascii() and timestamp.isdecimal()) or len(timestamp) > TIME_DIGITS_MAX:
        return None
    try:
        return datetime.fromtimestamp(int(timestamp), UTC)
    except (OverflowError, ValueError, OSError):
        return None


def is_fresh(at: datetime, now: datetime) -> bool:
    """Return whether a time is within the window around now."""
    return abs((now - at).total_seconds()) <= WINDOW_SECONDS


def _digest(secret: str, content: bytes) -> str:
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def _is_same(given: str, expected: bytes) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected)
