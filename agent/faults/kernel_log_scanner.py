"""Recognises faults in a sequence of kernel log lines, and joins those of one exception.

Remembers which GPU a message of several lines is about, and which SXID a line of registers
continues. Pure apart from that state; used by the agent and by `parse`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from agent.faults.xid_merge import OFF_BUS_KINDS
from agent.faults.xid_patterns import RecognisedFault, mentioned_device, mentions_gpu, recognise
from agent.observations import KERNEL_FACILITY, KernelLogLine
from schemas.enums import PROGRAM_CODES

HOLD_SECONDS: Final = 1.0
"""How long the last line is waited for after the latest of the others."""
HOLD_SECONDS_MAX: Final = 5.0
"""How long it is waited for after the first."""
HELD_MAX: Final = 64
"""GPUs of which a line is held."""
PROCESS: Final = ("pid", "process")

ReportedLine = tuple[KernelLogLine, RecognisedFault]


@dataclass(slots=True)
class _Held:
    line: KernelLogLine
    found: RecognisedFault
    until: float
    until_max: float


class ExceptionLines:
    """The exceptions of which only the first lines have come, by PCI address.

    First come two or three lines for each SM, which say what happened, then one that names process
    and channel: of XID 13, or of another XID of a program. A kernel on all SMs of an H200 made
    1,300 lines in two seconds. Only the last one leads to the job, so the first line is held for
    it, briefly. A process that the lines before it name is the one that was running then, not the
    one that failed. Pure apart from its state; time is an argument.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    @property
    def first_sequence(self) -> int | None:
        """Sequence of the earliest line that is held; None: none is."""
        return min((each.line.sequence for each in self._held.values()), default=None)

    @property
    def next_due(self) -> float | None:
        """Return when the first of the held lines is due; None: none is held."""
        return min((each.until for each in self._held.values()), default=None)

    def take(
        self, line: KernelLogLine, found: RecognisedFault, now: float
    ) -> Iterator[ReportedLine]:
        """Yield what is to be reported at this line."""
        held = self._held.get(found.pci)
        if found.leads:
            if held is not None:
                held.until = min(now + HOLD_SECONDS, held.until_max)
            elif len(self._held) < HELD_MAX:
                until = now + HOLD_SECONDS
                self._held[found.pci] = _Held(line, found, until, now + HOLD_SECONDS_MAX)
            else:
                yield line, found
            return
        if held is not None and found.kind == "xid":
            if found.code == held.found.code:
                del self._held[found.pci]
                yield line, replace(found, metrics=held.found.metrics | found.metrics)
                return
            if found.code in PROGRAM_CODES and "pid" in found.metrics:
                del self._held[found.pci]
                process = {key: found.metrics[key] for key in PROCESS if key in found.metrics}
                yield held.line, replace(held.found, metrics=held.found.metrics | process)
        yield line, found

    def due(self, now: float) -> Iterator[ReportedLine]:
        """Yield the lines that were held long enough: the driver named no process."""
        for pci in [pci for pci, each in self._held.items() if each.until <= now]:
            held = self._held.pop(pci)
            yield held.line, held.found


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
        elif (
            not sighting.pci
            and sighting.kind in OFF_BUS_KINDS
            and self._device_age <= LINES_APART_MAX
        ):
            return replace(sighting, pci=self._device)
        return sighting


LINES_APART_MAX = 3
"""Maximum distance of a continuation from the line that names its GPU."""
