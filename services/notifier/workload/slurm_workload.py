"""Reads what Slurm says of nodes and jobs, and builds what is written to Slurm. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from services.notifier.workload.workload_notifier import (
    FAILED_MAX,
    RUNNING_MAX,
    FailedWork,
    NodeWorkload,
    RunningWork,
    WorkloadNodeState,
    read_announcement,
)
from services.workload_systems.slurm_output import NAME_CHARS_MAX, OURS, SlurmJob, SlurmNode

FAILED_STATES: Final = "BOOT_FAIL,FAILED,NODE_FAIL,OUT_OF_MEMORY"
"""Of jobs that ended lately, for as long as slurmctld remembers them (MinJobAge)."""
REASON_CHARS_MAX: Final = 200
NODE_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,253}")
CHECKPOINT_AT: Final = "navarch-checkpoint-at="
"""Word of a job's comment by which it announces when its next checkpoint is written."""


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


def announced_checkpoint(comment: Iterable[str]) -> datetime | None:
    """Return when a job with these words in its comment has written its next checkpoint."""
    found = [each.removeprefix(CHECKPOINT_AT) for each in comment if each.startswith(CHECKPOINT_AT)]
    return read_announcement(found[0]) if len(found) == 1 else None


def reason_text(reason: str, key: str) -> str:
    """The reason that Slurm shows: `navarch: xid-79 on GPU 3 (replace-training-7)`."""
    saga = key.partition("/")[0]
    text = " ".join(f"{reason or 'cordoned'} ({saga})".split())
    plain = "".join(each if each.isprintable() and each != '"' else "?" for each in text)
    return f"{OURS} {plain}"[:REASON_CHARS_MAX]


def jobs_by_node(jobs: Sequence[SlurmJob]) -> Mapping[str, Sequence[SlurmJob]]:
    """The jobs that have each node."""
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        for node in job.nodes:
            found.setdefault(node, []).append(job)
    return found


def node_workload(node: SlurmNode, here: Sequence[SlurmJob]) -> NodeWorkload:
    """Return what runs on a node that has these jobs."""
    if node.powered_off or node.powering_up:
        return NodeWorkload(
            drained="completing" not in node.state, detail="Slurm has no machine for the node"
        )
    detail = "" if node.cordoned or node.down else "the node is not drained in Slurm"
    if not here and node.busy:
        detail = "its jobs have ended; Slurm waits for their epilog"
    return NodeWorkload(
        drained=not here and not node.busy and (node.cordoned or node.down),
        running=tuple(running_work(each) for each in here[:RUNNING_MAX]),
        total=len(here),
        detail=detail,
        unsure=not here and node.busy,
    )


def running_work(job: SlurmJob) -> RunningWork:
    """A job as Navarch shows it."""
    return RunningWork(
        id=f"job {job.id}",
        name=job.name,
        owner=job.user,
        started_at=job.started_at,
        ends_at=job.ends_at,
        gang=job.id if job.node_count > 1 else "",
    )


def checked_name(name: str) -> str:
    """The name, which is part of a command; ValueError if Slurm would read it as several nodes."""
    if NODE_NAME.fullmatch(name) and name.upper() != "ALL":
        return name
    raise ValueError(f"{name[:NAME_CHARS_MAX]!r} is no name of one Slurm node")


def find_node(name: str, address: str, nodes: Mapping[str, SlurmNode]) -> SlurmNode | None:
    """Return the node of this name, or of its short form, or the only one with this address."""
    short = name.partition(".")[0]
    found = nodes.get(name) or nodes.get(short)
    if found is not None or not address:
        return found
    same = [each for each in nodes.values() if each.address == address]
    return same[0] if len(same) == 1 else None
