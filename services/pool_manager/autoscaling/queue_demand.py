"""How many nodes the waiting jobs need, each with all of its nodes or not at all. Pure."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.pool_manager.autoscaling.metrics_sources import WaitingJobs

GANGS_MAX: Final = 100
"""Jobs of several nodes whose sizes are kept: as many as a pool's nodes in one place can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDemand:
    """What can be done for the jobs that wait."""

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

    A job of several nodes needs them whole. Jobs on a part of one node share nodes: by their GPUs,
    or `jobs_per_node` to a node if they state none. `gpus_per_node` 0: unknown, so a job that
    states GPUs needs a whole node.
    """
    packing = _Packing(gpus_per_node, room)
    served = late = too_large = 0
    small = 0
    gangs: list[int] = []
    for each in waiting:
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
