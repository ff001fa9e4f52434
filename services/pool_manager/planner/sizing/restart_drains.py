"""Begins to drain nodes that the cloud is about to restart, or that end with their capacity. Pure.

The cloud does not wait for the budget, so neither does the drain, which counts in that of nodes
without a fault. The notices of a node whose notices come and go wait for that one. The node is not
replaced: once it has restarted and its boot checks have passed, `withdrawn_notices.py` gives it
back.
"""

from dataclasses import replace
from datetime import datetime

import msgspec

from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import announced_restarts, cloud_notices, shared_ends
from services.pool_manager.planner.disruption_budget import allowance, with_counted
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.open_sagas import (
    begin,
    room_for_announced,
    units_of_texts,
    with_open,
)


def drain_ahead(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
    """Begin the drains that are due."""
    for node, name, notice in _due(begun.record, snapshot, now):
        if room_for_announced(begun.record) < units_of_texts(notice.reason, name):
            break
        if (cloud_notices.doubted_until(node) or now) > now:
            left = allowance(begun.record, snapshot.nodes, snapshot.others, now)
            if left.for_no_fault().refusal(cordoned=False):
                continue
        saga, opened, record = begin(snapshot.fleet, begun.record, "drain", now, node=node)
        opened = msgspec.structs.replace(
            opened, notice=name, sole_notice=name, reason=notice.reason, action="none"
        )
        record = with_open(record, saga, opened)
        record = with_counted(record, snapshot.fleet_window, now, {saga: opened})
        begun = replace(begun, record=record, start={**begun.start, saga: record.open[saga]})
    return begun


def _due(
    record: PoolRecord, snapshot: PoolSnapshot, now: datetime
) -> list[tuple[NodeRecord, str, CloudNotice]]:
    """Nodes in service that a restart interrupts soon, and its notice; the first one first."""
    taken, found = busy(record), []
    for node in snapshot.nodes.needs_attention:
        awaited = announced_restarts.awaited_restart(node, now) or shared_ends.stays_until(
            node, record
        )
        if awaited is None:
            continue
        well = node.health != "unhealthy" and not node.lost
        serves = node.state == "active" and not node.cordoned and node.node not in taken
        at = announced_restarts.drain_at(awaited[1], record.spec)
        due = serves and well and now >= at
        if due and gate_table.first(Proposal("restart-drain", record, now, node)) is None:
            found.append((at, node, *awaited))
    found.sort(key=lambda each: (each[0], each[1].node))
    return [(node, name, notice) for _, node, name, notice in found]
