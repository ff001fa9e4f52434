"""A GPU that leaves the bus is told over and over: which of that is one story.

The driver writes XID 79, then `fallen off the bus` and `GPU is lost` lines, and NVML says so too.
The first word is published; what only repeats it is an echo. An XID 79 that comes later says more
than the lines before it, so it is published with `echo_of`. Pure but for its memory; time is an
argument.
"""

from dataclasses import dataclass
from typing import Final

from schemas.node_events import Fault

APART_SECONDS_MAX: Final = 5.0
"""From one word to the next of the same story."""
STORY_SECONDS_MAX: Final = 60.0
"""After so long a GPU that is still lost is told anew."""
STORIES_MAX: Final = 128
OFF_THE_BUS: Final = 79
ECHOES: Final = frozenset({"fallen_off_bus", "gpu_lost"})


@dataclass(slots=True)
class _Story:
    fault: str
    began: float
    last: float
    has_xid: bool


class Echoes:
    """Remembers which GPUs are just leaving."""

    def __init__(self) -> None:
        """Begin with all GPUs in place."""
        self._stories: dict[str, _Story] = {}

    def first(self, fault: Fault, now: float) -> str:
        """Id of the fault that told the same before; empty where this one is the first."""
        xid = fault.kind == "xid" and fault.code == OFF_THE_BUS
        if not xid and fault.kind not in ECHOES:
            return ""
        self._forget(now)
        story = self._story_of(fault.pci)
        if story is None or (xid and story.has_xid):
            if len(self._stories) < STORIES_MAX:
                self._stories[fault.pci] = _Story(fault.id, now, now, xid)
            return ""
        story.last = now
        story.has_xid = story.has_xid or xid
        return story.fault

    def _story_of(self, pci: str) -> _Story | None:
        """Find the GPU's story; a word that names no GPU belongs to whichever is told just now.

        The other way round it would be another GPU's first word that is taken for an echo.
        """
        if pci or not self._stories:
            return self._stories.get(pci)
        return max(self._stories.values(), key=lambda story: story.last)

    def _forget(self, now: float) -> None:
        over = [
            pci
            for pci, story in self._stories.items()
            if now - story.last > APART_SECONDS_MAX or now - story.began > STORY_SECONDS_MAX
        ]
        for pci in over:
            del self._stories[pci]
