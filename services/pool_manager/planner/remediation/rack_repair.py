"""Racks that are replaced as a whole: one of their unhealthy nodes represents each. Pure.

All nodes of the rack are cordoned, drained and terminated together, the healthy ones too: their
work cannot go on without the fabric. Nothing is launched for any of them; once all are gone, the
pool lacks a rack and launches another as a whole. Budget, breaker and ramp see one node.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.fault_signature import RACK
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import cloud_notices, rack_units
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import Nodes, busy, is_gone, nodes_removed
from services.pool_manager.planner.pool_snapshot import PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation import remedy_selection
from services.pool_manager.planner.remediator import RemedyChoice
from services.pool_manager.planner.safety import rack_faults
from services.pool_manager.planner.safety.fault_evidence import is_confirmed
from services.pool_manager.planner.sizing.open_sagas import begin, with_open

Choices = dict[str, RemedyChoice]
SETTLES: Final = timedelta(seconds=3)
"""Verdicts of one fault of a rack's fabric or power come within this time of each other."""


def by_rack(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    waiting: Sequence[NodeRecord],
    choices: Choices,
    now: datetime,
) -> tuple[Sequence[NodeRecord], Choices]:
    """The waiting nodes, with one in place of each rack that is to be replaced, and the remedies.

    Left out are nodes of which it is not known yet whether their fault is their rack's.
    """
    if not rack_units.is_by_rack(record):
        return [each for each in waiting if not _settles(snapshot, record, each, now)], choices
    single: list[NodeRecord] = []
    racks: dict[str, list[NodeRecord]] = {}
    for node in waiting:
        if cloud_notices.urgent(node, record.spec, now):
            single.append(node)
        elif _leaves_with_rack(snapshot.nodes, record, node, choices[node.node]):
            racks.setdefault(node.rack, []).append(node)
        else:
            single.append(node)
    found = {
        one.node: rack
        for rack, members in racks.items()
        if (one := _representative(snapshot, record, rack, members, now)) is not None
    }
    remedies = {name: _remedy(choices[name]) for name in found}
    kept = {node.node for node in single} | found.keys()
    return [node for node in waiting if node.node in kept], {**choices, **remedies}


def rack_of(nodes: Nodes, record: PoolRecord, node: NodeRecord, choice: RemedyChoice) -> str:
    """The rack that is replaced when this node is; empty: the node alone is acted on."""
    replaces = choice.remedy == "replace" and not cloud_notices.taken_reason(node)
    return node.rack if replaces and _leaves_with_rack(nodes, record, node, choice) else ""


def start(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    node: NodeRecord,
    choice: RemedyChoice,
    now: datetime,
) -> tuple[dict[str, OpenSaga], PoolRecord]:
    """Begin a node's remedy, or the replacement of its rack: the sagas, and the record."""
    rack = rack_of(snapshot.nodes, record, node, choice)
    if not rack:
        saga, opened, record = remedy_selection.start_remediation(
            snapshot, record, node, choice, now
        )
        return {saga: opened}, record
    taken = busy(record)
    whole = rack_units.of_rack(snapshot.nodes, rack)
    free = [each for each in whole if each.node not in taken and each.state == "active"]
    started: dict[str, OpenSaga] = {}
    for each in sorted(free, key=lambda one: (one.node != node.node, one.node)):
        saga, opened, record = begin(
            snapshot.fleet, record, "replace", now, node=each, with_rack=True
        )
        started[saga] = msgspec.structs.replace(
            opened,
            reason=f"{_reason(record, node)}; rack {rack} is replaced as a whole",
            action=node.health_action,
            fault=node.health_fault,
            fault_signature=RACK,
            trace=node.health_trace,
        )
        record = with_open(record, saga, started[saga])
    replaced = {**record.replaced_racks, rack: now}
    return started, msgspec.structs.replace(record, replaced_racks=replaced)


def next_moment(record: PoolRecord, nodes: Nodes, now: datetime) -> datetime | None:
    """Return when it is next decided whether a fault is a rack's."""
    soonest: datetime | None = None
    for node in () if rack_units.is_by_rack(record) else nodes.needs_attention:
        if node.rack and node.health == "unhealthy" and node.health_at is not None:
            soonest = earlier(soonest, to_come(node.health_at + SETTLES, now))
    return soonest


def _settles(snapshot: PoolSnapshot, record: PoolRecord, node: NodeRecord, now: datetime) -> bool:
    """Return whether more of a node's rack may have its fault in a moment: it is cordoned."""
    if not node.rack or node.health != "unhealthy" or node.health_at is None:
        return False
    shared = snapshot.nodes.shares("rack")[node.rack] >= record.spec.health.incident.nodes
    urgent = cloud_notices.urgent(node, record.spec, now) or is_gone(node)
    return shared and not urgent and now < node.health_at + SETTLES


# --- parts ---------------------------------------------------------------------------------------


def _leaves_with_rack(
    nodes: Nodes, record: PoolRecord, node: NodeRecord, choice: RemedyChoice
) -> bool:
    """Whether a node is acted on only with its rack."""
    if not rack_units.is_by_rack(record):
        return False
    if not rack_units.is_rack(record, node.rack, nodes.racks):
        return False
    if rack_faults.incident_of(record, node.rack) is not None:
        return node.health == "unhealthy" or node.lost
    return record.spec.rack.replace == "rack" and choice.remedy == "replace"


def _representative(
    snapshot: PoolSnapshot,
    record: PoolRecord,
    rack: str,
    members: Sequence[NodeRecord],
    now: datetime,
) -> NodeRecord | None:
    """The node that represents its rack; None: the rack has to wait."""
    staying = busy(record) - nodes_removed(record)
    for each in rack_units.of_rack(snapshot.nodes, rack):
        # What is under way and keeps its node ends soon; then the whole rack can go.
        held = gate_table.first(Proposal("rack", record, now, each))
        if each.node in staying or held is not None:
            return None
    return min(members, key=lambda each: not is_confirmed(each, snapshot.health.get(each.node)))


def _remedy(choice: RemedyChoice) -> RemedyChoice:
    """What is done about a rack: what operators keep for themselves stays theirs."""
    if choice.remedy in ("alert", "inspect"):
        return choice
    return RemedyChoice(remedy="replace")


def _reason(record: PoolRecord, node: NodeRecord) -> str:
    incident = rack_faults.incident_of(record, node.rack)
    why = node.health_reason or node.health
    if incident is None:
        return f"{node.node}: {why}"
    return f"{incident.nodes} nodes with faults of the fabric at once; {node.node}: {why}"
