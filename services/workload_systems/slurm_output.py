"""Parses what Slurm's commands print. Pure.

Job names and reasons are written by users and may contain separators and line breaks. Therefore
every record ends with a mark that is drawn for each call and that no user can know, and the field
that a user writes comes last.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from services.primitives.host_list import expand_hosts

NODE_FIELDS: Final = ("NodeList", "NodeAddr", "NodeHost", "StateComplete", "User", "Reason")
JOB_FIELDS: Final = ("%i", "%A", "%u", "%S", "%e", "%D", "%N", "%T", "%j")
QUEUE_FIELDS: Final = ("%i", "%D", "%b", "%r", "%f")
"""A constraint comes last: it may contain the separator."""
JOB_STATES: Final = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING,STAGE_OUT,SIGNALING,STOPPED,RESIZING"
"""Those in which a job has nodes."""
OURS: Final = "navarch:"
"""Reasons of Navarch begin with this."""
AUTOMATIC: Final = ("Not responding", "Node unexpectedly rebooted")
"""Reasons that slurmctld writes by itself about a node that it sets DOWN."""
NAME_CHARS_MAX: Final = 100
_POWERED_OFF: Final = frozenset({"powering_down", "powered_down"})
_GPUS: Final = re.compile(r"\bgpu(?:[:/]([A-Za-z][^:,(=]*))?(?:[:=](\d+))?")
"""In `gres/gpu:a100:4` as in `gres:gpu:4`: type and number."""
_BUSY: Final = frozenset({"allocated", "mixed", "completing"})


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node as `sinfo` shows it."""

    name: str
    address: str
    hostname: str
    state: frozenset[str]
    """`idle`, `allocated`, `down`, … and flags: `drain`, `not_responding`, `completing`, …"""
    user: str
    """Who wrote the reason."""
    reason: str

    @property
    def cordoned(self) -> bool:
        """Return whether Slurm places no new work on it until an operator resumes it."""
        return "drain" in self.state

    @property
    def down(self) -> bool:
        """Return whether Slurm has given its jobs up."""
        return "down" in self.state

    @property
    def ours(self) -> bool:
        """Return whether it was Navarch that drained it or set it DOWN."""
        return self.reason.startswith(OURS)

    @property
    def automatic(self) -> bool:
        """Return whether its reason is slurmctld's own, or there is none."""
        return not self.reason or self.reason.startswith(AUTOMATIC)

    @property
    def silent(self) -> bool:
        """Return whether its slurmd does not respond, and its jobs are not given up yet."""
        return "not_responding" in self.state and not self.down

    @property
    def cloud(self) -> bool:
        """Return whether its machine comes and goes by ResumeProgram and SuspendProgram."""
        return "cloud" in self.state

    @property
    def dynamic(self) -> bool:
        """Return whether it registered itself, and slurm.conf does not name it."""
        return "dynamic_norm" in self.state

    @property
    def powered_off(self) -> bool:
        """Return whether Slurm has given its machine up."""
        return bool(self.state & _POWERED_OFF)

    @property
    def powering_up(self) -> bool:
        """Return whether Slurm waits for its machine; jobs that have it have not begun."""
        return "powering_up" in self.state

    @property
    def completing(self) -> bool:
        """Return whether Slurm waits for the epilogs of jobs, and none runs any more."""
        return "completing" in self.state and not self.state & {"allocated", "mixed"}

    @property
    def busy(self) -> bool:
        """Return whether Slurm has not got all of it back."""
        return bool(self.state & _BUSY)


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job that has nodes, as `squeue` shows it."""

    id: str
    """As users write it: `4711`, `4711_3`, `4711+1`."""
    number: str
    """The number that Slurm knows it by."""
    user: str
    started_at: datetime | None
    ends_at: datetime | None
    nodes: tuple[str, ...]
    """Those that it still has."""
    node_count: int
    state: str
    name: str


class PendingJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job that waits, as `squeue` shows it."""

    id: str
    node_count: int
    """The fewest that it runs on."""
    gpus: int
    """On each of its nodes; 0: it states none."""
    gpu_types: frozenset[str]
    """Types of GPU that it names."""
    reason: str
    """Why it waits, as `Resources` or `Dependency`."""
    features: str
    """Its constraint, as `a100&nvlink`; empty: none."""


def queue_format(mark: str) -> str:
    """`squeue -o`: the fields that `read_queue` reads."""
    return "|".join(QUEUE_FIELDS) + "|" + mark


def read_queue(output: str, mark: str) -> tuple[PendingJob, ...]:
    """Every job that waits."""
    return tuple(
        pending_job(label, int(count) if count.isdecimal() else 1, tres, reason, features)
        for label, count, tres, reason, features in marked_records(output, mark, len(QUEUE_FIELDS))
    )


def pending_job(label: str, nodes: int, tres: str, reason: str, features: str) -> PendingJob:
    """A job that waits, of what Slurm says of it; `tres`: what it needs on each node."""
    gpus = _GPUS.findall(tres)
    return PendingJob(
        id=label,
        node_count=max(nodes, 1),
        gpus=sum(int(number or 1) for _, number in gpus),
        gpu_types=frozenset(kind for kind, _ in gpus if kind),
        reason=reason,
        features="" if features == "(null)" else features,
    )


def node_format(mark: str) -> str:
    """`sinfo -O`: the fields that `read_nodes` reads."""
    return ",".join(f"{each}:|" for each in NODE_FIELDS) + mark


def job_format(mark: str) -> str:
    """`squeue -o`: the fields that `read_jobs` reads."""
    return "|".join(JOB_FIELDS) + "|" + mark


def read_nodes(output: str, mark: str) -> Mapping[str, SlurmNode]:
    """Every node, by name; a node of several partitions is listed several times."""
    found: dict[str, SlurmNode] = {}
    for name, address, hostname, state, user, reason in marked_records(
        output, mark, len(NODE_FIELDS)
    ):
        found[name] = SlurmNode(
            name=name,
            address=address,
            hostname=hostname,
            state=frozenset(re.split(r"[+*~#!%$@^-]+", state.lower())) - {""},
            user=user,
            reason="" if reason in ("none", "(null)") else reason,
        )
    return found


def read_jobs(output: str, mark: str) -> tuple[SlurmJob, ...]:
    """Every job that has nodes."""
    return tuple(
        SlurmJob(
            id=label,
            number=number,
            user=user,
            started_at=_time(start),
            ends_at=_time(end),
            nodes=tuple(expand_hosts(hosts)),
            node_count=int(count) if count.isdecimal() else 1,
            state=state,
            name=name[:NAME_CHARS_MAX],
        )
        for label, number, user, start, end, count, hosts, state, name in marked_records(
            output, mark, len(JOB_FIELDS)
        )
        if number.isdecimal()
    )


def comment_format(mark: str) -> str:
    """`squeue -o`: the fields that `read_comments` reads."""
    return "%A|%k|" + mark


def read_comments(output: str, mark: str) -> Mapping[str, frozenset[str]]:
    """Return the words of each job's comment, by its number."""
    return {
        number: frozenset(() if text == "(null)" else text.split())
        for number, text in marked_records(output, mark, 2)
    }


def admin_comment_format(mark: str) -> str:
    """`squeue -O`: the fields that `read_admin_comments` reads."""
    return "JobID:|,admin_comment:|" + mark


def read_admin_comments(output: str, mark: str) -> Mapping[str, str]:
    """Return each job's comment by an administrator, by its number; one without has none."""
    found = marked_records(output, mark, 2)
    return {number: text for number, text in found if text not in ("", "(null)")}


def marked_records(output: str, mark: str, fields: int) -> Iterator[Sequence[str]]:
    """The fields of each record that ends with the mark."""
    for record in output.split("|" + mark):
        found = record.lstrip("\n").split("|", fields - 1)
        if len(found) == fields:
            yield [each.strip() for each in found]


def _time(text: str) -> datetime | None:
    """A time as Slurm prints it with TZ=UTC; None: there is no limit."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        return None
