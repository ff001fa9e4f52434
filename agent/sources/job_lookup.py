"""Finds the job of a process in /proc when a fault names it.

A process killed by its fault is soon gone, so the result is cached for repeated faults; an empty
one is not an error.
"""

import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.sources.cgroup_jobs import CGROUP_CHARS_MAX, job_of, started_seconds

KEPT_SECONDS: Final = 60.0
"""A PID may be reused after longer than this."""
KEPT_MAX: Final = 256
CLOCKS_APART_SECONDS: Final = 10.0
"""Maximum drift between the clocks of the kernel log and of processes."""
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


class JobLookup:
    """Jobs of the host's processes, cached."""

    def __init__(self, proc: Path, monotonic: Callable[[], float]) -> None:
        """Read under `proc`, which must be the host's where the agent runs in a container."""
        self._proc = proc
        self._monotonic = monotonic
        self._kept: OrderedDict[int, tuple[float, str]] = OrderedDict()

    def job(self, pid: int, at_seconds: float) -> str:
        """The job of a process that existed `at_seconds` after the boot.

        Empty: no job, the process is gone, or its PID was reused.
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
