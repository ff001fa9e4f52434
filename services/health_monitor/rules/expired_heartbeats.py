"""Which expired heartbeats are losses, and which are our own lag. Pure.

A node whose heartbeat expires alone is lost. Where many expire together the bus or this service may
be what is slow: they wait until each node could have sent one more heartbeat, and for as long as
the bus answers late or the watch lags behind, up to a limit. What beats again by then was never
lost; that it waited is reported once.
"""

from dataclasses import dataclass, field
from typing import Final

from schemas.settings import IncidentSpec
from services.primitives.common_causes import nodes_needed

CONFIRM_SECONDS: Final = 2.0
"""Every expired heartbeat waits so long, so that the first of many waits as the others do."""
TOGETHER_SECONDS: Final = 60.0
"""Heartbeats that expire within this time expire together."""
LAG_SECONDS_MAX: Final = 2.0
"""A slower answer of the bus, or a watch that is further behind, is our own lag."""
HOLD_SECONDS_MAX: Final = 120.0
"""However much we lag, a silent node is published to be lost after this."""
RETURNED_SHARE: Final = 0.5
"""Of heartbeats that expired together; where more are back before they are published, we lagged."""


@dataclass(slots=True)
class ExpiredHeartbeats:
    """Heartbeats that expired lately, and those of them that wait to be published as losses."""

    interval_seconds: float
    """Of heartbeats."""
    waiting: dict[str, float] = field(default_factory=dict)
    """Key -> when this replica saw that it expired."""
    recent: dict[str, float] = field(default_factory=dict)
    """The same of all that expired lately."""
    _returned: set[str] = field(default_factory=set)

    def expired(self, key: str, now: float) -> None:
        """Take in one that expired."""
        self.waiting.setdefault(key, now)
        self.recent[key] = now
        self._returned.discard(key)

    def beats(self, key: str) -> None:
        """Take in that a node beats: nothing is published of it."""
        if self.waiting.pop(key, None) is not None:
            self._returned.add(key)

    def due(self, now: float, alive: int, lag_seconds: float) -> list[str]:
        """Take out those that are losses; `alive`: how many nodes beat."""
        together = self.together(now, alive)
        hold = self.interval_seconds + CONFIRM_SECONDS if together else CONFIRM_SECONDS
        lags = together and lag_seconds > LAG_SECONDS_MAX
        due = [
            key
            for key, at in self.waiting.items()
            if now - at >= (HOLD_SECONDS_MAX if lags else hold)
        ]
        for key in due:
            del self.waiting[key]
        return due

    def together(self, now: float, alive: int) -> int:
        """How many expired together; 0: too few to look like one cause."""
        for key in [key for key, at in self.recent.items() if now - at > TOGETHER_SECONDS]:
            del self.recent[key]
            self._returned.discard(key)
        needed = nodes_needed(IncidentSpec(), alive + len(self.recent))
        return len(self.recent) if len(self.recent) >= needed else 0

    def lag_reason(self, now: float, alive: int, lag_seconds: float) -> str:
        """Why losses are held back as our own lag; empty: they are not."""
        together = self.together(now, alive)
        if not together:
            return ""
        what = f"{together} heartbeats expired within {TOGETHER_SECONDS:.0f} s"
        if self.waiting and lag_seconds > LAG_SECONDS_MAX:
            return (
                f"{what} while the bus or the health-monitor lags by {lag_seconds:.1f} s: no loss "
                "is published until it keeps up"
            )
        if len(self._returned) > together * RETURNED_SHARE:
            return f"{what} and {len(self._returned)} were back before they were published as lost"
        return ""
