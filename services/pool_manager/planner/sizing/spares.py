"""Hot spares: admitted nodes that are kept cordoned, ready to take a node's place. Pure.

A pool's size and its reserve are counted apart. A spare goes into service by an uncordon alone, so
that a replacement takes seconds; the node that is launched meanwhile becomes the new spare.
"""

from datetime import datetime

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import Nodes, busy, is_gone, nodes_removed


def reserve(record: PoolRecord, nodes: Nodes) -> int:
    """Return how many spares the pool will have when what is open has come to its end."""
    opened = record.open.values()
    promoted = {each.promotes for each in opened if each.promotes}
    coming = {each.new_node for each in opened if each.new_node and each.spare}
    present = {node.node for node in nodes.spares} | coming
    return len(present - nodes_removed(record) - promoted)


def ready(record: PoolRecord, nodes: Nodes, now: datetime) -> list[NodeRecord]:
    """Spares that may take a place now, the longest proven first."""
    if not nodes.spares:
        return []
    taken = busy(record)
    found = [
        node
        for node in nodes.spares
        if node.state == "active"
        and node.health in ("healthy", "unknown")
        and not node.lost
        and cloud_notices.current_notice(node) is None
        and node.node not in taken
        and gate_table.first(Proposal("spare", record, now, node)) is None
    ]
    return sorted(found, key=lambda node: (node.health != "healthy", _since(node, now), node.node))


def substitute(record: PoolRecord, nodes: Nodes, node: NodeRecord, now: datetime) -> str:
    """The spare that takes a node's place; empty: there is none, or it is a spare itself."""
    if node.spare:
        return ""
    found = ready(record, nodes, now)
    return found[0].node if found else ""


def perhaps_in_use(record: PoolRecord, nodes: Nodes) -> list[tuple[datetime, NodeRecord]]:
    """Spares that the workload system may use, as their promotion has no known result.

    With when that ended, or when they could last not be cordoned again.
    """
    found = [
        (node.promotion_unknown_at, node)
        for node in nodes.spares
        if node.promotion_unknown_at is not None and node.state == "active"
    ]
    taken = busy(record) if found else frozenset()
    return [
        (at, node)
        for at, node in found
        if not (node.lost or is_gone(node)) and node.node not in taken
    ]


def covered(
    record: PoolRecord, nodes: Nodes, waiting: list[NodeRecord], now: datetime
) -> list[NodeRecord]:
    """Return the nodes waiting to be replaced for which a spare is ready."""
    serving = [node for node in waiting if not node.spare]
    return serving[: len(ready(record, nodes, now))]


def _since(node: NodeRecord, now: datetime) -> datetime:
    return node.admitted_at or now
