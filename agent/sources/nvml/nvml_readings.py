"""Readings of one GPU by name; an unsupported reading is absent as a whole."""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import pynvml

from agent.sources.nvml.nvml_values import ABSENT

LINKS_MAX: Final = 36
NVLINK_ERROR_FIELDS: Final = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)

Fields = dict[str, Any]


def _utilization(handle: Any) -> Fields:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {
        "utilization_percent": int(rates.gpu),
        "memory_utilization_percent": int(rates.memory),
    }


def _memory(handle: Any) -> Fields:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}


def _power(handle: Any) -> Fields:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _power_limit(handle: Any) -> Fields:
    return {"power_limit_watts": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def _temperature(handle: Any) -> Fields:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_celsius": int(pynvml.nvmlDeviceGetTemperature(handle, sensor))}


def _margin(handle: Any) -> Fields:
    return {"temperature_margin_celsius": int(pynvml.nvmlDeviceGetMarginTemperature(handle))}


def _clock(handle: Any) -> Fields:
    return {"sm_clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))}


def _memory_clock(handle: Any) -> Fields:
    return {"memory_clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))}


def _throttle(handle: Any) -> Fields:
    try:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        # The name that drivers before 535 know.
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": int(reasons)}


def _ecc_volatile(handle: Any) -> Fields:
    counter = pynvml.NVML_VOLATILE_ECC
    return {
        "ecc_dbe_volatile": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter),
        "ecc_sbe_volatile": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, counter),
    }


def _ecc_aggregate(handle: Any) -> Fields:
    counter = pynvml.NVML_AGGREGATE_ECC
    return {
        "ecc_dbe_aggregate": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, counter),
        "ecc_sbe_aggregate": _ecc(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, counter),
    }


def _ecc(handle: Any, kind: int, counter: int) -> int:
    return int(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))


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
    return {"retired_pages": sum(_pages(handle, cause) for cause in causes)}


def _pages(handle: Any, cause: int) -> int:
    return len(pynvml.nvmlDeviceGetRetiredPages(handle, cause))


def _fields(handle: Any) -> Fields:
    """Read NVLink errors and memory temperature in one call."""
    asked = [*NVLINK_ERROR_FIELDS, pynvml.NVML_FI_DEV_MEMORY_TEMP]
    *errors, temperature = pynvml.nvmlDeviceGetFieldValues(handle, asked)
    found: Fields = {}
    counted = [int(e.value.ullVal) for e in errors if e.nvmlReturn == pynvml.NVML_SUCCESS]
    if counted:
        found["nvlink_errors"] = sum(counted)
    if temperature.nvmlReturn == pynvml.NVML_SUCCESS:
        found["memory_temperature_celsius"] = int(temperature.value.uiVal)
    return found


def _pcie_replays(handle: Any) -> Fields:
    return {"pcie_replays": int(pynvml.nvmlDeviceGetPcieReplayCounter(handle))}


def _pcie_width(handle: Any) -> Fields:
    return {"pcie_width": int(pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle))}


def _pcie_generation(handle: Any) -> Fields:
    return {"pcie_generation": int(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))}


def _fabric(handle: Any) -> Fields:
    """Read the state of the NVLink fabric; drivers before 545 report no health."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        health = {"fabric_health_mask": int(info.healthMask)}
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        info, health = pynvml.c_nvmlGpuFabricInfo_t(), {}
        pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return {"fabric_state": int(info.state), "fabric_status": int(info.status)} | health


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


READINGS: Final[tuple[tuple[str, Callable[[Any], Fields]], ...]] = (
    ("utilization", _utilization),
    ("memory", _memory),
    ("power", _power),
    ("power limit", _power_limit),
    ("temperature", _temperature),
    ("margin", _margin),
    ("clock", _clock),
    ("memory clock", _memory_clock),
    ("throttle", _throttle),
    ("ecc volatile", _ecc_volatile),
    ("ecc aggregate", _ecc_aggregate),
    ("remapped rows", _remapped),
    ("retired pages", _retired),
    ("fields", _fields),
    ("nvlinks", _nvlinks),
    ("pcie replays", _pcie_replays),
    ("pcie width", _pcie_width),
    ("pcie generation", _pcie_generation),
    ("fabric", _fabric),
)
