"""Readings of one GPU by name; an unsupported reading is absent as a whole."""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import pynvml

from agent.sources.nvml.nvml_values import ABSENT

LINKS_MAX: Final = 36
NVLINK_ERROR_FIELDS: Final = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
NVLINK_SPEED: Final = pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
RECOVERY_ACTION: Final = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

Fields = dict[str, Any]
T = TypeVar("T")


def _utilization(handle: Any) -> Fields:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "utilization_percent": int(rates.gpu),
        "memory_utilization_percent": int(rates.memory),
    }


def _by_newest(newest: Callable[[], T], older: Callable[[], T]) -> T:
    """What a function says, or where the driver does not have it yet an older one."""
    try:
        return newest()
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        return older()


def _memory(handle: Any) -> Fields:
    """As `nvidia-smi` shows it: without what the driver reserves for itself."""
    memory = _by_newest(
        partial(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2),
        partial(pynvml.nvmlDeviceGetMemoryInfo, handle),  # drivers before 510: with it
    )
    return {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}


def _throttle(handle: Any) -> Fields:
    reasons = _by_newest(
        partial(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
        # The name that drivers before 535 know.
        partial(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
    )
    return {"throttle_reasons": int(reasons)}


def _ecc(span: str, counter: int, handle: Any) -> Fields:
    errors = pynvml.nvmlDeviceGetTotalEccErrors
    return {
        f"ecc_dbe_{span}": int(errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter)),
        f"ecc_sbe_{span}": int(errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, counter)),
    }


def _remapped(handle: Any) -> Fields:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_correctable": int(correctable),
        "remapped_uncorrectable": int(uncorrectable),
        "remap_pending": bool(pending),
        "remap_failed": bool(failed),
    }


def _retired(handle: Any) -> Fields:
    causes = (
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
        pynvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
    )
    pages = (pynvml.nvmlDeviceGetRetiredPages(handle, cause) for cause in causes)
    return {"retired_pages": sum(map(len, pages))}


def _fields(handle: Any) -> Fields:
    """Read NVLink errors and speed, memory temperature and the recovery action in one call."""
    fields = [*NVLINK_ERROR_FIELDS, NVLINK_SPEED, pynvml.NVML_FI_DEV_MEMORY_TEMP, RECOVERY_ACTION]
    *errors, speed, temperature, recovery = pynvml.nvmlDeviceGetFieldValues(handle, fields)
    found: Fields = {}
    counted = [int(e.value.ullVal) for e in errors if e.nvmlReturn == pynvml.NVML_SUCCESS]
    if counted:
        found["nvlink_errors"] = sum(counted)
    if speed.nvmlReturn == pynvml.NVML_SUCCESS and speed.value.uiVal:
        found["nvlink_mbyte_per_second"] = int(speed.value.uiVal)
    if temperature.nvmlReturn == pynvml.NVML_SUCCESS:
        found["memory_temperature_celsius"] = int(temperature.value.uiVal)
    if recovery.nvmlReturn == pynvml.NVML_SUCCESS:
        found["recovery_action"] = int(recovery.value.uiVal)
    return found


def _fabric_with_health(handle: Any) -> tuple[Any, Fields]:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info, {"fabric_health_mask": int(info.healthMask)}


def _fabric_alone(handle: Any) -> tuple[Any, Fields]:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return info, {}


def fabric(handle: Any) -> Fields:
    """Read the state of the NVLink fabric; drivers before 545 report no health."""
    info, health = _by_newest(partial(_fabric_with_health, handle), partial(_fabric_alone, handle))
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    found = {"fabric_state": int(info.state), "fabric_status": int(info.status)} | health
    cluster = bytes(info.clusterUuid)
    joined = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED and not info.status
    # A host whose fabric ends at its own board reports zeros.
    if joined and any(cluster):
        found["nvlink_domain"] = f"{UUID(bytes=cluster)}.{info.cliqueId}"
    return found


def _nvlinks(handle: Any) -> Fields:
    """Count the links that are up; a GPU without NVLink refuses the first."""
    up = 0
    for link in range(LINKS_MAX):
        try:
            up += bool(pynvml.nvmlDeviceGetNvLinkState(handle, link))
        except pynvml.NVMLError as error:
            if error.value not in ABSENT or link == 0:
                raise
            break
    return {"nvlinks_up": up}


def _one(field: str, call: Callable[..., Any], *arguments: int) -> Callable[[Any], Fields]:
    """Return a reading of one whole number."""
    return lambda handle: {field: int(call(handle, *arguments))}


def _watts(field: str, call: Callable[[Any], int]) -> Callable[[Any], Fields]:
    return lambda handle: {field: call(handle) / 1000}


READINGS: Final[tuple[tuple[str, Callable[[Any], Fields]], ...]] = (
    ("utilization", _utilization),
    ("memory", _memory),
    ("power", _watts("power_watts", pynvml.nvmlDeviceGetPowerUsage)),
    ("power limit", _watts("power_limit_watts", pynvml.nvmlDeviceGetEnforcedPowerLimit)),
    (
        "temperature",
        _one("temperature_celsius", pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    ),
    ("margin", _one("temperature_margin_celsius", pynvml.nvmlDeviceGetMarginTemperature)),
    ("clock", _one("sm_clock_mhz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)),
    (
        "memory clock",
        _one("memory_clock_mhz", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
    ),
    ("throttle", _throttle),
    ("ecc volatile", partial(_ecc, "volatile", pynvml.NVML_VOLATILE_ECC)),
    ("ecc aggregate", partial(_ecc, "aggregate", pynvml.NVML_AGGREGATE_ECC)),
    ("remapped rows", _remapped),
    ("retired pages", _retired),
    ("fields", _fields),
    ("nvlinks", _nvlinks),
    ("pcie replays", _one("pcie_replays", pynvml.nvmlDeviceGetPcieReplayCounter)),
    ("pcie width", _one("pcie_width", pynvml.nvmlDeviceGetCurrPcieLinkWidth)),
    ("pcie generation", _one("pcie_generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration)),
    ("fabric", fabric),
)
