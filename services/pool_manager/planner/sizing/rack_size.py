"""Bringing a pool to size by whole racks, where racks are its units. Pure.

A size is rounded up to whole racks. Racks are launched one at a time, each as a gang; what single
nodes are missing in racks is launched as such, unless single nodes cannot be replaced. What leaves
leaves by racks, and a rack that is not whole before one that is.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from schemas.fault_signature import RACK
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import Nodes, size, units_out
from services.pool_manager.planner.sizing import gang_launches
from services.pool_manager.planner.sizing.open_sagas import room_for_launches


def gap(record: PoolRecord, nodes: Nodes) -> int:
    """Nodes that are missing; below zero: there are too many."""
    return rack_units.wanted(record) - size(record, nodes)


def next_gang(record: PoolRecord, missing: int) -> int:
    """Return how many nodes to launch together now; 0: none.

    Nothing is launched while a rack leaves as a whole: its place may be the only one.
    """
    leaving = any(each.fault_signature == RACK for each in record.open.values())
    if missing <= 0 or leaving or gang_launches.is_forming(record):
        return 0
    rack = record.spec.rack.nodes
    whole = record.replaced_racks or record.spec.rack.replace == "rack" or missing >= rack
    launched = rack if whole else missing
    return 0 if launched > room_for_launches(record) else launched


def settled(record: PoolRecord, nodes: Nodes) -> PoolRecord:
    """The record without the replaced racks in whose place the pool has another in service."""
    if not record.replaced_racks:
        return record
    out = units_out(record, nodes)
    left = {rack: at for rack, at in record.replaced_racks.items() if f"rack {rack}" in out}
    gone = [rack for rack in record.replaced_racks if rack not in left]
    missing = rack_units.units(record, max(0, gap(record, nodes)))
    coming = missing + len({each.gang for each in record.open.values() if each.gang})
    kept = {rack: record.replaced_racks[rack] for rack in gone[max(0, len(gone) - coming) :]}
    if len(left) + len(kept) == len(record.replaced_racks):
        return record
    return msgspec.structs.replace(record, replaced_racks={**left, **kept})


def leaving(
    record: PoolRecord,
    nodes: Nodes,
    free: Sequence[NodeRecord],
    surplus: int,
) -> list[NodeRecord]:
    """The nodes that leave of `free` ones, at most `surplus`: never a part of a whole rack.

    `free`: the least useful first; of racks the one first whose most useful node comes first.
    What a new rack makes superfluous stays until that rack is in service.
    """
    if gang_launches.is_forming(record):
        return []
    racks = nodes.racks
    there = Counter(rack_units.unit_of(record, node, racks) for node in nodes)
    groups: dict[str, list[NodeRecord]] = {}
    for node in free:
        groups.setdefault(rack_units.unit_of(record, node, racks), []).append(node)
    entire = {unit: found for unit, found in groups.items() if len(found) == there[unit]}

    def is_whole(unit: str) -> bool:
        return there[unit] >= record.spec.rack.nodes

    place = {node.node: number for number, node in enumerate(free)}
    found: list[NodeRecord] = []
    for unit in sorted(entire, key=lambda each: (is_whole(each), place[entire[each][-1].node])):
        if len(entire[unit]) <= surplus - len(found):
            found += entire[unit]
    # What is left is less than any rack: it can only be of one that is not whole already.
    parts = [
        unit
        for unit in sorted(groups, key=lambda each: (there[each], each))
        if not is_whole(unit) and groups[unit][0] not in found
    ]
    if not found and parts:
        found = groups[parts[0]][:surplus]
    return found
