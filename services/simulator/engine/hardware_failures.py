"""Describes a simulated machine's hardware and its failures, as values. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from schemas.agent_commands import Diagnosis
from schemas.node_events import CheckResult

REMEDIES: Final = ("reset_gpu", "reboot", "replace")
"""The mildest first."""
RECLAIMS: Final = frozenset({"preemption", "retirement"})
"""What the cloud announces before it takes a machine: no failure of the hardware."""
HARMLESS_XIDS: Final = frozenset({13, 31, 43, 63})
"""Program errors, and errors that the GPU has handled: one of them leaves a node healthy."""
KNOWN_LINES: Final = {
    13: "Graphics Exception: channel 0x0000000a, Class 0000cbc0, Offset 00000510, Data 0017e2ac",
    31: "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f_4e000000",
    48: "DBE (double bit error) ECC Error",
    63: "Row Remapper: New row marked for remapping",
    74: "NVLink: fatal error detected on link 0",
    79: "GPU has fallen off the bus.",
    94: "Contained: SM (0x1)",
    95: "Uncontained: LTC TAG (0x2,0x0)",
    145: "RLW_REMAP  Fatal   XC1 i0 Link 08 (0x00000082 0x00000041 0x00000000 0x00000000)",
}
"""XID -> the driver's text after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """A machine's place and hardware; empty: as the launch requests."""

    region: str = ""
    zone: str = ""
    rack: str = ""
    nvlink_domain: str = ""
    """As its GPUs report it."""
    instance_type: str = ""
    gpu_count: int = 8
    gpu_type: str = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareFailure:
    """Describes a failure of a machine."""

    kind: str
    """A failure type of the scenario format."""
    number: int = 0
    """Distinguishes failures of one kind on one machine; 0: one of each kind."""
    at: float
    """When it began, in virtual seconds."""
    began: datetime
    xid_code: int = 79
    gpu_index: int = 0
    message: str = ""
    job: str = ""
    temperature: int = 96
    count: int = 1
    fixed_by: str = "reset_gpu"
    seconds: float = 120.0
    """Of what is announced: how long after the notice the cloud takes the machine."""
    lasting: bool = False
    """Only a remedy ends it."""

    @property
    def name(self) -> str:
        """Return the failure's key among those of the machine."""
        return f"{self.kind}/{self.number}" if self.number else self.kind


def kernel_line(pci: str, failure: HardwareFailure) -> str:
    """Return the kernel log line of an XID."""
    text = failure.message or KNOWN_LINES.get(failure.xid_code, "")
    return f"NVRM: Xid (PCI:{pci}): {failure.xid_code}, pid=4242, name=python3, {text}".rstrip(", ")


def diagnosis(failures: Iterable[HardwareFailure], checks: Iterable[str]) -> Diagnosis:
    """Return what the checks find on a machine with these failures: each finds all of them."""
    found = [each for each in failures if each.kind not in RECLAIMS]
    wrong = "; ".join(f"{each.kind} {each.message}".strip() for each in found)
    results = (CheckResult(name=name, ok=not wrong, detail=wrong) for name in checks)
    return Diagnosis(ok=not wrong, checks=tuple(results))
