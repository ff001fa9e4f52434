"""Asks /proc which job a process is of, at the moment a fault names it.

A process that died of its fault may be gone a moment later, so the answer is kept for the fault's
repetitions; an empty one is not an error.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.jobs import CGROUP_CHARS_MAX, job_of

KEPT_SECONDS: Final = 60.0
"""A process id may be another's after longer than this."""
KEPT_MAX: Final = 256


class Processes:
    """Tells the jobs of processes of the host."""

    def __init__(self, proc: Path, monotonic: Callable[[], float]) -> None:
        """Read under `proc`, which must be the host's where the agent runs in a container."""
        self._proc = proc
        self._monotonic = monotonic
        self._kept: OrderedDict[int, tuple[float, str]] = OrderedDict()

    def job(self, pid: int) -> str:
        """The job of a process; empty: of none, or it is gone."""
        now = self._monotonic()
        kept = self._kept.get(pid)
        if kept is not None and now - kept[0] <= KEPT_SECONDS:
            return kept[1]
        job = self._read(pid)
        self._kept[pid] = (now, job)
        self._kept.move_to_end(pid)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return job

    def _read(self, pid: int) -> str:
        try:
            with (self._proc / str(pid) / "cgroup").open(
                encoding="utf-8", errors="replace"
            ) as file:
                return job_of(file.read(CGROUP_CHARS_MAX))
        except OSError:
            return ""
