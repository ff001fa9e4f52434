"""Computes how long to wait before the next try. Pure."""

import math
from typing import Final

DOUBLINGS_MAX: Final = 30
"""More would be no number of seconds any more."""
RETRY_AFTER_SECONDS_MAX: Final = 3600.0
"""No answer makes its caller wait for longer, whatever it asks for."""


def doubled(first_seconds: float, failures: int, longest_seconds: float) -> float:
    """Seconds to wait after so many failures in a row, at least one: twice as long each time."""
    return min(first_seconds * 2.0 ** min(failures - 1, DOUBLINGS_MAX), longest_seconds)


def retry_after_seconds(header: str) -> float:
    """Return how long a Retry-After header asks to wait, bounded; 0: it names no seconds."""
    try:
        seconds = float(header)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), RETRY_AFTER_SECONDS_MAX) if math.isfinite(seconds) else 0.0
