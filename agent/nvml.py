"""What NVML says of this host's GPUs. The one module that imports `pynvml`.

Every call here may hang and must be made through a ProbeThread. A reading that a GPU does not have
(MIG, consumer cards, old drivers) is absent, and is not asked for again until NVML starts anew. A
GPU that is lost, or whose calls fail, is a `Trouble`; what that means is decided elsewhere.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pynvml

from agent.xid import find_pci
from schemas.node_events import GpuIdentity, GpuSample
from schemas.reasons import FaultKind

LINKS_MAX: Final = 36
NVLINK_ERROR_FIELDS: Final = (
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
    pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
)
ABSENT: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
"""Answers that say: this GPU, driver or user does not have the reading."""
LIBRARY_GONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Answers that concern the host's driver and not one GPU."""


class NvmlUnavailable(Exception):  # noqa: N818 - reads as the state it names
    """No NVML on this host now: no library, no driver, or another version of it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A GPU that could not be read."""

    index: int
    kind: FaultKind
    text: str
    code: int = 0
    """NVML's own return code."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs as they stood when NVML was opened."""

    gpus: tuple[GpuIdentity, ...] = ()
    driver_version: str = ""
    troubles: tuple[Trouble, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One sample of every GPU."""

    gpus: tuple[GpuSample, ...] = ()
    troubles: tuple[Trouble, ...] = ()


Fields = dict[str, Any]


class Nvml:
    """A session with NVML: opened, sampled, and opened anew when the driver was replaced."""

    def __init__(self, library: str = "") -> None:
        """Use the host's library, or the file `library`."""
        self._library = library
        self._open = False
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        self._absent: set[tuple[int, str]] = set()
        self.asking: tuple[int, str] = (-1, "")
        """Which GPU is asked for what just now; read from another thread when a call hangs."""
        self.calls = 0
        """How many readings were begun; tells a slow sample from a hung call."""

    def open(self) -> Inventory:
        """Load the library and find the GPUs; raise NvmlUnavailable where that cannot be."""
        self.close()
        self.asking = (-1, "start")
        try:
            if self._library:
                # dlopen finds a library that is loaded already by its soname.
                ctypes.CDLL(self._library, mode=ctypes.RTLD_GLOBAL)
            pynvml.nvmlInit()
        except (OSError, pynvml.NVMLError) as error:
            raise NvmlUnavailable(f"NVML does not start: {error}") from error
        self._open = True
        try:
            driver = str(pynvml.nvmlSystemGetDriverVersion())
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            raise NvmlUnavailable(f"NVML answers: {error}") from error
        gpus, troubles = [], []
        for index in range(count):
            self.asking, self.calls = (index, "identity"), self.calls + 1
            try:
                gpus.append(self._identify(index))
            except pynvml.NVMLError as error:
                troubles.append(trouble_of(index, error))
        return Inventory(tuple(gpus), driver, tuple(troubles))

    def _identify(self, index: int) -> GpuIdentity:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(pynvml.nvmlDeviceGetUUID(handle))
        self._handles[index], self._uuids[index] = handle, uuid
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
        return GpuIdentity(
            index=index,
            uuid=uuid,
            serial=str(self._optional(index, "serial", pynvml.nvmlDeviceGetSerial) or ""),
            pci=find_pci(bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)),
            name=str(self._optional(index, "name", pynvml.nvmlDeviceGetName) or ""),
        )

    def close(self) -> None:
        """End the session; the next `open` starts one with whatever driver is there then."""
        self._handles.clear()
        self._uuids.clear()
        self._absent.clear()
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                if error.value not in LIBRARY_GONE:
                    raise NvmlUnavailable(f"NVML does not end: {error}") from error

    def sample(self) -> NodeSample:
        """Read every GPU once; raise NvmlUnavailable where NVML as a whole is gone."""
        if not self._open:
            raise NvmlUnavailable("NVML is not open")
        gpus: list[GpuSample] = []
        troubles: list[Trouble] = []
        for index, handle in self._handles.items():
            fields, trouble = self._read(index, handle)
            if trouble is not None:
                troubles.append(trouble)
            if fields:
                gpus.append(GpuSample(index=index, uuid=self._uuids[index], **fields))
        return NodeSample(tuple(gpus), tuple(troubles))

    def _read(self, index: int, handle: Any) -> tuple[Fields, Trouble | None]:
        """Read one GPU; one reading that fails does not take the others away."""
        fields: Fields = {}
        trouble: Trouble | None = None
        for name, reading in READINGS:
            if (index, name) in self._absent:
                continue
            self.asking, self.calls = (index, name), self.calls + 1
            try:
                fields |= reading(handle)
            except pynvml.NVMLError as error:
                if error.value in LIBRARY_GONE:
                    self.close()
                    raise NvmlUnavailable(f"NVML answers: {error}") from error
                if error.value in ABSENT:
                    self._absent.add((index, name))
                    continue
                trouble = trouble or trouble_of(index, error, name)
                if trouble.kind == "gpu_lost":
                    return {}, trouble
        return fields, trouble

    def _optional(self, index: int, name: str, call: Callable[[Any], Any]) -> Any:
        try:
            return call(self._handles[index])
        except pynvml.NVMLError as error:
            if error.value not in ABSENT:
                raise
            self._absent.add((index, name))
            return None


def trouble_of(index: int, error: "pynvml.NVMLError", reading: str = "") -> Trouble:
    """Name what an NVML error says of a GPU."""
    lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
    kind: FaultKind = "gpu_lost" if lost else "probe_failed"
    asked = f" ({reading})" if reading else ""
    return Trouble(index, kind, f"NVML answers for GPU {index}{asked}: {error}", int(error.value))


# --- readings: each is absent as a whole where the GPU does not have it ---------------------------


def _utilization(handle: Any) -> Fields:
    return {"utilization_percent": int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)}


def _memory(handle: Any) -> Fields:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}


def _power(handle: Any) -> Fields:
    return {"power_watts": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _temperature(handle: Any) -> Fields:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_celsius": int(pynvml.nvmlDeviceGetTemperature(handle, sensor))}


def _margin(handle: Any) -> Fields:
    return {"temperature_margin_celsius": int(pynvml.nvmlDeviceGetMarginTemperature(handle))}


def _clock(handle: Any) -> Fields:
    return {"sm_clock_mhz": int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))}


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
    ("temperature", _temperature),
    ("margin", _margin),
    ("clock", _clock),
    ("throttle", _throttle),
    ("ecc volatile", _ecc_volatile),
    ("ecc aggregate", _ecc_aggregate),
    ("remapped rows", _remapped),
    ("retired pages", _retired),
    ("fields", _fields),
    ("nvlinks", _nvlinks),
    ("pcie replays", _pcie_replays),
    ("pcie width", _pcie_width),
)
