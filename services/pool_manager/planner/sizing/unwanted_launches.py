"""Chooses the launches that a smaller pool gives up before any node in service leaves. Pure.

A launch that is called off counts no longer towards the size. The pool-manager then unwinds its
saga, before the provider is asked where that is still possible. The launches of a gang are given up
together, and what is still wanted of them is launched as a smaller gang.
"""

from typing import Final

import msgspec

from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import rack_units
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.sizing import on_demand_floor, workload_names
from services.saga.definitions import DEFINITIONS

BOOTING: Final = ("launching", "registered")
"""States of a node that is not in service yet, in their order."""
BRIEF: Final = frozenset({"quarantine", "recheck"})
"""Kinds of sagas that end within minutes and after which a node may be one to leave first."""


def call_off(
    record: PoolRecord, nodes: Nodes, surplus: int, reason: str, *, spare: bool = False
) -> PoolRecord:
    """Return the record without as many launches as are too many, those that made least first."""
    groups = _groups(record, nodes, spare=spare)
    left = surplus
    for group in sorted(groups, key=lambda each: _progress(record, nodes, each)):
        if left <= 0:
            break
        if rack_units.is_by_rack(record) and len(group) > left:
            continue
        firm = any(record.open[saga].not_spot for saga in group)
        if firm and on_demand_floor.expected(record, nodes) <= on_demand_floor.required(record):
            continue
        left -= len(group)
        record = _marked(record, group, reason)
    return record


def taken_up(record: PoolRecord, nodes: Nodes, gap: int) -> PoolRecord:
    """Return the record that counts those again that are in service, or wanted and not begun."""
    found: dict[str, OpenSaga] = {}
    for saga, each in record.open.items():
        if not each.called_off:
            continue
        came = nodes.by_name.get(each.new_node)
        waits = came is None and each.kind == "replace" and each.node in nodes.by_name
        if (came is not None and came.state not in BOOTING) or (waits and len(found) < gap):
            found[saga] = msgspec.structs.replace(each, called_off="")
    return msgspec.structs.replace(record, open={**record.open, **found}) if found else record


def call_off_names(record: PoolRecord) -> PoolRecord:
    """Return the record without the launches of nodes whose names are not wanted any more."""
    names = set(workload_names.wanted(record))
    found = [
        saga
        for saga, each in record.open.items()
        if each.kind == "scale-up" and each.workload_name not in names and not each.called_off
    ]
    reason = f"pool {record.name} is being removed" if record.removing else "its name was suspended"
    return _marked(record, found, reason) if found else record


def pending(record: PoolRecord, nodes: Nodes, *, spare: bool = False) -> int:
    """Count the nodes that may be first to leave once the saga that is about them has ended.

    They are out of service, or have just come, and no node in service leaves in their place.
    """
    if record.removing or rack_units.is_by_rack(record):
        return 0
    found: set[str] = set()
    for each in record.open.values():
        if each.called_off or DEFINITIONS[each.kind].removes_node:
            continue
        repaired = DEFINITIONS[each.kind].in_place or each.kind in BRIEF
        name = each.node if repaired and not each.cause else each.new_node
        node = nodes.by_name.get(name)
        if node is not None and node.spare == spare:
            found.add(name)
    return len(found)


def _groups(record: PoolRecord, nodes: Nodes, *, spare: bool) -> list[list[str]]:
    """The open launches that can be given up, those of one gang together."""
    found: dict[str, list[str]] = {}
    for saga, each in record.open.items():
        node = nodes.by_name.get(each.new_node)
        there = node is not None and node.state not in BOOTING
        # A pool by racks replaces a rack as a whole, or not at all.
        fixed = rack_units.is_by_rack(record) and each.kind != "scale-up"
        if each.new_node and each.spare == spare and not (there or fixed or each.called_off):
            found.setdefault(each.gang or saga, []).append(saga)
    return list(found.values())


def _progress(record: PoolRecord, nodes: Nodes, group: list[str]) -> tuple[bool, int, bool, int]:
    """Rank a group of launches by how far it has come: what has cost the least goes first."""
    opened = [record.open[saga] for saga in group]
    known = [nodes.by_name.get(each.new_node) for each in opened]
    stage = max(BOOTING.index(node.state) + 1 if node is not None else 0 for node in known)
    firm = any(each.not_spot for each in opened)
    return (
        firm,
        stage,
        any(each.kind == "replace" for each in opened),
        -list(record.open).index(group[0]),
    )


def _marked(record: PoolRecord, sagas: list[str], reason: str) -> PoolRecord:
    def marked(opened: OpenSaga) -> OpenSaga:
        return msgspec.structs.replace(opened, called_off=reason)

    changed = {saga: marked(record.open[saga]) for saga in sagas}
    return msgspec.structs.replace(record, open={**record.open, **changed})
