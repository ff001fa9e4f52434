"""Decodes what slurmrestd answers: versions v0.0.38 to v0.0.44 of its API. Pure.

v0.0.38 writes a node's state as a word beside a list of flags, later ones as one list; a job's
state is a word up to v0.0.39; numbers may be null, or `{set, infinite, number}`. What users write
is JSON here, and needs no mark.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from services.primitives.host_list import expand_hosts
from services.workload_systems.slurm_client import DENIED, NodeOrder
from services.workload_systems.slurm_output import (
    JOB_STATES,
    NAME_CHARS_MAX,
    PendingJob,
    SlurmJob,
    SlurmNode,
    pending_job,
)

UPDATES_SINCE: Final = 39
"""The first API whose nodes can be changed (Slurm 23.02)."""
BATCH_SIGNALS_SINCE: Final = 40
"""The first whose signals can be sent to a job's batch script alone."""
KNOWN_MAX: Final = 44
"""The last API that this was written for."""
TEXT_CHARS_MAX: Final = 300
NUMBER_MAX: Final = 4_000_000_000
"""From here on a time or an ID is one of Slurm's marks for none."""
STATES: Final[Mapping[NodeOrder, tuple[str, ...]]] = {
    "DRAIN": ("DRAIN",),
    "DOWN": ("DOWN",),
    "RESUME": ("RESUME",),
    # What `scontrol` sends for it.
    "POWER_DOWN_FORCE": ("POWER_DOWN", "POWERED_DOWN"),
}
UNREACHABLE: Final = (
    *("Unable to contact", "Unspecified error", "unable to load", "Zero Bytes", "timed out"),
    *("Communication", "authentication", "Authentication"),
)
"""Slurm's words where slurmctld is away, or where it refuses a token, which it calls the same."""
_NODES: Final = re.compile(r"/slurm/v0\.0\.(\d+)/nodes/?")
_COMPLETING: Final = "COMPLETING"
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
TASKS_MAX: Final = 100_000
"""Of one array."""


class _Number(msgspec.Struct, frozen=True):
    set: bool = False
    infinite: bool = False
    number: int | float = 0


Number = int | float | str | _Number | None


class _Node(msgspec.Struct, frozen=True):
    name: str
    address: str = ""
    hostname: str = ""
    state: str | list[str] = ""
    state_flags: list[str] = []
    reason: str = ""
    reason_set_by_user: str | None = ""
    partitions: list[str] = []


class _Job(msgspec.Struct, frozen=True):
    job_id: int
    job_state: str | list[str] = ""
    array_job_id: Number = None
    array_task_id: Number = None
    het_job_id: Number = None
    het_job_offset: Number = None
    user_name: str | None = ""
    start_time: Number = None
    end_time: Number = None
    time_limit: Number = None
    nodes: str | None = ""
    node_count: Number = None
    name: str | None = ""
    comment: str | None = ""
    admin_comment: str | None = ""
    partition: str | None = ""
    state_reason: str | None = ""
    tres_per_node: str | None = ""
    features: str | None = ""
    array_task_string: str | None = ""


class _Partition(msgspec.Struct, frozen=True):
    name: str = ""


class _Error(msgspec.Struct, frozen=True):
    description: str = ""
    error: str = ""
    source: str = ""


class _Ping(msgspec.Struct, frozen=True):
    hostname: str = ""
    mode: str = ""
    ping: str = ""
    pinged: str = ""
    """Its name since v0.0.39."""


class RestAnswer(msgspec.Struct, frozen=True):
    """Any answer; None: it has no such list, which is not an empty one."""

    errors: list[_Error] = []
    nodes: list[_Node] | None = None
    jobs: list[_Job] | None = None
    partitions: list[_Partition] | None = None
    pings: list[_Ping] = []


class RestPaths(msgspec.Struct, frozen=True):
    """The part of slurmrestd's own description that says what it can do."""

    paths: dict[str, dict[str, msgspec.Raw]]


class RestApi(msgspec.Struct, frozen=True):
    """One version of the API, and what it can do."""

    number: int
    changes_nodes: bool

    @property
    def signals(self) -> bool:
        """Return whether a signal can be sent to a job's batch script alone."""
        return self.number >= BATCH_SIGNALS_SINCE

    @property
    def name(self) -> str:
        """Return the version's name as in paths."""
        return f"v0.0.{self.number}"


def served_apis(paths: RestPaths) -> list[RestApi]:
    """The versions that slurmrestd serves, the best last."""
    numbers = [int(each[1]) for path in paths.paths if (each := _NODES.fullmatch(path))]
    found = [
        RestApi(number, "post" in paths.paths.get(f"/slurm/v0.0.{number}/node/{{node_name}}", {}))
        for number in numbers
    ]
    return sorted(found, key=lambda each: (each.number <= KNOWN_MAX, each.number))


def rest_nodes(answer: RestAnswer, partition: str) -> Mapping[str, SlurmNode]:
    """Return every node, by name; or those of a partition."""
    return {
        each.name: SlurmNode(
            name=each.name,
            address=each.address,
            hostname=each.hostname,
            state=frozenset(word.lower() for word in (*_words(each.state), *each.state_flags)),
            user=each.reason_set_by_user or "Unknown",  # as `sinfo` shows it
            reason=each.reason,
        )
        for each in answer.nodes or ()
        if not partition or partition in each.partitions
    }


def rest_jobs(answer: RestAnswer, states: str) -> tuple[SlurmJob, ...]:
    """Every job in one of these states."""
    wanted = set(states.split(","))
    return tuple(_job(each) for each in answer.jobs or () if wanted & set(_words(each.job_state)))


def rest_queue(answer: RestAnswer, partition: str) -> tuple[PendingJob, ...]:
    """Every job of a partition that waits, each task of an array by itself."""
    found: list[PendingJob] = []
    for each in answer.jobs or ():
        waits = "PENDING" in _words(each.job_state)
        if waits and partition in (each.partition or "").split(","):
            nodes, tres = _number(each.node_count) or 1, each.tres_per_node or ""
            reason, features = each.state_reason or "", each.features or ""
            job = pending_job(_label(each), nodes, tres, reason, features)
            found += [job] * min(_tasks(each.array_task_string or ""), TASKS_MAX)
    return tuple(found)


def _tasks(text: str) -> int:
    """How many tasks of an array `1-5,8,10-20:2%3` still wait; a long list is cut by Slurm."""
    count = 0
    for first, last, step in _RANGE.findall(text.partition("%")[0]):
        count += len(range(int(first), int(last or first) + 1, max(int(step or 1), 1)))
    return max(count, 1)


def rest_comments(answer: RestAnswer, node: str) -> Mapping[str, frozenset[str]]:
    """The words of the comments of the jobs that run on a node, by the jobs' numbers."""
    return {
        str(each.job_id): frozenset((each.comment or "").split())
        for each in answer.jobs or ()
        if "RUNNING" in _words(each.job_state) and node in expand_hosts(each.nodes or "")
    }


def rest_admin_comments(answer: RestAnswer, node: str) -> Mapping[str, str]:
    """Return the administrators' comments of the jobs on a node, by the jobs' numbers."""
    return {
        str(each.job_id): each.admin_comment
        for each in answer.jobs or ()
        if each.admin_comment and node in expand_hosts(each.nodes or "")
    }


def rest_pings(answer: RestAnswer) -> str:
    """Return which controllers answer."""
    found = [
        f"Slurmctld({each.mode}) at {each.hostname} is {each.ping or each.pinged}"
        for each in answer.pings
    ]
    return "; ".join(found) or "no controller is named"


def error_text(answer: RestAnswer) -> str:
    """Return what went wrong; empty: nothing."""
    texts = [
        " ".join(filter(None, (each.description, each.error, each.source)))
        for each in answer.errors
    ]
    return "; ".join(texts)[:TEXT_CHARS_MAX]


def is_denied(text: str) -> bool:
    """Return whether the user lacks a right."""
    return any(each in text for each in DENIED)


def is_unreachable(text: str) -> bool:
    """Return whether slurmctld did not answer, or refused the token."""
    return any(each in text for each in UNREACHABLE)


def node_message(state: NodeOrder, reason: str, address: str, hostname: str) -> dict[str, Any]:
    """The body that changes a node (`update_node_msg`)."""
    body: dict[str, Any] = {
        "state": list(STATES.get(state, ())),
        "reason": reason,
        "address": [address] if address else [],
        "hostname": [hostname] if hostname else [],
    }
    return {key: value for key, value in body.items() if value}


def _job(job: _Job) -> SlurmJob:
    words = _words(job.job_state)
    return SlurmJob(
        id=_label(job),
        number=str(job.job_id),
        user=job.user_name or "",
        started_at=_time(job.start_time),
        ends_at=_end(job, words),
        nodes=tuple(expand_hosts(job.nodes or "")),
        node_count=_number(job.node_count) or 1,
        state=_COMPLETING if _COMPLETING in words else words[0],
        name=(job.name or "")[:NAME_CHARS_MAX],
    )


def _label(job: _Job) -> str:
    """The job as users write it."""
    if array := _number(job.array_job_id):
        task = _number(job.array_task_id)
        return f"{array}_{task}" if task is not None else str(array)
    if het := _number(job.het_job_id):
        return f"{het}+{_number(job.het_job_offset) or 0}"
    return str(job.job_id)


def _words(state: str | Sequence[str]) -> Sequence[str]:
    return [state] if isinstance(state, str) else list(state) or [""]


def _number(value: Number) -> int | None:
    if isinstance(value, _Number):
        value = value.number if value.set and not value.infinite else None
    if isinstance(value, str):
        value = int(value) if value.isdecimal() else None
    return int(value) if value is not None and 0 <= value < NUMBER_MAX else None


def _end(job: _Job, words: Sequence[str]) -> datetime | None:
    """When it ends or ended; where it has no limit Slurm says in a year."""
    if _number(job.time_limit) is None and set(words) & set(JOB_STATES.split(",")):
        return None
    return _time(job.end_time)


def _time(value: Number) -> datetime | None:
    seconds = _number(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None
