"""Finds which raylets a node has, and what runs on them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    NodeReference,
    NodeWorkload,
    RunningWork,
)
from services.workload_systems.ray_answers import RayJob, Raylet, RunningState, shown

NODE_LABEL: Final = "navarch-node"
"""`ray start --labels navarch-node=NODE`: it is compared before names and addresses."""
ORDER_PREFIX: Final = "navarch-"
"""Of the submission IDs of Navarch's own jobs."""
OWNER_KEYS: Final = ("user", "owner")
"""Keys of a job's metadata that name its owner."""
CLASSES_SHOWN_MAX: Final = 3
DRIVER: Final = "driver"
_SUPERVISOR: Final = "_ray_internal_job_actor_"


def find_raylets(
    name: str, reference: NodeReference, raylets: Sequence[Raylet]
) -> tuple[Raylet, ...]:
    """The raylets of a node, dead ones included: by label, else by name.

    Where none of them is alive, one without that label at the node's address belongs to it too.
    """
    found = [each for each in raylets if (each.labels or {}).get(NODE_LABEL) == reference.node]
    found = found or [each for each in raylets if each.node_name == name]
    if reference.address and not any(each.is_alive for each in found):
        found += [
            each
            for each in raylets
            if each.node_ip == reference.address and NODE_LABEL not in (each.labels or {})
        ]
    return tuple({each.node_id: each for each in found}.values())


def node_workload(
    here: Collection[str], state: RunningState, detail: str = "the node is not drained in Ray"
) -> NodeWorkload:
    """Return what runs on the raylets `here`, one entry for each job."""
    drivers: dict[str | None, RayJob] = {each.job_id: each for each in state.jobs if each.job_id}
    parts: dict[str, list[str]] = {}
    elsewhere: set[str] = set()
    for job, where, what in _placed(state, drivers):
        if job.startswith(ORDER_PREFIX):
            continue
        if where in here:
            parts.setdefault(job, []).append(what)
        elif what != DRIVER:
            elsewhere.add(job)
    by_name = {each.submission_id or each.job_id or "": each for each in state.jobs}
    running = tuple(
        _work(job, parts[job], by_name.get(job), gang=job in elsewhere) for job in sorted(parts)
    )
    return NodeWorkload(
        drained=False, running=running[:RUNNING_MAX], total=len(running), detail=detail
    )


def _placed(
    state: RunningState, drivers: Mapping[str | None, RayJob]
) -> list[tuple[str, str, str]]:
    """Job, raylet and kind of everything that is placed."""

    def job(job_id: str | None) -> str:
        driver = drivers.get(job_id)
        return (driver and driver.submission_id) or job_id or "unknown"

    found: list[tuple[str, str, str]] = []
    for actor in state.actors:
        if actor.state == "DEAD" or not actor.node_id:
            continue
        if (actor.name or "").startswith(_SUPERVISOR):
            found.append(((actor.name or "").removeprefix(_SUPERVISOR), actor.node_id, DRIVER))
        else:
            found.append((job(actor.job_id), actor.node_id, actor.class_name or "actor"))
    found += [
        (job(each.job_id), each.node_id, f"task {each.name or ''}".strip())
        for each in state.tasks
        if each.node_id and each.type not in ("ACTOR_TASK", "ACTOR_CREATION_TASK")
    ]
    return found


def _work(job: str, parts: Sequence[str], about: RayJob | None, *, gang: bool) -> RunningWork:
    kinds = sorted(set(parts))[:CLASSES_SHOWN_MAX]
    metadata = (about and about.metadata) or {}
    owner = next((metadata[each] for each in OWNER_KEYS if metadata.get(each)), "")
    command = f": {about.entrypoint}" if about and about.entrypoint else ""
    return RunningWork(
        id=f"job {shown(job)}",
        name=shown(f"{len(parts)} running ({', '.join(kinds)}){command}"),
        owner=shown(owner),
        started_at=_time(about.start_time if about else None),
        gang=shown(job) if gang else "",
    )


def _time(milliseconds: float | None) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
    except (ValueError, OverflowError, OSError):
        return None
