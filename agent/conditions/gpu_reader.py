"""Reads conditions from what NVML says: the driver's answer, the inventory, and a sample. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from agent.conditions.engine import Key, Observed, Seen
from agent.observations import NEEDS_UNKNOWN, Best, GpuInventory, GpuNeeds, NodeSample, NvmlFailure
from schemas.gpu_samples import GpuSample
from schemas.held_conditions import Reading
from schemas.node_events import GpuIdentity

NVLINKS: Final = (
    (re.compile(r"V100-SXM"), 6),
    (re.compile(r"A100-SXM"), 12),
    (re.compile(r"H100 80GB HBM3|H200(?! NVL)|B200|B300"), 18),
)
"""NVLinks of each GPU, by the model that NVML reports, from NVIDIA's data sheets; all of them are
in use on a board of BOARD_GPUS_MIN or more. PCIe models are absent: their bridges are optional."""
BOARD_GPUS_MIN: Final = 4
NO_MODULE: Final = 9
NOT_LOADED: Final = (0, NO_MODULE, 12)
"""NVML's codes of a driver that is not there: no library (0: not even that), no module."""
MISMATCH: Final = 18
RESET_REQUIRED: Final = 16
RECOVERIES: Final = {
    1: "GPU Reset Required",
    2: "Node Reboot Required",
    3: "Drain P2P",
    4: "Drain and Reset",
    5: "Recover IMEX Domain",
    6: "GPU Reset Required",
    7: "Node Reboot Required",
}
"""NVML's recovery action of a GPU, in the words of XID 154; 6 resets its bus as well."""
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
LOADED_PERCENT: Final = 50
"""Utilization from which on a GPU has its PCIe link at its full generation."""
RATE_PART_MIN: Final = 0.95
"""Share of its speed that a link must have: drivers round."""
HW_SLOWDOWN: Final = 0x8
HW_THERMAL: Final = 0x40
HW_POWER_BRAKE: Final = 0x80


@dataclass(frozen=True, slots=True)
class NvmlOutage:
    """Says why NVML as a whole does not answer."""

    text: str
    hangs: bool = False
    code: int = 0
    """NVML's own, of a call that did return."""
    index: int = -1
    reading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlView:
    """Everything that is known of the GPUs at one moment."""

    outage: NvmlOutage | None = None
    opened: bool = False
    """NVML has answered since the agent's start."""
    inventory: GpuInventory | None = None
    sample: NodeSample | None = None
    gone: tuple[GpuIdentity, ...] = ()
    needs: GpuNeeds = NEEDS_UNKNOWN
    best: Mapping[str, Best]
    driver_awaited: bool = False
    """The driver still has its time to be loaded after the boot."""
    links_due: bool = True
    """NVLinks and fabric have had their time to come up."""


def read_gpus(view: NvmlView) -> Observed:
    """Return what holds, and what cannot be read."""
    if view.outage is not None:
        return _outage(view.outage, opened=view.opened, awaited=view.driver_awaited)
    if view.inventory is None or view.sample is None:
        return Observed("nvml", {}, {-1: "NVML has not answered yet"})
    seen: dict[Key, Seen] = {}
    failures = (*view.inventory.failures, *view.sample.failures)
    read = {gpu.index for gpu in view.sample.gpus}
    for failure in failures:
        seen |= _failure(failure, silent=failure.index not in read)
    if not read and failures and all(("gpu-silent", each.index) in seen for each in failures):
        seen["driver-failing", -1] = Seen(f"every call fails: {failures[0].text}")
    failing = {each.index for each in failures}
    for gone in view.gone:
        if gone.index in failing:
            continue  # NVML lists it, and cannot identify it
        text = f"GPU {gone.index} ({gone.uuid}) is gone: NVML no longer lists it"
        seen["gpu-vanished", gone.index] = Seen(text, {"gpu_uuid": gone.uuid})
    count = len(view.inventory.gpus) + len(view.inventory.failures)
    expected = view.needs.gpus
    if expected is not None and count != expected:
        text = f"{count} GPUs are visible, {expected} are expected"
        seen["gpu-count", -1] = Seen(text, {"gpus": count, "gpus_expected": expected})
    models = {gpu.uuid: gpu.name for gpu in view.inventory.gpus}
    for gpu in view.sample.gpus:
        best = view.best.get(gpu.uuid, Best())
        needed = links_of(models.get(gpu.uuid, ""), len(models)) or best.nvlinks
        needed = needed if view.needs.nvlinks is None else view.needs.nvlinks
        seen |= {(name, gpu.index): each for name, each in _states(gpu)}
        seen |= {(name, gpu.index): each for name, each in _pcie(gpu, view.needs, best)}
        if view.links_due:
            if needed and (slow := _slow(gpu, view.needs, best)):
                seen["nvlinks-slow", gpu.index] = slow
            seen |= {(name, gpu.index): each for name, each in _links(gpu, needed)}
    return Observed("nvml", seen, {each.index: each.text for each in failures})


def links_of(model: str, gpus: int) -> int:
    """Return the NVLinks that a GPU of a model has on a board of `gpus`; 0: not known."""
    if gpus < BOARD_GPUS_MIN:
        return 0  # part of a board: which links such a machine is given differs
    return next((count for pattern, count in NVLINKS if pattern.search(model)), 0)


def fabric_problems(mask: int) -> list[str]:
    """Name the problems in NVML's fabric health mask."""
    found = [name for name, bit, width, bad in FABRIC_PROBLEMS if mask >> bit & width == bad]
    configuration = mask >> FABRIC_CONFIGURATION_BIT & FABRIC_CONFIGURATION
    if configuration not in FABRIC_CONFIGURED:
        found.append(f"incorrect_configuration_{configuration}")
    return found


def _outage(outage: NvmlOutage, *, opened: bool, awaited: bool) -> Observed:
    metrics: dict[str, Reading] = {"nvml_code": outage.code} if outage.code else {}
    why = f"waiting for the driver: {outage.text}" if awaited else outage.text
    if outage.hangs:
        found = Seen(outage.text, {}, outage.reading)
        place = outage.index
        seen = {("driver-hangs", place): found, ("driver-hung", place): found}
        return Observed("nvml", seen, {-1: why})
    found = Seen(outage.text, metrics)
    seen = {("driver-gone", -1): found} if opened else {}
    if outage.code == MISMATCH:
        seen["driver-mismatch", -1] = found
    elif outage.code in NOT_LOADED:
        seen["driver-not-loaded", -1] = found
    else:
        seen["driver-failing", -1] = found
    return Observed("nvml", seen, {-1: why})


def _failure(failure: NvmlFailure, *, silent: bool) -> dict[Key, Seen]:
    found = Seen(failure.text, {"nvml_code": failure.code})
    if failure.kind == "gpu_lost":
        return {("gpu-lost", failure.index): found}
    if failure.code == RESET_REQUIRED:
        return {("gpu-recovery", failure.index): _recovery(failure.index, 1)}
    seen = {("gpu-failing", failure.index): found}
    return seen | ({("gpu-silent", failure.index): found} if silent else {})


def _recovery(index: int, action: int) -> Seen:
    word = RECOVERIES.get(action, f"action {action}")
    metrics: dict[str, Reading] = {"recovery_action": word, "recovery_action_code": action}
    return Seen(f"NVML asks for a recovery of GPU {index}: {word}", metrics, word)


def narrow_pcie(gpu: GpuSample, needs: GpuNeeds, best: Best) -> Seen | None:
    """Compare the PCIe lanes with the type's, and with the most that the GPU has had."""
    needed, now = max(needs.pcie_width, best.pcie_width), gpu.pcie_width
    if not now or now >= needed:
        return None
    text = f"the PCIe link has {now} lanes of {needed}"
    return Seen(text, {"pcie_width": now, "pcie_width_was": needed})


def _pcie(gpu: GpuSample, needs: GpuNeeds, best: Best) -> Iterator[tuple[str, Seen]]:
    if narrow := narrow_pcie(gpu, needs, best):
        yield "pcie-width", narrow
    needed, now = max(needs.pcie_generation, best.pcie_generation), gpu.pcie_generation
    # A GPU that rests has its link at a lower generation, to save power.
    if now and now < needed and (gpu.utilization_percent or 0) >= LOADED_PERCENT:
        text = f"the PCIe link has generation {now} of {needed} under load"
        yield "pcie-generation", Seen(text, {"pcie_generation": now})


def _slow(gpu: GpuSample, needs: GpuNeeds, best: Best) -> Seen | None:
    """Compare the NVLinks' speed with the type's, and with the most that they have had."""
    needed = max(1_000 * needs.nvlink_gbyte_per_second, best.nvlink_mbyte_per_second)
    now = gpu.nvlink_mbyte_per_second
    if not now or not gpu.nvlinks_up or now >= RATE_PART_MIN * needed:
        return None
    text = f"NVLinks have {now / 1_000:g} of {needed / 1_000:g} GB/s"
    return Seen(text, {"nvlink_mbyte_per_second": now})


def _states(gpu: GpuSample) -> Iterator[tuple[str, Seen]]:
    if gpu.recovery_action:
        yield "gpu-recovery", _recovery(gpu.index, gpu.recovery_action)
    if gpu.remap_failed:
        yield "row-remap-failed", Seen("a row could not be remapped", remap_metrics(gpu))
    if gpu.remap_pending:
        yield "row-remap-pending", Seen("a row remap waits for a GPU reset", remap_metrics(gpu))
    reasons = gpu.throttle_reasons or 0
    if reasons & (HW_SLOWDOWN | HW_THERMAL | HW_POWER_BRAKE):
        metrics: dict[str, Reading] = {"throttle_reasons": reasons}
        if gpu.temperature_celsius is not None:
            metrics["temperature"] = gpu.temperature_celsius
        if gpu.power_watts is not None:
            metrics["power_watts"] = gpu.power_watts
        if reasons & HW_POWER_BRAKE:
            yield "slowed-power", Seen("the hardware slows the GPU: power brake", metrics)
        else:
            text = "the hardware slows the GPU: too hot or too much power"
            yield "slowed-hardware", Seen(text, metrics)


def remap_metrics(gpu: GpuSample) -> dict[str, Reading]:
    """Return what a policy asks of remapped rows."""
    return {
        "remapped_correctable": gpu.remapped_correctable or 0,
        "remapped_uncorrectable": gpu.remapped_uncorrectable or 0,
        "remap_pending": bool(gpu.remap_pending),
        "remap_failed": bool(gpu.remap_failed),
    }


def _links(gpu: GpuSample, needed: int) -> Iterator[tuple[str, Seen]]:
    up = gpu.nvlinks_up
    if needed and up is not None and up < needed:
        metrics: dict[str, Reading] = {"nvlinks_up": up, "nvlinks_down": needed - up}
        if up:
            yield "nvlinks-down", Seen(f"{needed - up} of {needed} NVLinks are down", metrics)
        else:
            yield "nvlinks-all-down", Seen(f"all {needed} NVLinks are down", metrics)
    if gpu.fabric_state is None:
        return
    if gpu.fabric_state != FABRIC_COMPLETED:
        text = f"the GPU is not in the NVLink fabric (state {gpu.fabric_state})"
        yield "fabric-left", Seen(text, {"fabric_state": gpu.fabric_state})
    elif gpu.fabric_status:
        text = f"joining the NVLink fabric failed: NVML error {gpu.fabric_status}"
        yield "fabric-failed", Seen(text, {"nvml_code": gpu.fabric_status})
    if found := fabric_problems(gpu.fabric_health_mask or 0):
        mask = gpu.fabric_health_mask or 0
        metrics = {"fabric_problems": ",".join(found), "fabric_health_mask": mask}
        yield (
            "fabric-unhealthy",
            Seen(f"the NVLink fabric is not healthy: {', '.join(found)}", metrics),
        )
