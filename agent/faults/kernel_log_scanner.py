"""Lines in, sightings out: what must be remembered from one kernel log line to the next.

Two things are: which GPU a message spread over lines is about, and which SXID a line of registers
continues. Pure apart from that memory; used by the agent's follower and by `parse` alike.
"""

from dataclasses import replace

from agent.faults.xid_patterns import Sighting, may_tell, mentioned_device, recognise
from agent.sources.kernel_log_parser import KERNEL_FACILITY, Line


class Scanner:
    """Recognises faults in a sequence of lines."""

    def __init__(self, *, any_facility: bool = False) -> None:
        """Take the kernel's own lines alone, or those of processes as well (drills, tests)."""
        self._any_facility = any_facility
        self._device = ""
        self._device_age = 0
        self._last_sxid: tuple[str, int] | None = None

    def scan(self, line: Line) -> Sighting | None:
        """Say which fault this line tells of, seen after the lines before it."""
        if line.facility != KERNEL_FACILITY and not self._any_facility:
            return None
        self._device_age += 1
        if not may_tell(line.text):
            return None
        sighting = recognise(line.text)
        if device := mentioned_device(line.text):
            self._device, self._device_age = device, 0
        if sighting is None:
            return None
        if sighting.kind == "sxid":
            known = (sighting.pci, sighting.code)
            if sighting.detail_only and known == self._last_sxid:
                return None
            self._last_sxid = known
        elif not sighting.pci and sighting.kind != "xid" and self._device_age <= LINES_APART_MAX:
            return replace(sighting, pci=self._device)
        return sighting


LINES_APART_MAX = 3
"""How far a continuation may stand from the line that names its GPU."""
