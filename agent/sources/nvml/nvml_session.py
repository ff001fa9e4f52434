"""A session with NVML: finds the GPUs and samples them; begun anew when the driver was replaced."""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from agent.faults.xid_patterns import find_pci
from agent.sources.nvml.nvml_readings import READINGS, Fields
from agent.sources.nvml.nvml_values import (
    ABSENT,
    LIBRARY_GONE,
    GpuProcess,
    Inventory,
    NodeSample,
    NvmlUnavailable,
    Trouble,
    trouble_of,
)
from schemas.node_events import GpuIdentity, GpuSample


def load(library: str) -> None:
    """Load the file `library`, so that pynvml finds it by its soname; empty: the host's own."""
    if library:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


def pci_of(handle: Any) -> str:
    """Say where a GPU sits, as the kernel log writes it."""
    bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return find_pci(bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id))


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
            load(self._library)
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

    def processes(self) -> tuple[GpuProcess, ...]:
        """Name the programs that compute on the GPUs; a GPU that is lost has none."""
        found: list[GpuProcess] = []
        for index, handle in self._handles.items():
            self.asking, self.calls = (index, "processes"), self.calls + 1
            try:
                running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError as error:
                if error.value in ABSENT or error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    continue
                raise NvmlUnavailable(f"NVML answers: {error}") from error
            found += [GpuProcess(index, int(each.pid)) for each in running]
        return tuple(found)

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


def _text_or_none(handle: Any, call: Callable[[Any], Any]) -> str:
    """Ask for a text; empty where the GPU has none."""
    try:
        return str(call(handle))
    except pynvml.NVMLError as error:
        if error.value not in ABSENT:
            raise
        return ""
