"""Compares successive NVML samples: counters that rose.

A rise is published as a fault at once. What lasts is a condition (`agent.conditions`), and levels
(temperature, power, utilization) are published in the samples. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from agent.conditions.gpu_reader import remap_metrics
from agent.observations import GpuInventory, GpuState
from schemas.enums import FaultKind
from schemas.gpu_samples import GpuSample
from schemas.node_events import GpuIdentity, Metric

GONE_MAX = 64
SBE_BURST: Final = 100
"""Corrected errors between two samples that indicate more than wear."""
REPLAY_BURST: Final = 100
COMPARED: Final = (
    "ecc_dbe_volatile",
    "ecc_sbe_volatile",
    "remapped_uncorrectable",
    "retired_pages",
    "nvlink_errors",
    "pcie_replays",
)
"""Readings of the earlier sample that the rules below use."""
LASTING: Final = frozenset({"remapped_uncorrectable", "retired_pages"})
"""Readings comparable over a reboot."""
BURSTS: Final = frozenset({"ecc_sbe_volatile", "pcie_replays"})
BURST_PAUSE_SECONDS_MAX: Final = 600.0


def missing(
    before: GpuState, inventory: GpuInventory, *, same_boot: bool
) -> tuple[GpuIdentity, ...]:
    """Compare with the earlier state: the GPUs that are no longer listed.

    A GPU at another's PCI address is a replacement, and so is other hardware after a boot with no
    fewer GPUs than before.
    """
    here = {gpu.uuid for gpu in inventory.gpus}
    places = {gpu.pci for gpu in inventory.gpus if gpu.pci}
    seen = before.present + before.gone
    counted = len(inventory.gpus) + len(inventory.failures)
    if not same_boot and counted >= len(seen):
        return ()
    return tuple(gpu for gpu in seen if gpu.uuid not in here and gpu.pci not in places)[:GONE_MAX]


@dataclass(frozen=True, slots=True)
class SampleChange:
    """Describes a change for the worse of one GPU, or of the node (-1)."""

    kind: FaultKind
    index: int
    message: str
    subcode: str = ""
    metrics: dict[str, Metric] = field(default_factory=dict)
    uuid: str = ""
    """Identifies the GPU where its index may not."""


def changes(was: Mapping[str, GpuSample], now: Mapping[str, GpuSample]) -> list[SampleChange]:
    """Compare two samples, by GPU UUID.

    Of a GPU without an earlier sample only uncorrectable errors count: they are of this boot.
    """
    return [
        change
        for uuid, sample in now.items()
        for rule in _RULES
        if (change := rule(was.get(uuid), sample)) is not None
    ]


def baseline(sample: GpuSample) -> GpuSample:
    """Keep counters for the next comparison, but no levels."""
    kept = {name: getattr(sample, name) for name in COMPARED}
    return GpuSample(index=sample.index, uuid=sample.uuid, **kept)


def fill_missing(was: GpuSample | None, now: GpuSample) -> GpuSample:
    """Fill in readings that failed from the earlier sample, for the next comparison."""
    absent = [name for name in COMPARED if getattr(now, name) is None]
    if was is None or not absent:
        return now
    return msgspec.structs.replace(now, **{name: getattr(was, name) for name in absent})


def after_pause(sample: GpuSample, *, same_boot: bool, pause_seconds: float) -> GpuSample:
    """Prepare an earlier run's counters for comparison after a pause.

    A boot resets volatile counters. A slow rise over a long pause is no burst.
    """
    without: set[str] = set()
    if not same_boot:
        without |= set(COMPARED) - LASTING
    if pause_seconds > BURST_PAUSE_SECONDS_MAX:
        without |= BURSTS
    return msgspec.structs.replace(sample, **dict.fromkeys(without))


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter whose rise, from `least` on, is a fault."""

    name: str
    kind: FaultKind
    text: str
    """With the rise in it."""
    subcode: str = ""
    least: int = 1
    metric: str = ""
    """Empty: the counter's name."""

    def __call__(self, was: GpuSample | None, now: GpuSample) -> SampleChange | None:
        """Detect the rise; a counter that was reset, or is new, has not risen."""
        before: int | None = getattr(was, self.name) if was is not None else None
        after: int | None = getattr(now, self.name)
        if before is None or after is None or after - before < self.least:
            return None
        rise = after - before
        metrics: dict[str, Metric] = {self.metric or self.name: after, "increase": rise}
        if self.kind == "row_remap":
            metrics = dict(remap_metrics(now))
        text = self.text.format(rise)
        return SampleChange(self.kind, now.index, text, self.subcode, metrics)


def _ecc_dbe(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    total = now.ecc_dbe_volatile or 0
    before = was.ecc_dbe_volatile or 0 if was is not None else 0
    # Loading the driver resets volatile counts: a first count belongs to this boot, and a lower
    # count follows a reset.
    rise = total - before if total >= before else total
    if not rise:
        return None
    metrics: dict[str, Metric] = {"ecc_dbe_count": total, "increase": rise}
    return SampleChange("ecc_dbe", now.index, f"{rise} uncorrectable ECC errors", metrics=metrics)


_RULES: Final[tuple[Callable[[GpuSample | None, GpuSample], SampleChange | None], ...]] = (
    _ecc_dbe,
    _Counter(
        "ecc_sbe_volatile",
        "ecc_sbe",
        "a burst of {} corrected errors",
        least=SBE_BURST,
        metric="ecc_sbe_count",
    ),
    _Counter(
        "remapped_uncorrectable",
        "row_remap",
        "{} rows remapped after uncorrectable errors",
        "uncorrectable",
    ),
    _Counter("retired_pages", "page_retirement", "{} memory pages retired"),
    _Counter("nvlink_errors", "nvlink", "{} NVLink errors", "errors"),
    _Counter("pcie_replays", "pcie", "a burst of {} PCIe replays", "replays", REPLAY_BURST),
)
