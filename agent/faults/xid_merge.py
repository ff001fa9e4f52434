"""Merges XIDs of two sources, the kernel log and NVML, into one fault, published at the first.

A kernel log line has more detail than an NVML event, which is only a number. For codes whose
verdict depends on the line, an event waits briefly for its line. Pure apart from its state; time is
an argument.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from agent.observations import XidEvent
from schemas.enums import NVLINK5_CODES, PROGRAM_CODES, RECOVERY_ACTION_CODE

MERGE_SECONDS: Final = 3.0
"""Maximum time between two reports of the same XID."""
LINE_SECONDS: Final = 0.5
"""How long an event waits for its line."""
KEYS_MAX: Final = 1024
EVENTS_MAX: Final = 1024
DETAILED: Final = frozenset({*NVLINK5_CODES, RECOVERY_ACTION_CODE, *PROGRAM_CODES})

MergeDecision = Literal["publish", "wait", "known"]
Key = tuple[str, int]


@dataclass(slots=True)
class _Seen:
    line_at: float = float("-inf")
    """Time of the last kernel log line."""
    events: list[float] = field(default_factory=list)
    """Times of published NVML events without a line yet."""


class XidMerge:
    """Remembers the latest XIDs of each source."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._waiting: list[tuple[float, XidEvent]] = []

    def line(self, pci: str, code: int, now: float) -> bool:
        """Handle a line; False: NVML's event was published already."""
        for waiting in self._waiting:
            if (waiting[1].pci, waiting[1].code) == (pci, code):
                self._waiting.remove(waiting)
                break
        seen = self._of((pci, code), now)
        if seen is None:
            return True
        if seen.events:
            del seen.events[0]
            return False
        seen.line_at = now
        return True

    def event(self, event: XidEvent, now: float, *, lines: bool) -> MergeDecision:
        """Handle an event; `lines`: whether the kernel log can be read."""
        for place in (event.pci, ""):
            seen = self._seen.get((place, event.code))
            if seen is not None and now - seen.line_at <= MERGE_SECONDS:
                return "known"
        if lines and event.code in DETAILED and len(self._waiting) < KEYS_MAX:
            self._waiting.append((now + LINE_SECONDS, event))
            return "wait"
        self._count(event, now)
        return "publish"

    def due(self, now: float) -> list[XidEvent]:
        """Return the events whose lines have not come."""
        found = [event for at, event in self._waiting if at <= now]
        if found:
            self._waiting = [each for each in self._waiting if each[0] > now]
        for event in found:
            self._count(event, now)
        return found

    def _count(self, event: XidEvent, now: float) -> None:
        seen = self._of((event.pci, event.code), now)
        if seen is not None and len(seen.events) < EVENTS_MAX:
            seen.events.append(now)

    def _of(self, key: Key, now: float) -> _Seen | None:
        """Recent reports of a key; None: no room for another key."""
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= KEYS_MAX:
                self._forget(now)
            if len(self._seen) >= KEYS_MAX:
                return None
            seen = self._seen[key] = _Seen()
        while seen.events and now - seen.events[0] > MERGE_SECONDS:
            del seen.events[0]
        return seen

    def _forget(self, now: float) -> None:
        self._seen = {
            key: seen
            for key, seen in self._seen.items()
            if now - max(seen.line_at, *seen.events, float("-inf")) <= MERGE_SECONDS
        }
