"""Computes how many nodes the waiting jobs need, each with all of its nodes or not at all. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from services.pool_manager.autoscaling.metrics_sources import WaitingJobs

GANGS_MAX: Final = 100
"""Jobs of several nodes whose sizes are kept: as many as a pool's nodes in one place can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """Says what can be done for the jobs that wait."""

    nodes: int = 0
    """That they need."""
    jobs: int = 0
    """That these nodes are for."""
    gangs: tuple[int, ...] = ()
    """How many nodes each of the first jobs of several nodes needs, in their order."""
    without_room: int = 0
    """Jobs for which the pool's limit leaves no room now."""
    too_large: int = 0
    """Jobs that the pool could not run with all of its nodes."""


def demand_of(
    waiting: Sequence[WaitingJobs],
    *,
    gpus_per_node: int,
    jobs_per_node: float,
    room: int,
    nodes_max: int,
) -> QueueDemand:
    """Serve the jobs in their order, up to `room` nodes.

    A job of several nodes needs them whole. One whose parts may share nodes needs as many as its
    parts fill, and shares the node if that is one. Jobs on a part of one node share nodes: by their
    GPUs, or `jobs_per_node` to a node if they state none. `gpus_per_node` 0: unknown, so a job, or
    a part of one, that states GPUs needs a whole node.
    """
    packing = _Packing(gpus_per_node, room)
    served = late = too_large = 0
    small = 0
    gangs: list[int] = []
    for each in (_packed(found, gpus_per_node, nodes_max) for found in waiting):
        if each.nodes > nodes_max or (gpus_per_node and each.gpus > gpus_per_node):
            too_large += each.count
        elif each.nodes == 1 and not each.gpus:
            small += each.count
        else:
            placed = packing.place(each)
            served += placed
            if each.nodes > 1:
                gangs += [each.nodes] * min(placed, GANGS_MAX - len(gangs))
            late += each.count - placed
    placed = packing.place_small(small, jobs_per_node)
    return QueueDemand(
        nodes=packing.nodes,
        jobs=served + placed,
        gangs=tuple(gangs),
        without_room=late + small - placed,
        too_large=too_large,
    )


def _packed(jobs: WaitingJobs, gpus_per_node: int, nodes_max: int) -> WaitingJobs:
    """Return what the parts of a job need of nodes with so many GPUs: the largest parts first."""
    sizes = {gpus: count for gpus, count in jobs.parts.items() if count}
    if not sizes or not 0 < max(sizes) <= gpus_per_node:
        return jobs
    if sum(sizes.values()) > nodes_max * gpus_per_node:
        return replace(jobs, nodes=nodes_max + 1)
    parts = [gpus for gpus in sorted(sizes, reverse=True) for _ in range(sizes[gpus])]
    left: Counter[int] = Counter()
    for part in parts:
        free = min((each for each, nodes in left.items() if nodes and each >= part), default=0)
        left[free or gpus_per_node] -= 1 if free else 0
        left[(free or gpus_per_node) - part] += 1
    nodes = left.total()
    return replace(jobs, nodes=nodes, gpus=sum(parts) if nodes == 1 else gpus_per_node, parts={})


class _Packing:
    """Nodes that are needed so far, and the GPUs that are left on them."""

    def __init__(self, gpus_per_node: int, room: int) -> None:
        self.nodes = 0
        self._gpus = gpus_per_node
        self._room = max(room, 0)
        self._left: Counter[int] = Counter()
        """GPUs left on a node -> such nodes."""

    def place(self, jobs: WaitingJobs) -> int:
        """How many of these jobs have a place now."""
        share = jobs.gpus if jobs.nodes == 1 and self._gpus else self._gpus
        if not share or share == self._gpus:
            placed = min(jobs.count, (self._room - self.nodes) // jobs.nodes)
            self.nodes += placed * jobs.nodes
            return placed
        wanted = jobs.count
        for left in sorted(each for each in self._left if each >= share):
            wanted -= self._fill(left, self._left[left], share, wanted)
        new = min(self._room - self.nodes, math.ceil(wanted / (self._gpus // share)))
        self.nodes += new
        self._left[self._gpus] += new
        return jobs.count - wanted + self._fill(self._gpus, new, share, wanted)

    def _fill(self, left: int, nodes: int, share: int, wanted: int) -> int:
        """Place up to `wanted` jobs of `share` GPUs on `nodes` that have `left` of them."""
        each = left // share
        full, rest = divmod(min(wanted, nodes * each), each)
        self._move(left, left - each * share, full)
        if rest:
            self._move(left, left - rest * share, 1)
        return full * each + rest

    def _move(self, before: int, after: int, nodes: int) -> None:
        self._left[before] -= nodes
        self._left[after] += nodes

    def place_small(self, count: int, jobs_per_node: float) -> int:
        """Place jobs that state nothing."""
        placed = min(count, math.floor((self._room - self.nodes) * jobs_per_node))
        self.nodes += math.ceil(placed / jobs_per_node)
        return placed
