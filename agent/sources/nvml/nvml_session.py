"""Sessions with NVML: the GPUs and their samples, and XID events; restarted with the driver."""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import pynvml

from agent.observations import (
    GpuInventory,
    NodeSample,
    NvmlFailure,
    XidEvent,
    common_domain,
    find_pci,
)
from agent.sources.nvml.nvml_readings import READINGS, Fields, fabric
from agent.sources.nvml.nvml_values import (
    ABSENT,
    LIBRARY_GONE,
    GpuProcess,
    NvmlUnavailable,
    failure_of,
)
from schemas.gpu_samples import GpuSample
from schemas.node_events import GpuIdentity

EVENTS_PER_WAIT_MAX: Final = 256
NO_INSTANCE: Final = 0xFFFFFFFF
"""NVML's value for a GPU without MIG instances."""


def start(library: str) -> None:
    """Start NVML with the file `library`, which pynvml finds by its soname; empty: the host's."""
    try:
        if library:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        pynvml.nvmlInit()
    except (OSError, pynvml.NVMLError) as error:
        raise NvmlUnavailable(f"NVML does not start: {error}", error) from error


def pci_of(handle: Any) -> str:
    """Return the PCI address of a GPU, as in the kernel log."""
    bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return find_pci(bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id))


class Nvml:
    """A session with NVML, opened again when the driver was replaced."""

    def __init__(self, library: str = "") -> None:
        """Use the host's library, or the file `library`."""
        self._library = library
        self._open = False
        self._handles: dict[int, Any] = {}
        self._uuids: dict[int, str] = {}
        self._absent: set[tuple[int, str]] = set()
        self.asking: tuple[int, str] = (-1, "")
        """GPU and reading of the current call; read from another thread when it hangs."""
        self.calls = 0
        """Number of readings started; distinguishes a slow sample from a hung call."""

    def open(self) -> GpuInventory:
        """Load the library and find the GPUs, or raise NvmlUnavailable."""
        self.close()
        self.asking = (-1, "start")
        start(self._library)
        self._open = True
        try:
            driver = str(pynvml.nvmlSystemGetDriverVersion())
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as error:
            self.close()
            raise NvmlUnavailable(f"NVML answers: {error}", error) from error
        gpus, failures = [], []
        for index in range(count):
            self.asking, self.calls = (index, "identity"), self.calls + 1
            try:
                gpus.append(self._identify(index))
            except pynvml.NVMLError as error:
                failures.append(failure_of(index, error))
        return GpuInventory(tuple(gpus), driver, tuple(failures), self._nvlink_domain())

    def _nvlink_domain(self) -> str:
        """The NVLink domain of all GPUs; an error of one is its sample's to report."""
        found = []
        for index, handle in self._handles.items():
            self.asking, self.calls = (index, "fabric"), self.calls + 1
            try:
                found.append(str(fabric(handle).get("nvlink_domain", "")))
            except pynvml.NVMLError:
                return ""
        return common_domain(found)

    def _identify(self, index: int) -> GpuIdentity:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        gpu = GpuIdentity(
            index=index,
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            serial=_text_or_none(handle, pynvml.nvmlDeviceGetSerial),
            pci=pci_of(handle),
            name=_text_or_none(handle, pynvml.nvmlDeviceGetName),
        )
        self._handles[index], self._uuids[index] = handle, gpu.uuid
        return gpu

    def close(self) -> None:
        """End the session; the next `open` uses the current driver."""
        self._handles.clear()
        self._uuids.clear()
        self._absent.clear()
        if self._open:
            self._open = False
            try:
                pynvml.nvmlShutdown()
            except pynvml.NVMLError as error:
                if error.value not in LIBRARY_GONE:
                    raise NvmlUnavailable(f"NVML does not end: {error}", error) from error

    def sample(self) -> NodeSample:
        """Read every GPU once; raise NvmlUnavailable where NVML as a whole is gone."""
        if not self._open:
            raise NvmlUnavailable("NVML is not open")
        gpus: list[GpuSample] = []
        failures: list[NvmlFailure] = []
        for index, handle in self._handles.items():
            fields, failure = self._read(index, handle)
            if failure is not None:
                failures.append(failure)
            if fields:
                gpus.append(GpuSample(index=index, uuid=self._uuids[index], **fields))
        return NodeSample(tuple(gpus), tuple(failures))

    def processes(self) -> tuple[GpuProcess, ...]:
        """Processes that use the GPUs; a lost GPU has none."""
        found: list[GpuProcess] = []
        for index, handle in self._handles.items():
            self.asking, self.calls = (index, "processes"), self.calls + 1
            try:
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError as error:
                if error.value in ABSENT or error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    continue
                raise NvmlUnavailable(f"NVML answers: {error}", error) from error
            found += [GpuProcess(index, int(each.pid)) for each in running]
        return tuple(found)

    def _read(self, index: int, handle: Any) -> tuple[Fields, NvmlFailure | None]:
        """Read one GPU; a failed reading does not affect the others."""
        fields: Fields = {}
        failure: NvmlFailure | None = None
        for name, reading in READINGS:
            if (index, name) in self._absent:
                continue
            self.asking, self.calls = (index, name), self.calls + 1
            try:
                fields |= reading(handle)
            except pynvml.NVMLError as error:
                if error.value in LIBRARY_GONE:
                    self.close()
                    raise NvmlUnavailable(f"NVML answers: {error}", error) from error
                if error.value in ABSENT:
                    self._absent.add((index, name))
                    continue
                failure = failure or failure_of(index, error, name)
                if failure.kind == "gpu_lost":
                    return {}, failure
        return fields, failure


def _text_or_none(handle: Any, call: Callable[[Any], Any]) -> str:
    """Read a text; empty if the GPU has none."""
    try:
        return str(call(handle))
    except pynvml.NVMLError as error:
        if error.value not in ABSENT:
            raise
        return ""


class NvmlEvents:
    """An event set over all GPUs of this host.

    Uses its own session, so that it can wait in one thread while another samples. The wait is
    bounded; a driver without events is not a failure.
    """

    def __init__(self, library: str = "") -> None:
        """Use the host's library, or the file `library`."""
        self._library = library
        self._set: Any = None
        self._places: dict[int, tuple[int, str]] = {}
        """Index and PCI address by the address of NVML's handle."""

    def open(self) -> int:
        """Register for events; return the number of GPUs (0: none, and nothing is open)."""
        self.close()
        start(self._library)
        try:
            self._set = pynvml.nvmlEventSetCreate()
            for index in range(int(pynvml.nvmlDeviceGetCount())):
                self._register(index)
        except pynvml.NVMLError as error:
            self._end()
            if error.value in ABSENT:
                return 0
            raise NvmlUnavailable(f"NVML answers: {error}", error) from error
        if not self._places:
            self._end()
        return len(self._places)

    def _register(self, index: int) -> None:
        """Register one GPU; skip it if it is lost or has no events."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
            self._places[_address(handle)] = (index, pci_of(handle))
        except pynvml.NVMLError as error:
            if error.value not in ABSENT and error.value != pynvml.NVML_ERROR_GPU_IS_LOST:
                raise

    def wait(self, timeout_ms: int) -> list[XidEvent]:
        """Wait for XIDs at most that long; raise NvmlUnavailable if the event set fails."""
        found: list[XidEvent] = []
        try:
            while len(found) < EVENTS_PER_WAIT_MAX:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0 if found else timeout_ms)
                if data.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    found.append(self._event(data))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT and not found:
                raise NvmlUnavailable(f"NVML delivers no events: {error}", error) from error
        return found

    def _event(self, data: Any) -> XidEvent:
        index, pci = self._places.get(_address(data.device), (-1, ""))
        instance = int(data.gpuInstanceId)
        return XidEvent(
            index=index,
            pci=pci,
            code=int(data.eventData),
            gpu_instance=-1 if instance == NO_INSTANCE else instance,
        )

    def close(self) -> None:
        """Stop receiving events."""
        if self._set is not None:
            self._end()

    def _end(self) -> None:
        """Release what `open` acquired."""
        event_set, self._set = self._set, None
        self._places.clear()
        try:
            try:
                if event_set is not None:
                    pynvml.nvmlEventSetFree(event_set)
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise NvmlUnavailable(f"NVML does not end: {error}", error) from error


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
