"""The tests that there are: each with its tool, how it is called, its time and whom it disturbs.

A table. A test whose tool is not on this host is not offered.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.maintenance.diagnostics import tool_parsers
from agent.maintenance.diagnostics.findings import Asked, Finding, Output

MEMORY_BYTES: Final = 64 * 1_048_576
MEMORY_MODULE: Final = "agent.maintenance.diagnostics.gpu_memory_test"
DCGM_SECONDS_MAX: Final = {1: 300.0, 2: 1200.0, 3: 3600.0, 4: 4 * 3600.0}
BURN_EXTRA_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Check:
    """One test."""

    name: str
    programs: tuple[str, ...]
    """Names under which its tool is installed."""
    arguments: Callable[[Asked], Sequence[str]]
    seconds_max: Callable[[Asked], float]
    exclusive: Callable[[Asked], bool]
    """Whether it needs the GPUs for itself."""
    parse: Callable[[Output, Asked], Finding]
    at_home: bool = False
    """Whether the tool wants to be run in the directory it lies in."""


def _always(_: Asked) -> bool:
    return True


def _never(_: Asked) -> bool:
    return False


CHECKS: Final = (
    Check(
        "nvidia-smi",
        ("nvidia-smi",),
        lambda _: ("--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"),
        lambda _: 60.0,
        _never,
        tool_parsers.nvidia_smi,
    ),
    Check(
        "dcgm",
        ("dcgmi",),
        lambda asked: ("diag", "-r", str(asked.level), "-j"),
        lambda asked: DCGM_SECONDS_MAX[asked.level],
        lambda asked: asked.level > 1,
        tool_parsers.dcgm,
    ),
    Check(
        "nvbandwidth",
        ("nvbandwidth",),
        lambda _: (
            *("-j", "-t", "host_to_device_memcpy_ce", "device_to_host_memcpy_ce"),
            "device_to_device_memcpy_read_ce",
        ),
        lambda _: 900.0,
        _always,
        tool_parsers.nvbandwidth,
    ),
    Check(
        "nccl",
        ("all_reduce_perf",),
        lambda asked: ("-b", "8M", "-e", "1G", "-f", "2", "-g", str(max(len(asked.gpus), 1))),
        lambda _: 900.0,
        _always,
        tool_parsers.nccl,
    ),
    Check(
        "burn",
        ("gpu_burn", "gpu-burn"),
        lambda asked: (str(asked.seconds),),
        lambda asked: asked.seconds + BURN_EXTRA_SECONDS,
        _always,
        tool_parsers.burn,
        at_home=True,
    ),
)
"""Tests by tools of others."""


def memory_check(library: str) -> Check:
    """Write to every GPU's memory and read it back, by our own program and the CUDA driver.

    It takes no time and little memory; but a GPU in use is not its to touch.
    """
    return Check(
        "memory",
        (sys.executable,),
        lambda _: ("-m", MEMORY_MODULE, library, str(MEMORY_BYTES)),
        lambda _: 120.0,
        _always,
        tool_parsers.memory,
    )


def program_of(check: Check, path: str | None = None) -> str:
    """Find a test's tool; empty where it is not installed."""
    for name in check.programs:
        if found := shutil.which(name, path=path):
            return found
    return ""


def home_of(check: Check, program: str) -> Path | None:
    """Where to run it; None: wherever the agent runs."""
    return Path(program).resolve().parent if check.at_home else None
