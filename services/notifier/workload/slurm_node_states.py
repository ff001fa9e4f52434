"""What Slurm says of nodes unasked: DOWN, drained by another, jobs that failed there. Pure."""

from collections.abc import Sequence
from typing import Final

from services.notifier.workload.workload_notifier import FAILED_MAX, FailedWork, WorkloadNodeState
from services.workload_systems.slurm_output import SlurmJob, SlurmNode

FAILED_STATES: Final = "BOOT_FAIL,FAILED,NODE_FAIL,OUT_OF_MEMORY"
"""Of jobs that ended lately, for as long as slurmctld remembers them (MinJobAge)."""


def node_state(node: SlurmNode, failed: Sequence[SlurmJob]) -> WorkloadNodeState:
    """The state of one node; `failed`: the jobs that failed on it."""
    cordoned = node.cordoned and not node.ours
    reasons = []
    if node.down:
        reasons.append(f"DOWN: {node.reason or 'without a reason'}")
    elif node.powered_off:
        reasons.append("powered down")
    if cordoned:
        by = f" by {node.user}" if node.user not in ("", "Unknown") else ""
        reasons.append(f"drained{by}" + ("" if node.down else f": {node.reason}"))
    return WorkloadNodeState(
        ready=not (node.down or node.powered_off),
        cordoned=cordoned,
        reason="; ".join(reasons),
        failed=_failures(failed),
    )


def _failures(jobs: Sequence[SlurmJob]) -> tuple[FailedWork, ...]:
    found = [
        FailedWork(id=f"job {each.id}", owner=each.user, reason=_why(each), at=each.ends_at)
        for each in jobs
        if each.ends_at is not None
    ]
    return tuple(sorted(found, key=lambda each: (each.at, each.id))[-FAILED_MAX:])


def _why(job: SlurmJob) -> str:
    several = f", on {job.node_count} nodes" if job.node_count > 1 else ""
    return f"{job.state} ({job.name}{several})"
