"""The job of a process, from its control groups. Pure.

A scheduler starts processes in its own groups: Slurm in `job_1234`, Kubernetes in `pod<uid>`. An
XID names a process and thereby its job, so that faults caused by a job can be attributed to it.
"""

import re
from typing import Final

CGROUP_CHARS_MAX: Final = 16_384
"""Of /proc/PID/cgroup: a line for each hierarchy, a dozen at most, each a path."""

_SLURM = re.compile(r"/(?:\w[\w.-]*_)?slurm[\w.-]*(?:/[^/\n]{1,255}){0,8}?/job_(\d{1,12})(?=/|$)")
_POD = re.compile(
    r"/(?:[\w.-]{0,128}-)?pod"
    r"([0-9a-f]{8}([_-])[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{4}\2[0-9a-f]{12}|[0-9a-f]{32})"
    r"(?:\.slice)?(?=/|$)"
)


_STARTED_FIELD: Final = 19
"""Of /proc/PID/stat, counted from the one after the name: ticks since the boot."""


def started_seconds(stat: str, ticks_per_second: int) -> float | None:
    """When a process began, in seconds since the boot, by the text of /proc/PID/stat."""
    # A process may give itself any name, parentheses and spaces included.
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _STARTED_FIELD or not fields[_STARTED_FIELD].isdecimal():
        return None
    return int(fields[_STARTED_FIELD]) / ticks_per_second


def job_of(cgroup: str) -> str:
    """Name the job in the text of /proc/PID/cgroup: `slurm-1234`, `pod-<uid>`; empty: in none.

    A Slurm job that runs inside a pod is the Slurm job: that is what its nodes have in common.
    """
    paths = [line.split(":", 2)[-1] for line in cgroup[:CGROUP_CHARS_MAX].splitlines()]
    for path in paths:
        if found := _SLURM.search(path):
            return f"slurm-{found.group(1)}"
    for path in paths:
        if found := _POD.search(path):
            return f"pod-{found.group(1).replace('_', '-')}"
    return ""
