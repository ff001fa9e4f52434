"""Recognises faults in a sequence of kernel log lines.

Remembers which GPU a message of several lines is about, and which SXID a line of registers
continues. Pure apart from that state; used by the agent and by `parse`.
"""

from dataclasses import replace

from agent.faults.xid_patterns import RecognisedFault, mentioned_device, mentions_gpu, recognise
from agent.observations import KERNEL_FACILITY, KernelLogLine


class KernelLogScanner:
    """Recognises faults in a sequence of lines."""

    def __init__(self, *, any_facility: bool = False) -> None:
        """Accept only the kernel's lines, or also those of processes (drills, tests)."""
        self._any_facility = any_facility
        self._device = ""
        self._device_age = 0
        self._last_sxid: tuple[str, int] | None = None

    def scan(self, line: KernelLogLine) -> RecognisedFault | None:
        """Return the fault of this line, given the lines before it."""
        if line.facility != KERNEL_FACILITY and not self._any_facility:
            return None
        self._device_age += 1
        if not mentions_gpu(line.text):
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
"""Maximum distance of a continuation from the line that names its GPU."""
