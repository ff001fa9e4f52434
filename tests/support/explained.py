"""The sentences of what holds a node, for tests that read them."""

from datetime import datetime

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.present_answers import BlockedNode
from services.operator_text.quantities import localized
from services.pool_manager.planner.explanation.node_explanation import (
    ALONE,
    blocked_node,
    renewal,
)
from services.pool_manager.planner.gates.proposal import Proposal


def renewal_wait(node: NodeRecord, pool: PoolRecord, now: datetime) -> str:
    """Return what the renewal of a healthy node waits for; empty: it is not to be renewed."""
    found = renewal(node, Proposal("renewal", pool, now, node))
    return localized(found.text) if found is not None else ""


def explained_node(node: NodeRecord, pool: PoolRecord, now: datetime) -> BlockedNode:
    """Return what a node waits for, as far as its pool's record says."""
    return blocked_node(node, Proposal("repair", pool, now))


def node_blocks(node: NodeRecord, pool: PoolRecord | None, now: datetime) -> tuple[str, ...]:
    """Return why automation leaves a node alone whatever its health."""
    blocked = blocked_node(
        node, Proposal("repair", pool, now) if pool is not None else None
    ).blocked
    return tuple(localized(each.text) for each in blocked if each.gate in ALONE)
