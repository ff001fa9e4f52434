"""What keeps a pool-manager from acting on a node or a pool, in sentences. Pure.

Read from the records alone: holds, a pool that only observes, and its spares.
"""

from collections.abc import Iterable
from typing import Final

from schemas.records import NodeRecord, PoolRecord

WOULD_NAMED_MAX: Final = 10


def node_kept(node: NodeRecord, pool: PoolRecord | None) -> tuple[str, ...]:
    """Why nothing automatic is done about a node whatever it has."""
    told: list[str] = []
    if node.held_until is not None and node.state != "terminated":
        by = f" by {node.held_by}" if node.held_by else ""
        told.append(
            f"It is held until {node.held_until.astimezone():%m-%d %H:%M}{by}: {node.held_reason}. "
            f"To end it: navarch release {node.node}"
        )
    if pool is not None and pool.spec.mode == "observe":
        would = [each for each in pool.would.values() if each.node == node.node]
        told += [f"Its pool only observes: it would begin {each.kind}." for each in would] or [
            "Its pool only observes, so nothing is done about it."
        ]
    return tuple(told)


def pool_kept(pool: PoolRecord) -> tuple[str, ...]:
    """What a pool that only observes would have begun."""
    if pool.spec.mode != "observe":
        return ()
    would = list(pool.would.values())
    told = [
        f"It would begin {each.kind} of {each.node or f'{each.nodes} nodes'}: {each.reason}."
        for each in would[:WOULD_NAMED_MAX]
    ]
    more = len(would) - len(told)
    if more > 0:
        told.append(f"{more} more: navarch status -o json")
    return ("It only observes (mode: observe): nothing is begun.", *told)


def reserve_told(pool: PoolRecord, nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """A pool's spares, where it has or wants some."""
    spares = [node for node in nodes if node.spare and node.state != "terminated"]
    if not spares and not pool.spec.spares:
        return ()
    ready = sorted(
        node.node
        for node in spares
        if node.state == "active" and node.health == "healthy" and not node.lost
    )
    named = f": {', '.join(ready[:WOULD_NAMED_MAX])}" if ready else ""
    return (f"It wants {pool.spec.spares} spares, and {len(ready)} are ready{named}.",)
