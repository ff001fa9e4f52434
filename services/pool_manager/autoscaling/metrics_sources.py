"""Defines the contract of a MetricsSource, from which a pool's queue comes.

What the GPUs do is known from telemetry; how many jobs wait only the workload system knows. A
plugin is a class of this shape with an inner struct `Options`, found by entry point
(`navarch.metrics_sources`) or as `module:Class`, and constructed with `options=`.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Protocol

import msgspec

SHAPES_MAX: Final = 10_000
COUNT_MAX: Final = 1_000_000
LABELS_MAX: Final = 64

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class WaitingJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs of one shape that wait for nodes."""

    nodes: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] = 1
    """Each needs so many at once; on fewer it does not run."""
    gpus: Annotated[int, msgspec.Meta(ge=0, le=1_024)] = 0
    """On each of its nodes. 0: not stated."""
    count: Count = 1
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=LABELS_MAX)] = {}
    """That each of its nodes must have: it counts for pools with these `labels` alone."""
    parts: Annotated[dict[int, Count], msgspec.Meta(max_length=LABELS_MAX)] = {}
    """Of a job whose parts may share nodes: GPUs -> parts that need so many. `nodes` is then how
    many it has, and how many nodes it needs follows from the nodes' GPUs. Empty: whole nodes."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A source reports what it knows; None: it does not know."""

    pending_jobs: Count | None = None
    """Waiting for nodes."""
    queue_depth: Count | None = None
    """Waiting or running."""
    utilization: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    """In percent; takes the place of what telemetry says."""
    waiting: Annotated[tuple[WaitingJobs, ...], msgspec.Meta(max_length=SHAPES_MAX)] | None = None
    """The jobs that wait for nodes, in the order in which they are to run; more than
    `pending_jobs` says."""
    busy_nodes: Count | None = None
    """Nodes with work on them."""
    not_for_nodes: Count = 0
    """Jobs that wait for something else: a dependency, a limit, an operator."""
    not_for_pool: Count = 0
    """Jobs that wait for nodes that the pool does not have: another GPU, constraint or label."""


def for_pool(load: Load, labels: Mapping[str, str]) -> Load:
    """Return the load without the jobs that nodes with a pool's labels cannot run. Pure."""
    if load.waiting is None:
        return load
    fitting = tuple(each for each in load.waiting if each.labels.items() <= labels.items())
    others = sum(each.count for each in load.waiting) - sum(each.count for each in fitting)
    total = load.not_for_pool + others
    return msgspec.structs.replace(load, waiting=fitting, not_for_pool=total)


class SourceError(Exception):
    """A source cannot say anything now."""


class MetricsSource(Protocol):
    """Knows how a pool is used."""

    async def load(self, pool: str) -> Load:
        """Ask; SourceError where there is no answer. Bounded in time by the caller as well."""

    async def close(self) -> None:
        """Give back what is held."""
