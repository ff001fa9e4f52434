"""Decides which quarantined nodes are tested, and uncordoned if the test passes. Pure.

In a wave the same fault shows on many nodes: a bad driver or agent writes it to every kernel log.
Of the nodes that only the log accuses each is tested once the incident's hold has passed, while it
is quarantined: XID 79 by NVML, which must see every GPU and get its answers, any other fault by
`dcgm` at level 1 as well. A test that cannot run has not passed. What NVML or a diagnostic reports
is evidence against the node, and it is never tested. A node is tested a few times a day at most, so
that one that shows the fault again and again stays quarantined.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from schemas.breaker_state import OpenIncident
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import PoolSnapshot, earlier, to_come
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.safety.fault_evidence import KERNEL_LOG_KINDS, is_confirmed
from services.pool_manager.planner.safety.fault_waves import (
    UnhealthyNode,
    belongs,
    fault_signature,
)

TESTS_MAX: Final = 3
"""Of one node within WINDOW."""
WINDOW: Final = timedelta(days=1)
PAUSE: Final = timedelta(minutes=10)
"""Between two tests of one node."""
LOST_GPU: Final = "xid-79"
"""The fault that NVML alone disproves: it sees the GPU and gets its answers."""


def diagnostic_of(signature: str) -> str:
    """The test that a node must pass that is accused of a fault."""
    return "boot" if signature == LOST_GPU else "dcgm-1"


def is_unconfirmed(
    snapshot: PoolSnapshot, held: Mapping[str, OpenIncident], node: NodeRecord
) -> bool:
    """Return whether a held incident explains the node, and nothing else is known against it."""
    if not held or node.health_at is None or is_confirmed(node, snapshot.health.get(node.node)):
        return False
    unhealthy = UnhealthyNode(node=node, what=fault_signature(node), since=node.health_at)
    return any(belongs(unhealthy, what, each) for what, each in held.items())


def testable(snapshot: PoolSnapshot, record: PoolRecord, now: datetime) -> list[NodeRecord]:
    """The nodes to test now."""
    held = incidents.holding(record)
    if not held or gate_table.first(Proposal("recheck", record, now)) is not None:
        return []
    taken = busy(record)
    return [
        node
        for node in snapshot.nodes.needs_attention
        if node.node not in taken
        and _is_accused_by_its_log(record, node, now)
        and is_unconfirmed(snapshot, held, node)
        and _due(node, now) == now
    ]


def next_test(snapshot: PoolSnapshot, record: PoolRecord, now: datetime) -> datetime | None:
    """Return when a node that was tested may be tested again."""
    soonest: datetime | None = None
    if incidents.holding(record):
        for node in snapshot.nodes.needs_attention:
            if _is_accused_by_its_log(record, node, now) and node.tests:
                soonest = earlier(soonest, to_come(_due(node, now), now))
    return soonest


def _is_accused_by_its_log(record: PoolRecord, node: NodeRecord, now: datetime) -> bool:
    quarantine = node.quarantine
    return (
        node.is_quarantined
        and quarantine is not None
        and quarantine.failed_at is None
        and node.state == "active"
        and node.health == "unhealthy"
        and not node.health_drill
        and node.health_kind in KERNEL_LOG_KINDS
        and bool(node.gpus)
        and not node.lost
        and not node.spare
        and cloud_notices.current_notice(node) is None
        and not (node.workload is not None and node.workload.cordoned)
        and gate_table.first(Proposal("recheck", record, now, node)) is None
    )


def _due(node: NodeRecord, now: datetime) -> datetime:
    """When it may be tested: now, or later."""
    if not node.tests:
        return now
    due = node.tests[-1] + PAUSE
    if len(node.tests) >= TESTS_MAX:
        due = max(due, node.tests[-TESTS_MAX] + WINDOW)
    return max(due, now)


def opened_reason(node: NodeRecord) -> str:
    """Return why a node is tested, for operators."""
    test = "NVML answers for all GPUs"
    if diagnostic_of(fault_signature(node)) != "boot":
        test += " and dcgm at level 1 passes"
    accused = node.health_reason or "unhealthy"
    return f"only the kernel log reports it: {accused}; in service again if {test}"
