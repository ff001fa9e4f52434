"""Decides when faults of several nodes have a common cause: the statistics of incidents. Pure.

The health-monitor groups faults that make no node unhealthy, the pool-manager unhealthy and silent
nodes. Both decide by the same two questions: are there enough nodes, and are so many of them in one
part of the pool that chance would hardly give it?
"""

import math
from typing import Final

from schemas.settings import IncidentSpec

WHOLE_GROUP_NODES: Final = 3
"""From this size on, a group of which every node is affected is enough, however small it is."""


def nodes_needed(spec: IncidentSpec, size: int) -> int:
    """Return how many nodes of a group of `size` make one incident; `size` 0: it is not known."""
    needed = max(spec.nodes, share_of(spec, size))
    return min(needed, size) if size >= WHOLE_GROUP_NODES else needed


def share_of(spec: IncidentSpec, size: int) -> int:
    """Return `percent` of a group, in nodes."""
    return math.ceil(size * spec.percent / 100 - 1e-9)


def is_set_apart(inside: int, outside: int, share: float, chance: float) -> bool:
    """Return whether a group has more affected nodes than chance gives it (Chernoff's bound).

    `inside` and `outside`: affected nodes in the group and elsewhere; `share`: of the pool's nodes
    that are in the group; `chance`: the probability below which it is no coincidence.
    """
    total = inside + outside
    part = inside / total
    if part <= share:
        return False
    nats = part * math.log(part / share)
    if part < 1:
        nats += (1 - part) * math.log((1 - part) / (1 - share))
    return total * nats >= -math.log(chance)
