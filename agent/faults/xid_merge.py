"""Merges XIDs of two sources, kernel log and NVML, into one fault, and marks duplicates.

A kernel log line has more detail than an NVML event, which is only a number. For codes whose
verdict depends on the line, an event waits briefly for its line. Pure apart from its state; time is
an argument.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from agent.observations import XidEvent
from schemas.enums import NVLINK5_CODES, PROGRAM_CODES, RECOVERY_ACTION_CODE
from schemas.node_events import Fault

APART_SECONDS_MAX: Final = 5.0
"""Maximum time between two reports of the same event."""
REPEAT_SECONDS_MAX: Final = 60.0
"""After so long a GPU that is still lost is reported again."""
OFF_BUS_MAX: Final = 128
OFF_THE_BUS: Final = 79
OFF_BUS_KINDS: Final = frozenset({"fallen_off_bus", "gpu_lost"})
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
class _OffBusFault:
    fault: str
    began: float
    last: float
    has_xid: bool


class FaultDedup:
    """Remembers which GPUs have just fallen off the bus.

    The driver logs XID 79, then `fallen off the bus` and `GPU is lost`, and NVML reports it too.
    The first report is published; later ones are duplicates. An XID 79 after other lines has more
    detail, so it is published with `duplicate_of`. Pure apart from its state; time is an argument.
    """

    def __init__(self) -> None:
        self._off_bus: dict[str, _OffBusFault] = {}

    def first(self, fault: Fault, now: float) -> str:
        """ID of the earlier fault that this one duplicates; empty: it is the first."""
        xid = fault.kind == "xid" and fault.code == OFF_THE_BUS
        if not xid and fault.kind not in OFF_BUS_KINDS:
            return ""
        self._forget(now)
        known = self._matching(fault.pci)
        if known is None or (xid and known.has_xid):
            if len(self._off_bus) < OFF_BUS_MAX:
                self._off_bus[fault.pci] = _OffBusFault(fault.id, now, now, xid)
            return ""
        known.last = now
        known.has_xid = known.has_xid or xid
        return known.fault

    def _matching(self, pci: str) -> _OffBusFault | None:
        """Find the earlier report of a GPU; a report without a GPU matches the latest one.

        A report of a known GPU never matches another GPU's, which would hide its first report.
        """
        if pci or not self._off_bus:
            return self._off_bus.get(pci)
        return max(self._off_bus.values(), key=lambda known: known.last)

    def _forget(self, now: float) -> None:
        over = [
            pci
            for pci, known in self._off_bus.items()
            if now - known.last > APART_SECONDS_MAX or now - known.began > REPEAT_SECONDS_MAX
        ]
        for pci in over:
            del self._off_bus[pci]


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
