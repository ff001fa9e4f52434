"""Decides whether a saga, node or pool has settled, and whether that is how it was meant. Pure."""

from collections.abc import Sequence

import msgspec

from schemas.fleet_queries import NodeView, PoolView
from services.fleet_client.saga_progress import Progress

SETTLED_STATES = ("active", "terminated")


class WatchEnding(msgspec.Struct, frozen=True, kw_only=True):
    """Says how something that was followed has settled."""

    text: str
    ok: bool = True


def saga_ending(saga: Progress) -> WatchEnding | None:
    """Return how a saga has ended; None: it goes on. A stuck one waits for an operator."""
    match saga.status:
        case "done":
            return WatchEnding(text=f"{saga.saga} is done")
        case "unwound" | "stuck":
            because = f": {saga.reason}" if saga.reason else ""
            return WatchEnding(text=f"{saga.saga} is {saga.status}{because}", ok=False)
    return None


def node_ending(node: NodeView, saga: Progress | None) -> WatchEnding | None:
    """Return how a node has settled; None: something is under way, or is still to be done.

    `saga`: the last one that was seen about it. An unhealthy node that nothing is done about yet
    waits, and has not settled.
    """
    ended = saga_ending(saga) if saga is not None else None
    if ended is not None and not ended.ok:
        return ended
    if node.saga or (saga is not None and ended is None):
        return None
    if node.status not in SETTLED_STATES:
        return None
    if node.status == "terminated":
        return WatchEnding(text=f"{node.id} is terminated")
    if node.health not in ("healthy", "degraded") or node.lost:
        return None
    where = "cordoned" if node.cordoned else "in service"
    return WatchEnding(text=f"{node.id} is {node.health}, {where}")


def pool_ending(pool: PoolView, sagas: Sequence[Progress]) -> WatchEnding | None:
    """Return how a pool has settled: at its size, with no saga open; None: it has not yet."""
    for each in sagas:
        if each.status == "stuck":
            return saga_ending(each)
    if sagas or pool.open_sagas or pool.removing or pool.active < pool.desired or pool.unhealthy:
        return None
    return WatchEnding(
        text=f"{pool.name} has its {pool.desired} nodes, {pool.healthy} of them healthy"
    )
