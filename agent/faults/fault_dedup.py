"""Recognises duplicate reports of one GPU that fell off the bus.

The driver logs XID 79, then `fallen off the bus` and `GPU is lost`, and NVML reports it too. The
first report is published; later ones are duplicates. An XID 79 after other lines has more detail,
so it is published with `duplicate_of`. Pure apart from its state; time is an argument.
"""

from dataclasses import dataclass
from typing import Final

from schemas.node_events import Fault

APART_SECONDS_MAX: Final = 5.0
"""Maximum time between two reports of the same event."""
REPEAT_SECONDS_MAX: Final = 60.0
"""After so long a GPU that is still lost is reported again."""
OFF_BUS_MAX: Final = 128
OFF_THE_BUS: Final = 79
OFF_BUS_KINDS: Final = frozenset({"fallen_off_bus", "gpu_lost"})


@dataclass(slots=True)
class _OffBusFault:
    fault: str
    began: float
    last: float
    has_xid: bool


class FaultDedup:
    """Remembers which GPUs have just fallen off the bus."""

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
