"""What a figure was measured on, and how much of it a process uses."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from services.bus.nats.embedded_server import server_binary

NS: float = 1e9
KIB: int = 1024


def machine() -> dict[str, Any]:
    """Describe this machine, so that a figure can be compared with another's."""
    model = "unknown"
    memory = 0
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory = int(line.split()[1]) * KIB
    told = subprocess.run(
        [server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "nats_server": told.stdout.strip().rpartition(" ")[2],
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, all threads together, to the nanosecond."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            used += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # a thread that has just ended
            continue
    return used / NS


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM, shared libraries included."""
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * KIB
    return 0


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the measured values."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
