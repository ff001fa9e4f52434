"""Describes what sources observe, as values: the inputs of the pure functions in `agent.faults`."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

from schemas.enums import FaultKind, NoticeEffect
from schemas.gpu_samples import GpuSample
from schemas.node_events import CheckResult, GpuIdentity, Metric
from schemas.node_records import GpuUse

KERNEL_FACILITY: Final = 0
USER_FACILITY: Final = 1
DETAIL_CHARS_MAX: Final = 500

NoticeKind = Literal["preemption", "maintenance"]

_PCI = re.compile(
    r"(?:\bPCI:|(?<![0-9a-f:.]))(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})"
    r"(?:\.[0-9a-f])?(?!:?[0-9a-f])",
    re.IGNORECASE,
)


def find_pci(text: str) -> str:
    """Find the first PCI address in a text, as `0000:3b:00`; empty if there is none."""
    found = _PCI.search(text)
    if found is None:
        return ""
    domain = int(found.group(1) or "0", 16)
    return f"{domain:04x}:{found.group(2).lower()}:{found.group(3).lower()}"


class KernelLogLine(NamedTuple):
    """One kernel log message; a tuple, because one is made of every line."""

    text: str
    sequence: int = -1
    """-1: the format has none (text)."""
    timestamp_us: int = -1
    """Since boot; -1: the format has none."""
    priority: int = 6
    facility: int = KERNEL_FACILITY
    """0: the kernel itself. Anything else was written by a process and proves nothing."""


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID reported by NVML: a number without text."""

    index: int
    pci: str
    code: int
    gpu_instance: int = -1


@dataclass(frozen=True, slots=True)
class NvmlFailure:
    """A GPU that could not be read."""

    index: int
    kind: FaultKind
    text: str
    code: int = 0
    """NVML's own return code."""


def common_domain(domains: Iterable[str]) -> str:
    """The NVLink domain that all GPUs are in; empty: none, or not the same."""
    found = set(domains)
    return found.pop() if len(found) == 1 else ""


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs when NVML was opened."""

    gpus: tuple[GpuIdentity, ...] = ()
    driver_version: str = ""
    failures: tuple[NvmlFailure, ...] = ()
    nvlink_domain: str = ""
    """The NVLink fabric of several hosts that all of them have joined by then."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """Holds one sample of every GPU."""

    gpus: tuple[GpuSample, ...] = ()
    failures: tuple[NvmlFailure, ...] = ()


class Best(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a GPU has had, which it is to have still."""

    pcie_width: int = 0
    pcie_generation: int = 0
    nvlink_mbyte_per_second: int = 0
    nvlinks: int = 0
    """Of this boot."""

    def with_sample(self, gpu: GpuSample) -> "Best":
        """Take in a sample."""
        best = Best(
            pcie_width=max(self.pcie_width, gpu.pcie_width or 0),
            pcie_generation=max(self.pcie_generation, gpu.pcie_generation or 0),
            nvlink_mbyte_per_second=max(
                self.nvlink_mbyte_per_second, gpu.nvlink_mbyte_per_second or 0
            ),
            nvlinks=max(self.nvlinks, gpu.nvlinks_up or 0),
        )
        return self if best == self else best


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNeeds:
    """Says what the host's type has; 0 and None: not known."""

    gpus: int | None = None
    nvlinks: int | None = None
    """Of each GPU; None: by its model, or what it has had."""
    nvlink_gbyte_per_second: float = 0.0
    pcie_width: int = 0
    pcie_generation: int = 0


NEEDS_UNKNOWN: Final = GpuNeeds()


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the agent remembers of the GPUs over a restart."""

    present: tuple[GpuIdentity, ...] = ()
    gone: tuple[GpuIdentity, ...] = ()
    """GPUs reported as missing; their identities are still needed."""
    counters: tuple[GpuSample, ...] = ()
    """Last counters and states of each GPU, without levels."""
    best: dict[str, Best] = {}
    """UUID -> the most that each GPU has had."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Holds one notice of a provider."""

    kind: NoticeKind
    key: str
    """Identifies the notice over repeated polls."""
    subcode: str
    message: str
    deadline: datetime | None = None
    """Earliest time of the action."""
    metrics: dict[str, Metric] = field(default_factory=dict)
    effect: NoticeEffect | None = None
    """None: advice, which announces nothing."""
    window_end: datetime | None = None
    """Latest time by which the action is over, where the cloud names it."""
    unknown: bool = False
    """The cloud's term is not in the table of its terms."""

    @property
    def digest(self) -> str:
        """Return a short name for the notice's key."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """Holds the result of one diagnostic."""

    name: str
    ok: bool
    detail: str
    gpus: tuple[int, ...] = ()
    """Indexes of the GPUs that failed, if known."""
    ran: bool = True
    """False: the tool could not run, which says nothing about the hardware."""
    metrics: dict[str, Metric] = field(default_factory=dict)

    def result(self) -> CheckResult:
        """Return the result as it is published."""
        return CheckResult(name=self.name, ok=self.ok, detail=self.detail[:DETAIL_CHARS_MAX])


def dated_use(before: GpuUse | None, busy: bool | None, now: datetime) -> GpuUse | None:
    """The use of a node's GPUs as sampled now, since its last change; None: not known. Pure."""
    if busy is None:
        return None
    return before if before is not None and before.busy == busy else GpuUse(busy=busy, since=now)
