"""Merges two witnesses of XIDs, the kernel log and NVML: one fault, told by whichever comes first.

A line says more than an event, which is a number alone. For the codes whose judgement hangs on
what the line says, an event waits a moment for its line. Pure but for its memory; time is an
argument.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from agent.faults.xid_patterns import NVLINK5_CODES, RECOVERY_ACTION_CODE
from agent.sources.nvml.nvml_events import XidEvent
from schemas.enums import PROGRAM_CODES

MERGE_SECONDS: Final = 3.0
"""How far the two may be apart and still speak of the same."""
LINE_SECONDS: Final = 0.5
"""How long an event waits for its line."""
KEYS_MAX: Final = 1024
EVENTS_MAX: Final = 1024
DETAILED: Final = frozenset({*NVLINK5_CODES, RECOVERY_ACTION_CODE, *PROGRAM_CODES})

Word = Literal["tell", "wait", "known"]
Key = tuple[str, int]


@dataclass(slots=True)
class _Seen:
    line_at: float = float("-inf")
    """When the kernel log last said it."""
    events: list[float] = field(default_factory=list)
    """When NVML said it, and was believed, with no line yet."""


class Witnesses:
    """Remembers what each has said lately."""

    def __init__(self) -> None:
        """Begin with nothing said."""
        self._seen: dict[Key, _Seen] = {}
        self._waiting: list[tuple[float, XidEvent]] = []
        self.merged = 0
        """How often both said the same."""

    def line(self, pci: str, code: int, now: float) -> bool:
        """Take a line; False: NVML has told it already."""
        for waiting in self._waiting:
            if (waiting[1].pci, waiting[1].code) == (pci, code):
                self._waiting.remove(waiting)
                self.merged += 1
                break
        seen = self._of((pci, code), now)
        if seen is None:
            return True
        if seen.events:
            del seen.events[0]
            self.merged += 1
            return False
        seen.line_at = now
        return True

    def event(self, event: XidEvent, now: float, *, lines: bool) -> Word:
        """Take an event, `lines` saying whether the kernel log can be read at all."""
        for place in (event.pci, ""):
            seen = self._seen.get((place, event.code))
            if seen is not None and now - seen.line_at <= MERGE_SECONDS:
                self.merged += 1
                return "known"
        if lines and event.code in DETAILED and len(self._waiting) < KEYS_MAX:
            self._waiting.append((now + LINE_SECONDS, event))
            return "wait"
        self._believe(event, now)
        return "tell"

    def due(self, now: float) -> list[XidEvent]:
        """Give the events whose lines have not come."""
        found = [event for at, event in self._waiting if at <= now]
        if found:
            self._waiting = [each for each in self._waiting if each[0] > now]
        for event in found:
            self._believe(event, now)
        return found

    def _believe(self, event: XidEvent, now: float) -> None:
        seen = self._of((event.pci, event.code), now)
        if seen is not None and len(seen.events) < EVENTS_MAX:
            seen.events.append(now)

    def _of(self, key: Key, now: float) -> _Seen | None:
        """What was said of a key, without what is too long ago; None: there is no room for it."""
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
