"""Asks /proc which job a process is of, at the moment a fault names it.

A process that died of its fault may be gone a moment later, so the answer is kept for the fault's
repetitions; an empty one is not an error.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.sources.cgroup_jobs import CGROUP_CHARS_MAX, job_of, started_seconds

KEPT_SECONDS: Final = 60.0
"""A process id may be another's after longer than this."""
KEPT_MAX: Final = 256
CLOCKS_APART_SECONDS: Final = 10.0
"""The clock of the kernel's log and that of its processes drift apart a little."""
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class Processes:
    """Tells the jobs of processes of the host."""

    def __init__(self, proc: Path, monotonic: Callable[[], float]) -> None:
        """Read under `proc`, which must be the host's where the agent runs in a container."""
        self._proc = proc
        self._monotonic = monotonic
        self._kept: OrderedDict[int, tuple[float, str]] = OrderedDict()

    def job(self, pid: int, at_seconds: float) -> str:
        """The job of a process that was there so long after the boot.

        Empty: of none, it is gone, or another one has its number by now.
        """
        now = self._monotonic()
        kept = self._kept.get(pid)
        if kept is not None and now - kept[0] <= KEPT_SECONDS:
            return kept[1]
        job = self._job(pid, at_seconds)
        self._kept[pid] = (now, job)
        self._kept.move_to_end(pid)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return job

    def _job(self, pid: int, at_seconds: float) -> str:
        job = job_of(self._read(pid, "cgroup"))
        if not job:
            return ""
        # A line may be read long after it was written, by an agent that was down.
        started = started_seconds(self._read(pid, "stat"), TICKS_PER_SECOND)
        return "" if started is not None and started > at_seconds + CLOCKS_APART_SECONDS else job

    def _read(self, pid: int, name: str) -> str:
        try:
            with (self._proc / str(pid) / name).open(encoding="utf-8", errors="replace") as file:
                return file.read(CGROUP_CHARS_MAX)
        except OSError:
            return ""
