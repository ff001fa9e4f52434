"""Compares successive NVML samples: counters that rose, states that became worse.

A change is published as a fault at once. Levels (temperature, power, utilization) are published in
the samples instead. The health policy rates a change. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from agent.observations import GpuInventory, GpuState
from schemas.enums import FaultKind
from schemas.gpu_samples import GpuSample
from schemas.node_events import GpuIdentity, Metric

GONE_MAX = 64
SBE_BURST: Final = 100
"""Corrected errors between two samples that indicate more than wear."""
REPLAY_BURST: Final = 100
HW_SLOWDOWN: Final = 0x8
HW_THERMAL: Final = 0x40
HW_POWER_BRAKE: Final = 0x80
SLOWED: Final = HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE

COMPARED: Final = (
    "ecc_dbe_volatile",
    "ecc_sbe_volatile",
    "remapped_correctable",
    "remapped_uncorrectable",
    "remap_pending",
    "remap_failed",
    "retired_pages",
    "nvlink_errors",
    "nvlinks_up",
    "pcie_replays",
    "pcie_width",
    "throttle_reasons",
    "fabric_state",
    "fabric_status",
    "fabric_health_mask",
)
"""Readings of the earlier sample that the rules below use."""
LASTING: Final = frozenset(
    {"remapped_correctable", "remapped_uncorrectable", "retired_pages", "pcie_width"}
)
"""Readings comparable over a reboot. NVLinks are not: they come up with the fabric manager."""
FABRIC_COMPLETED: Final = 3
FABRIC_PROBLEMS: Final = (
    ("degraded_bandwidth", 0, 0x3, 1),
    ("route_recovery", 2, 0x3, 1),
    ("unhealthy_routes", 4, 0x3, 1),
    ("access_timeout_recovery", 6, 0x3, 1),
    ("manager_disconnected", 14, 0x3, 2),
)
"""Parts of NVML's health mask: name, first bit, width and the unhealthy value."""
FABRIC_CONFIGURATION_BIT: Final = 8
FABRIC_CONFIGURATION: Final = 0xF
FABRIC_CONFIGURED: Final = (0, 1)
"""Not reported, or correct; other values name the error."""
BURSTS: Final = frozenset({"ecc_sbe_volatile", "pcie_replays"})
BURST_PAUSE_SECONDS_MAX: Final = 600.0


def missing(
    before: GpuState, inventory: GpuInventory, *, same_boot: bool
) -> tuple[tuple[GpuIdentity, ...], tuple[GpuIdentity, ...]]:
    """Compare with the earlier state: (all missing GPUs, those of them to report).

    A GPU at another's PCI address is a replacement, and so is other hardware after a boot with no
    fewer GPUs than before. A GPU that NVML reports as lost is missing too, but its failure is
    reported already. A boot reports missing GPUs again, because the node's health was reset.
    """
    here = {gpu.uuid for gpu in inventory.gpus}
    places = {gpu.pci for gpu in inventory.gpus if gpu.pci}
    seen = before.present + before.gone
    counted = len(inventory.gpus) + len(inventory.failures)
    if not same_boot and counted >= len(seen):
        return (), ()
    gone = tuple(gpu for gpu in seen if gpu.uuid not in here and gpu.pci not in places)[:GONE_MAX]
    published = {gpu.uuid for gpu in before.gone} if same_boot else set()
    answered = {failure.index for failure in inventory.failures}
    new = tuple(gpu for gpu in gone if gpu.uuid not in published and gpu.index not in answered)
    return gone, new


@dataclass(frozen=True, slots=True)
class SampleChange:
    """A change for the worse of one GPU, or of the node (-1)."""

    kind: FaultKind
    index: int
    message: str
    subcode: str = ""
    metrics: dict[str, Metric] = field(default_factory=dict)
    uuid: str = ""
    """Identifies the GPU where its index may not."""


def changes(was: Mapping[str, GpuSample], now: Mapping[str, GpuSample]) -> list[SampleChange]:
    """Compare two samples, by GPU UUID.

    A GPU without an earlier sample is compared with a healthy one: an unhealthy state (a failed
    remap) is reported, a counter's old value is not.
    """
    return [
        change
        for uuid, sample in now.items()
        for rule in _RULES
        if (change := rule(was.get(uuid), sample)) is not None
    ]


def baseline(sample: GpuSample) -> GpuSample:
    """Keep counters and states for the next comparison, but no levels."""
    kept = {name: getattr(sample, name) for name in COMPARED}
    if kept["throttle_reasons"] is not None:
        # Idle and power capping depend on the load.
        kept["throttle_reasons"] &= SLOWED
    return GpuSample(index=sample.index, uuid=sample.uuid, **kept)


def fill_missing(was: GpuSample | None, now: GpuSample) -> GpuSample:
    """Fill in readings that failed from the earlier sample, for the next comparison."""
    absent = [name for name in COMPARED if getattr(now, name) is None]
    if was is None or not absent:
        return now
    return msgspec.structs.replace(now, **{name: getattr(was, name) for name in absent})


def after_pause(sample: GpuSample, *, same_boot: bool, pause_seconds: float) -> GpuSample:
    """Prepare an earlier run's counters for comparison after a pause.

    A boot resets volatile counters, and states are reported again. A slow rise over a long pause is
    no burst.
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
            metrics = _remap_metrics(now)
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


def _remap_pending(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    if not now.remap_pending or (was is not None and was.remap_pending):
        return None
    text = "a row remap waits for a GPU reset"
    return SampleChange("row_remap", now.index, text, "pending", _remap_metrics(now))


def _remap_failed(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    if not now.remap_failed or (was is not None and was.remap_failed):
        return None
    text = "a row could not be remapped"
    return SampleChange("row_remap", now.index, text, "failed", _remap_metrics(now))


def _remap_metrics(now: GpuSample) -> dict[str, Metric]:
    return {
        "remapped_correctable": now.remapped_correctable or 0,
        "remapped_uncorrectable": now.remapped_uncorrectable or 0,
        "remap_pending": bool(now.remap_pending),
        "remap_failed": bool(now.remap_failed),
    }


def _nvlinks_down(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    if was is None or was.nvlinks_up is None or now.nvlinks_up is None:
        return None
    down = was.nvlinks_up - now.nvlinks_up
    if down <= 0:
        return None
    metrics: dict[str, Metric] = {"nvlinks_up": now.nvlinks_up, "nvlinks_down": down}
    return SampleChange("nvlink", now.index, f"{down} NVLinks went down", "down", metrics)


def _width(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    if was is None or not was.pcie_width or not now.pcie_width or now.pcie_width >= was.pcie_width:
        return None
    metrics: dict[str, Metric] = {"pcie_width": now.pcie_width, "pcie_width_was": was.pcie_width}
    message = f"the PCIe link fell from {was.pcie_width} lanes to {now.pcie_width}"
    return SampleChange("pcie", now.index, message, "width", metrics)


def _throttle(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    before = (was.throttle_reasons or 0) & SLOWED if was is not None else 0
    fresh = (now.throttle_reasons or 0) & SLOWED & ~before
    if not fresh or (fresh == HW_SLOWDOWN and before):
        return None
    metrics: dict[str, Metric] = {"throttle_reasons": now.throttle_reasons or 0}
    if now.temperature_celsius is not None:
        metrics["temperature"] = now.temperature_celsius
    if now.power_watts is not None:
        metrics["power_watts"] = now.power_watts
    if fresh & HW_POWER_BRAKE:
        message = "the hardware slows the GPU: power brake"
        return SampleChange("power", now.index, message, "power_brake", metrics)
    message = "the hardware slows the GPU: too hot or too much power"
    return SampleChange("thermal", now.index, message, "hw_slowdown", metrics)


def _fabric_left(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    """Detect a GPU that left the NVLink fabric."""
    if was is None or was.fabric_state != FABRIC_COMPLETED or now.fabric_state is None:
        return None
    if now.fabric_state == FABRIC_COMPLETED:
        return None
    metrics: dict[str, Metric] = {"fabric_state": now.fabric_state}
    return SampleChange("fabric", now.index, "the GPU left the NVLink fabric", "left", metrics)


def _fabric_failed(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    """Detect a failed registration with the fabric."""
    if now.fabric_state != FABRIC_COMPLETED or not now.fabric_status:
        return None
    if was is not None and was.fabric_status == now.fabric_status:
        return None
    metrics: dict[str, Metric] = {"nvml_code": now.fabric_status}
    message = f"joining the NVLink fabric failed: NVML error {now.fabric_status}"
    return SampleChange("fabric", now.index, message, "failed", metrics)


def _fabric_health(was: GpuSample | None, now: GpuSample) -> SampleChange | None:
    before = set(fabric_problems(was.fabric_health_mask or 0)) if was is not None else set()
    found = fabric_problems(now.fabric_health_mask or 0)
    if not set(found) - before:
        return None
    metrics: dict[str, Metric] = {"fabric_problems": ",".join(found)}
    metrics["fabric_health_mask"] = now.fabric_health_mask or 0
    message = f"the NVLink fabric is not healthy: {', '.join(found)}"
    return SampleChange("fabric", now.index, message, "health", metrics)


def fabric_problems(mask: int) -> list[str]:
    """Names of the problems in NVML's fabric health mask."""
    found = [name for name, bit, width, bad in FABRIC_PROBLEMS if mask >> bit & width == bad]
    configuration = mask >> FABRIC_CONFIGURATION_BIT & FABRIC_CONFIGURATION
    if configuration not in FABRIC_CONFIGURED:
        found.append(f"incorrect_configuration_{configuration}")
    return found


_RULES: Final[tuple[Callable[[GpuSample | None, GpuSample], SampleChange | None], ...]] = (
    _ecc_dbe,
    _Counter(
        "ecc_sbe_volatile",
        "ecc_sbe",
        "a burst of {} corrected errors",
        least=SBE_BURST,
        metric="ecc_sbe_count",
    ),
    _remap_failed,
    _remap_pending,
    _Counter(
        "remapped_uncorrectable",
        "row_remap",
        "{} rows remapped after uncorrectable errors",
        "uncorrectable",
    ),
    _Counter("retired_pages", "page_retirement", "{} memory pages retired"),
    _Counter("nvlink_errors", "nvlink", "{} NVLink errors", "errors"),
    _nvlinks_down,
    _Counter("pcie_replays", "pcie", "a burst of {} PCIe replays", "replays", REPLAY_BURST),
    _width,
    _throttle,
    _fabric_left,
    _fabric_failed,
    _fabric_health,
)
