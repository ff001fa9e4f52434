"""Racks as units: in a pool of such a type, sizes and budgets count racks. Pure.

A node of which the rack is not known is a unit by itself, and so is one of what is no rack: clouds
also call partitions and fault domains so, which have many more nodes.
"""

from collections.abc import Iterable, Mapping

from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.settings.provider_choices import whole_racks

Racks = Mapping[str, int]
"""Rack -> how many nodes of the pool are in it."""


def is_by_rack(record: PoolRecord) -> bool:
    """Return whether a pool's racks are its units."""
    return record.spec.rack.nodes > 1


def wanted(record: PoolRecord) -> int:
    """The nodes that a pool wants: whole racks, unless others make them."""
    return (
        record.desired
        if record.spec.nodes != "launched"
        else whole_racks(record.spec, record.desired)
    )


def units(record: PoolRecord, nodes: int) -> int:
    """Return how many units so many nodes are, at least: racks, or the nodes themselves."""
    return -(-nodes // max(record.spec.rack.nodes, 1))


def called(record: PoolRecord) -> str:
    """Return the name of the units: racks or nodes."""
    return "racks" if is_by_rack(record) else "nodes"


def is_rack(record: PoolRecord, rack: str, there: Racks) -> bool:
    """Return whether a rack is one: not where more nodes name it than a rack has."""
    return is_by_rack(record) and bool(rack) and there.get(rack, 0) <= record.spec.rack.nodes


def unit_of(record: PoolRecord, node: NodeRecord, there: Racks) -> str:
    """Return the unit of a node: its rack, or the node itself."""
    return f"rack {node.rack}" if is_rack(record, node.rack, there) else node.node


def unit_of_saga(record: PoolRecord, opened: OpenSaga, there: Racks) -> str:
    """The unit of the node that a saga is about."""
    return f"rack {opened.rack}" if is_rack(record, opened.rack, there) else opened.node


def disagreements(nodes: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return where operators' racks differ from the NVLink domains of GPUs: at most one of each."""
    racks: dict[str, dict[str, str]] = {}
    domains: dict[str, dict[str, str]] = {}
    for node in nodes:
        if node.nvlink_domain:
            racks.setdefault(node.rack, {})[node.nvlink_domain] = node.node
            domains.setdefault(node.nvlink_domain, {})[node.rack] = node.node
    return tuple(
        f"{whole} {name} is {len(parts)} {part}s: {_first_two(parts)}; unset NAVARCH_RACK on its "
        "hosts, or set it to the same on all hosts of one NVLink domain, and on no others"
        for whole, part, found in (
            ("rack", "NVLink domain", racks),
            ("NVLink domain", "rack", domains),
        )
        for name, parts in [each for each in sorted(found.items()) if len(each[1]) > 1][:1]
    )


def _first_two(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{node} is in {part}" for part, node in sorted(parts.items())[:2])


def of_rack(nodes: Iterable[NodeRecord], rack: str) -> list[NodeRecord]:
    """A rack's nodes in service, or leaving it."""
    return [each for each in nodes if each.rack == rack and each.state in ("active", "leaving")]
