"""Reads the host's own CPU and memory from /proc, and its RDMA devices from /sys."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.conditions.rdma_reader import RdmaPort

ACTIVE: Final = "ACTIVE"
PROC: Final = Path("/proc")


def rdma_ports(sys: Path) -> tuple[RdmaPort, ...]:
    """Return every port of the RDMA devices, up or not."""
    return tuple(
        RdmaPort(
            device=state.parents[2].name,
            port=state.parent.name,
            link_layer=_text(state.with_name("link_layer")),
            gbit_per_second=_rate(_text(state.with_name("rate"))),
            active=_text(state).endswith(f": {ACTIVE}"),
        )
        for state in sorted(sys.glob("class/infiniband/*/ports/*/state"))
    )


def _rate(text: str) -> float:
    """Return the rate of a port as the kernel writes it: `400 Gb/sec (4X NDR)`; 0: none."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) if unit.startswith("Gb/sec") else 0.0
    except ValueError:
        return 0.0


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True, slots=True)
class HostSample:
    """CPU and memory of the host; None where /proc lacks them."""

    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


class HostMetrics:
    """Reads /proc; CPU usage is since the previous reading."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._was: tuple[int, int] | None = None

    def sample(self) -> HostSample:
        """Read the host's CPU and memory once."""
        total, available = self._memory()
        used = total - available if total is not None and available is not None else None
        return HostSample(self._cpu(), used, total)

    def _cpu(self) -> float | None:
        try:
            with (self._proc / "stat").open(encoding="ascii") as file:
                ticks = [int(each) for each in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        if len(ticks) < 5:  # noqa: PLR2004 - user nice system idle iowait
            return None
        now = (sum(ticks), ticks[3] + ticks[4])
        was, self._was = self._was, now
        if was is None or now[0] <= was[0]:
            return None
        return round(100 * (1 - (now[1] - was[1]) / (now[0] - was[0])), 1)

    def _memory(self) -> tuple[int | None, int | None]:
        found: dict[str, int] = {}
        try:
            with (self._proc / "meminfo").open(encoding="ascii") as file:
                for line in file:
                    name, _, rest = line.partition(":")
                    if name in ("MemTotal", "MemAvailable"):
                        found[name] = int(rest.split()[0]) * 1024
        except (OSError, ValueError, IndexError):
            return None, None
        return found.get("MemTotal"), found.get("MemAvailable")
