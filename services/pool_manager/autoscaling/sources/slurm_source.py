"""Reads the queue of a Slurm partition."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Final

import msgspec

from schemas.duration import Duration
from schemas.settings import Setting
from services.pool_manager.autoscaling.metrics_sources import (
    SHAPES_MAX,
    Load,
    SourceError,
    WaitingJobs,
)
from services.primitives.clock import SystemClock
from services.saga.participant import StepFailure
from services.workload_systems.slurm_client import SlurmRefusedError, SlurmUnavailableError
from services.workload_systems.slurm_constraints import may_serve
from services.workload_systems.slurm_output import PendingJob, SlurmNode
from services.workload_systems.slurm_rest import SlurmRestOptions, connect_slurm

FOR_NODES: Final = (
    "None",
    "Resources",
    "Priority",
    "NodeDown",
    "ReqNodeNotAvail",
    "Nodes required",
    "Nodes_required",
    "PartitionConfig",
    "BadConstraints",
)
"""Beginnings of the reasons that more nodes may end. Others wait for a limit, a dependency, a time
or an operator."""

log = logging.getLogger(__name__)


class SlurmSource:
    """Asks `squeue` and `sinfo`, or slurmrestd."""

    class Options(Setting, frozen=True, kw_only=True):
        """Options of `slurm` in the configuration name the partition and what its nodes offer."""

        partition: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]*$")] = ""
        """Whose nodes are the pool's. Empty: the one that has the pool's name."""
        gpu_type: str = ""
        """Type of the pool's GPUs in gres; jobs that name another type do not count."""
        features: tuple[str, ...] = ()
        """Features of the pool's nodes in slurm.conf; jobs whose `--constraint` they do not satisfy
        do not count. Empty: every constraint counts."""
        conf: str = ""
        """Path of slurm.conf; empty: as Slurm's commands find it."""
        commands: str = ""
        """Folder of Slurm's commands; empty: as PATH says."""
        rest: SlurmRestOptions | None = None
        """slurmrestd, in place of Slurm's commands."""
        timeout: Duration = Duration(10)
        """For one command, or one request."""

    def __init__(self, *, options: Options) -> None:
        self._options = options
        self._slurm = connect_slurm(
            options.rest, options.commands, options.conf, float(options.timeout), SystemClock()
        )

    async def load(self, pool: str) -> Load:
        """Ask for jobs and nodes once."""
        partition = self._options.partition or pool
        try:
            jobs = await self._slurm.queue(partition)
            nodes = await self._slurm.nodes(partition)
            if not jobs and not nodes:
                await self._slurm.check_partition(partition)
        except StepFailure as failure:
            raise SourceError(f"{failure.reason}; {failure.remedy}") from failure
        except (SlurmUnavailableError, SlurmRefusedError) as error:
            raise SourceError(f"partition {partition}: {error}") from error
        return queue_load(jobs, nodes, self._options.gpu_type, self._options.features)

    async def close(self) -> None:
        """Close connections; commands hold nothing."""
        await self._slurm.close()


def queue_load(
    jobs: Iterable[PendingJob],
    nodes: Mapping[str, SlurmNode],
    gpu_type: str = "",
    features: Collection[str] = (),
) -> Load:
    """Return what waits and what is busy. Pure."""
    shapes: Counter[tuple[int, int]] = Counter()
    other = for_others = 0
    for job in jobs:
        other_type = gpu_type and job.gpu_types and gpu_type not in job.gpu_types
        foreign = other_type or (features and not may_serve(features, job.features))
        if not job.reason.startswith(FOR_NODES):
            other += 1
        elif foreign:
            for_others += 1
        else:
            shapes[job.node_count, job.gpus] += 1
    waiting = [
        WaitingJobs(nodes=count, gpus=gpus, count=number)
        for (count, gpus), number in shapes.items()
    ]
    return Load(
        pending_jobs=shapes.total(),
        waiting=tuple(waiting[:SHAPES_MAX]),
        busy_nodes=sum(each.busy for each in nodes.values()),
        not_for_nodes=other,
        not_for_pool=for_others,
    )
