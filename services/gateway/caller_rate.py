"""Limits how often each caller asks: a bucket that refills steadily.

Pure: it has its own state, and the time is an argument.
"""

from collections import OrderedDict
from typing import Final

CALLERS_MAX: Final = 10_000
BURST_SECONDS: Final = 10.0
"""A caller that was idle may ask at once for what it may ask in this time."""


class CallerRate:
    """Admits at most `per_minute` requests of each caller."""

    def __init__(self, per_minute: int) -> None:
        self._per_second = per_minute / 60
        self._burst = max(1.0, self._per_second * BURST_SECONDS)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, caller: str, now: float) -> float:
        """Count a request; positive: it is refused, and may be repeated after so many seconds."""
        left, at = self._left.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        refused = left < 1
        self._left[caller] = (left if refused else left - 1, now)
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)
        return (1 - left) / self._per_second if refused else 0.0
