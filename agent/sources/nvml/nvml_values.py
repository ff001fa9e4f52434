"""Values read from NVML: GPU identities, samples and failures."""

from dataclasses import dataclass
from typing import Final

import pynvml

from schemas.enums import FaultKind
from schemas.node_events import GpuIdentity, GpuSample

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
    """No NVML on this host now: no library, no driver, or another version of it."""


@dataclass(frozen=True, slots=True)
class NvmlFailure:
    """A GPU that could not be read."""

    index: int
    kind: FaultKind
    text: str
    code: int = 0
    """NVML's own return code."""


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The GPUs when NVML was opened."""

    gpus: tuple[GpuIdentity, ...] = ()
    driver_version: str = ""
    failures: tuple[NvmlFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that computes on a GPU."""

    index: int
    pid: int


@dataclass(frozen=True, slots=True)
class NodeSample:
    """One sample of every GPU."""

    gpus: tuple[GpuSample, ...] = ()
    failures: tuple[NvmlFailure, ...] = ()


def failure_of(index: int, error: "pynvml.NVMLError", reading: str = "") -> NvmlFailure:
    """Classify an NVML error of a GPU."""
    lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
    kind: FaultKind = "gpu_lost" if lost else "probe_failed"
    asked = f" ({reading})" if reading else ""
    return NvmlFailure(
        index, kind, f"NVML answers for GPU {index}{asked}: {error}", int(error.value)
    )
