"""The machine that a figure was measured on, and what a process uses of it."""

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from services.bus.nats.embedded_server import server_binary

NS: float = 1e9
KIB: int = 1024
FLOOR_REPEATS: int = 200
FLOOR_SUM: int = 200_000


def machine() -> dict[str, Any]:
    """Describe this machine, so that figures of two machines can be compared."""
    model = "unknown"
    memory = 0
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemTotal"):
            memory = int(line.split()[1]) * KIB
    version = subprocess.run(
        [server_binary(), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "nats_server": version.stdout.strip().rpartition(" ")[2],
    }


def floor() -> dict[str, float]:
    """Milliseconds of a fixed computation: how fast and how undisturbed the machine is now.

    On an idle machine the two figures are close. Where other programs compete, `p99` shows how long
    they keep a process waiting, and latencies measured meanwhile contain that.
    """
    took = []
    for _ in range(FLOOR_REPEATS):
        start = time.perf_counter()
        sum(range(FLOOR_SUM))
        took.append(1000 * (time.perf_counter() - start))
    return {
        "loop_ms_min": round(min(took), 2),
        "loop_ms_p99": round(percentile(took, 99), 2),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process, in seconds to the nanosecond."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            used += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # a thread that has just ended
            continue
    return used / NS


def resident_bytes(pid: int) -> int:
    """Resident memory of a process, shared libraries included."""
    for line in _lines(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * KIB
    return 0


def percentile(values: list[float], percent: float) -> float:
    """The nearest-rank percentile: always one of the measured values."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
