"""NVML's XID events: the second XID source beside the kernel log.

Uses its own session, so that it can wait in one thread while another samples. The wait is bounded;
a driver without events is not a failure.
"""

import ctypes
from typing import Any, Final

import pynvml

from agent.observations import XidEvent
from agent.sources.nvml.nvml_session import pci_of, start
from agent.sources.nvml.nvml_values import ABSENT, NvmlUnavailable

EVENTS_PER_WAIT_MAX: Final = 256
NO_INSTANCE: Final = 0xFFFFFFFF
"""NVML's value for a GPU without MIG instances."""


class NvmlEvents:
    """An event set over all GPUs of this host."""

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
            raise NvmlUnavailable(f"NVML answers: {error}") from error
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
                raise NvmlUnavailable(f"NVML delivers no events: {error}") from error
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
            raise NvmlUnavailable(f"NVML does not end: {error}") from error


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
