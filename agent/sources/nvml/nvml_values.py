"""NVML's errors: what each means, and the failure of a GPU."""

from dataclasses import dataclass
from typing import Final

import pynvml

from agent.observations import NvmlFailure
from schemas.enums import FaultKind

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
"""Errors meaning that this GPU, driver or user does not have the reading."""
LIBRARY_GONE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
"""Errors of the host's driver, not of one GPU."""


class NvmlUnavailable(Exception):  # noqa: N818 - reads as the state it names
    """NVML is missing on this host now: no library, no driver, or another version of it."""

    def __init__(self, text: str, error: Exception | None = None) -> None:
        """Keep the code of NVML's `error`; 0: there is no library."""
        super().__init__(text)
        self.code = int(getattr(error, "value", 0))


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that computes on a GPU."""

    index: int
    pid: int


def failure_of(index: int, error: "pynvml.NVMLError", reading: str = "") -> NvmlFailure:
    """Classify an NVML error of a GPU."""
    lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
    kind: FaultKind = "gpu_lost" if lost else "probe_failed"
    suffix = f" ({reading})" if reading else ""
    return NvmlFailure(
        index, kind, f"NVML answers for GPU {index}{suffix}: {error}", int(error.value)
    )
