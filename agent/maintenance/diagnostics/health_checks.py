"""Table of the built-in diagnostics: tool, arguments, deadline and whether it needs idle GPUs.

A test without its tool on this host is not offered.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.maintenance.diagnostics import tool_parsers
from agent.maintenance.diagnostics.findings import CheckParameters, ToolOutput
from agent.observations import CheckFinding

MEMORY_BYTES: Final = 64 * 1_048_576
MEMORY_MODULE: Final = f"{__package__}.gpu_memory_test"
DCGM_SECONDS_MAX: Final = {1: 300.0, 2: 1200.0, 3: 3600.0, 4: 4 * 3600.0}
NCCL_SIZES: Final = ("-b", "8M", "-e", "1G", "-f", "2")
BURN_EXTRA_SECONDS: Final = 120.0
NEVER: Final = 5
"""Above every level."""


@dataclass(frozen=True, slots=True)
class Check:
    """Describes one test and how it is run."""

    name: str
    programs: tuple[str, ...]
    """Names under which its tool is installed."""
    arguments: Callable[[CheckParameters], Sequence[str]]
    seconds_max: Callable[[CheckParameters], float]
    parse: Callable[[ToolOutput, CheckParameters], CheckFinding]
    exclusive_from_level: int = 0
    """It needs the GPUs exclusively from this level on; 0: always."""
    at_home: bool = False
    """Whether the tool must run in its own directory."""

    def exclusive(self, parameters: CheckParameters) -> bool:
        """Return whether the test needs the GPUs exclusively."""
        return parameters.level >= self.exclusive_from_level


CHECKS: Final = (
    Check(
        "nvidia-smi",
        ("nvidia-smi",),
        lambda _: ("--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"),
        lambda _: 60.0,
        tool_parsers.nvidia_smi,
        exclusive_from_level=NEVER,
    ),
    Check(
        "dcgm",
        ("dcgmi",),
        lambda parameters: ("diag", "-r", str(parameters.level), "-j"),
        lambda parameters: DCGM_SECONDS_MAX[parameters.level],
        tool_parsers.dcgm,
        exclusive_from_level=2,
    ),
    Check(
        "nvbandwidth",
        ("nvbandwidth",),
        lambda _: (
            *("-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce"),
            "device_to_device_memcpy_read_ce",
        ),
        lambda _: 900.0,
        tool_parsers.nvbandwidth,
    ),
    Check(
        "nccl",
        ("all_reduce_perf",),
        lambda parameters: (*NCCL_SIZES, "-g", str(max(len(parameters.gpus), 1))),
        lambda _: 900.0,
        tool_parsers.nccl,
    ),
    Check(
        "burn",
        ("gpu_burn", "gpu-burn"),
        lambda parameters: (str(parameters.seconds),),
        lambda parameters: parameters.seconds + BURN_EXTRA_SECONDS,
        tool_parsers.burn,
        at_home=True,
    ),
)
"""Tests by third-party tools."""


def memory_check(library: str) -> Check:
    """Write to every GPU's memory and read it back, with Navarch's own program and the CUDA driver.

    It is fast and needs little memory, but skips GPUs in use.
    """
    return Check(
        "memory",
        (sys.executable,),
        lambda _: ("-m", MEMORY_MODULE, library, str(MEMORY_BYTES)),
        lambda _: 120.0,
        tool_parsers.memory,
    )


def program_of(check: Check, path: str | None = None) -> str:
    """Find a test's tool; empty where it is not installed."""
    for name in check.programs:
        if found := shutil.which(name, path=path):
            return found
    return ""


def home_of(check: Check, program: str) -> Path | None:
    """Directory to run it in; None: the agent's."""
    return Path(program).resolve().parent if check.at_home else None
