"""What Ray's dashboard answers, and what it means for a node. Pure.

Everything here was written by the owner's programs: names are shown escaped and cut, and only a
raylet ID that looks like one is passed on.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from services.notifier.workload.workload_notifier import (
    RUNNING_MAX,
    NodeReference,
    NodeWorkload,
    RunningWork,
)
from services.operator_text.safe_text import escape_line

NODE_LABEL: Final = "navarch-node"
"""`ray start --labels navarch-node=NODE`: it is compared before names and addresses."""
ORDER_PREFIX: Final = "navarch-"
"""Of the submission IDs of Navarch's own jobs."""
OWNER_KEYS: Final = ("user", "owner")
"""Keys of a job's metadata that name its owner."""
TEXT_CHARS_MAX: Final = 100
CLASSES_SHOWN_MAX: Final = 3
DRIVER: Final = "driver"
_RAYLET_ID: Final = re.compile(r"[0-9a-f]{8,64}")
_SUPERVISOR: Final = "_ray_internal_job_actor_"

T = TypeVar("T")


class Raylet(msgspec.Struct, frozen=True):
    """Ray's process on a machine; Ray calls it a node."""

    node_id: str
    state: str
    node_ip: str = ""
    node_name: str = ""
    is_head_node: bool = False
    state_message: str | None = None
    labels: dict[str, str] | None = None
    start_time_ms: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its work may run; a state that is unknown here may be any."""
        return self.state != "DEAD"

    def __post_init__(self) -> None:
        """Refuse what is no ID."""
        if not _RAYLET_ID.fullmatch(self.node_id):
            raise ValueError("a node_id is not hexadecimal")


class RayActor(msgspec.Struct, frozen=True):
    """An actor."""

    state: str
    job_id: str | None = None
    class_name: str | None = None
    name: str | None = None
    node_id: str | None = None


class RayTask(msgspec.Struct, frozen=True):
    """A task."""

    state: str
    type: str = ""
    job_id: str | None = None
    name: str | None = None
    node_id: str | None = None


class RayJob(msgspec.Struct, frozen=True):
    """A driver."""

    job_id: str | None = None
    submission_id: str | None = None
    status: str = ""
    entrypoint: str = ""
    metadata: dict[str, str] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class _Listed(msgspec.Struct, Generic[T], frozen=True):
    result: tuple[T, ...]
    total: int
    num_after_truncation: int


class _Data(msgspec.Struct, Generic[T], frozen=True):
    result: _Listed[T] | None = None


class StateAnswer(msgspec.Struct, Generic[T], frozen=True):
    """The envelope of every list."""

    result: bool
    data: _Data[T]
    msg: str = ""

    def items(self) -> tuple[T, ...]:
        """Everything; ValueError for a refusal and for a list that is cut."""
        found = self.data.result
        if not self.result or found is None:
            raise ValueError(f"Ray answers: {shown(self.msg) or 'no result'}")
        if found.num_after_truncation < found.total:
            raise ValueError(f"Ray lists {found.num_after_truncation} of {found.total}")
        return found.result


class RunningState(msgspec.Struct, frozen=True):
    """What runs in the whole cluster."""

    actors: tuple[RayActor, ...] = ()
    tasks: tuple[RayTask, ...] = ()
    jobs: tuple[RayJob, ...] = ()


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
    """What runs on the raylets `here`, one entry for each job."""
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
    command = f"{about.entrypoint}: " if about and about.entrypoint else ""
    return RunningWork(
        id=f"job {shown(job)}",
        name=shown(f"{command}{len(parts)} running ({', '.join(kinds)})"),
        owner=shown(owner),
        gang=shown(job) if gang else "",
    )


def shown(text: str) -> str:
    """The text as messages show it."""
    return escape_line(text[:TEXT_CHARS_MAX])[:TEXT_CHARS_MAX]
