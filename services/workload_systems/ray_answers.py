"""Decodes what Ray's dashboard answers. Pure.

Everything here was written by the owner's programs: names are shown escaped and cut, and only a
raylet ID that looks like one is passed on.
"""

import re
from typing import Final, Generic, TypeVar

import msgspec

from services.operator_text.safe_text import escape_line

TEXT_CHARS_MAX: Final = 100
_RAYLET_ID: Final = re.compile(r"[0-9a-f]{8,64}")

T = TypeVar("T")


def shown(text: str) -> str:
    """The text as messages show it."""
    return escape_line(text[:TEXT_CHARS_MAX])[:TEXT_CHARS_MAX]


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
        """Return whether its work may run; a state that is unknown here may be any."""
        return self.state != "DEAD"

    def __post_init__(self) -> None:
        """Refuse what is no ID."""
        if not _RAYLET_ID.fullmatch(self.node_id):
            raise ValueError("a node_id is not hexadecimal")


class RayActor(msgspec.Struct, frozen=True):
    """Describes an actor of Ray."""

    state: str
    job_id: str | None = None
    class_name: str | None = None
    name: str | None = None
    node_id: str | None = None


class RayTask(msgspec.Struct, frozen=True):
    """Describes a task of Ray."""

    state: str
    type: str = ""
    job_id: str | None = None
    name: str | None = None
    node_id: str | None = None


class RayJob(msgspec.Struct, frozen=True):
    """Describes the driver of a job."""

    job_id: str | None = None
    submission_id: str | None = None
    status: str = ""
    entrypoint: str = ""
    metadata: dict[str, str] | None = None
    start_time: float | None = None
    """Milliseconds since 1970."""

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self.status in ("SUCCEEDED", "FAILED", "STOPPED")


class _Listed(msgspec.Struct, Generic[T], frozen=True):
    result: tuple[T, ...]
    total: int
    num_after_truncation: int


class _Data(msgspec.Struct, Generic[T], frozen=True):
    result: _Listed[T] | None = None


class StateAnswer(msgspec.Struct, Generic[T], frozen=True):
    """Holds the envelope of every list."""

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
    """Lists what runs in the whole cluster."""

    actors: tuple[RayActor, ...] = ()
    tasks: tuple[RayTask, ...] = ()
    jobs: tuple[RayJob, ...] = ()


class GroupDemand(msgspec.Struct, frozen=True):
    """Placement groups that wait, of one shape."""

    bundles: tuple[tuple[dict[str, float], int], ...]
    """Resources of a bundle, and the number of such bundles."""
    strategy: str = "PACK"


class RayDemand(msgspec.Struct, frozen=True, rename="camel"):
    """Lists what Ray has no place for, as its autoscaler sees it, and what is used."""

    resource_demand: tuple[tuple[dict[str, float], int], ...] = ()
    """Resources of a task or actor that waits, and the number of such ones."""
    pg_demand: tuple[tuple[GroupDemand, int], ...] = ()
    """Placement groups that wait, and the number of such ones."""
    usage_by_node: dict[str, dict[str, tuple[float, float]]] = {}
    """Raylet -> resource -> used and total."""


class _ClusterStatus(msgspec.Struct, frozen=True, rename="camel"):
    load_metrics_report: RayDemand


class _StatusData(msgspec.Struct, frozen=True, rename="camel"):
    cluster_status: _ClusterStatus | None = None


class StatusAnswer(msgspec.Struct, frozen=True):
    """The envelope of the cluster's status; without one before Ray's monitor has written it."""

    data: _StatusData
