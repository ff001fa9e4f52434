"""What Slurm is asked and ordered to do, by its commands or over slurmrestd."""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

import msgspec

from services.workload_systems.slurm_output import JOB_STATES, SlurmJob, SlurmNode

DENIED: Final = ("Access/permission denied", "Invalid user id")
"""What Slurm says to a user who lacks a right."""

NodeOrder = Literal["", "DRAIN", "DOWN", "RESUME", "POWER_DOWN_FORCE"]


class SlurmUnavailableError(Exception):
    """slurmctld does not answer; it is asked again."""


class SlurmRefusedError(Exception):
    """Slurm refused an order; its message says why."""


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """What changes of a node; what is empty stays."""

    state: NodeOrder = ""
    reason: str = ""
    address: str = ""
    hostname: str = ""


class SlurmClient(Protocol):
    """One cluster. Every call raises SlurmUnavailableError, SlurmRefusedError or StepFailure."""

    async def ping(self) -> str:
        """What answers."""
        ...

    async def nodes(self, partition: str = "") -> Mapping[str, SlurmNode]:
        """Every node, by name; or those of a partition."""
        ...

    async def jobs(self, states: str = JOB_STATES) -> tuple[SlurmJob, ...]:
        """Every job in one of these states; by default those in which a job has nodes."""
        ...

    async def comments(self, node: str) -> Mapping[str, frozenset[str]]:
        """The words of the comments of the jobs that run on a node, by the jobs' numbers."""
        ...

    async def change_node(self, name: str, change: NodeChange) -> None:
        """Change a node."""
        ...

    async def delete_node(self, name: str) -> None:
        """Remove a node that had registered itself."""
        ...

    async def requeues(self) -> bool:
        """Whether a single job can be requeued; else only by setting its nodes DOWN."""
        ...

    async def requeue(self, number: str) -> None:
        """Have a job begin again elsewhere."""
        ...

    async def cancel(self, number: str) -> None:
        """End a job."""
        ...

    async def signal(self, number: str, signal_: str) -> None:
        """Send a signal to a job's batch script."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
