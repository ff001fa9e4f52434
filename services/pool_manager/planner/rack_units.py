"""Racks as units: in a pool of such a type, sizes and budgets count racks. Pure.

A node of which the rack is not known is a unit by itself.
"""

from collections.abc import Iterable

from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.settings.provider_choices import whole_racks


def is_by_rack(record: PoolRecord) -> bool:
    """Whether a pool's racks are its units."""
    return record.spec.rack.nodes > 1


def wanted(record: PoolRecord) -> int:
    """The nodes that a pool wants: whole racks, unless others make them."""
    return (
        record.desired
        if record.spec.nodes == "adopted"
        else whole_racks(record.spec, record.desired)
    )


def units(record: PoolRecord, nodes: int) -> int:
    """How many units so many nodes are, at least: racks, or the nodes themselves."""
    return -(-nodes // max(record.spec.rack.nodes, 1))


def called(record: PoolRecord) -> str:
    """What the units are called."""
    return "racks" if is_by_rack(record) else "nodes"


def unit_of(record: PoolRecord, node: NodeRecord) -> str:
    """The unit of a node: its rack, or the node itself."""
    return f"rack {node.rack}" if is_by_rack(record) and node.rack else node.node


def unit_of_saga(opened: OpenSaga) -> str:
    """The unit of the node that a saga is about."""
    return f"rack {opened.rack}" if opened.rack else opened.node


def of_rack(nodes: Iterable[NodeRecord], rack: str) -> list[NodeRecord]:
    """A rack's nodes in service, or leaving it."""
    return [each for each in nodes if each.rack == rack and each.state in ("active", "leaving")]
