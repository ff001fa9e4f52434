"""Whether a node may be taken out of service now, whatever it has: holds, windows, modes. Pure.

It is the first gate: what is kept here is never asked about remedy, breaker or budget.
"""

from datetime import datetime
from typing import Final

from schemas.enums import Refusal
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot, earlier, to_come
from services.pool_manager.planner.safety import maintenance_windows
from services.pool_manager.planner.unhealthy_nodes import given_up_at, remediation_reason
from services.saga.definitions import ON_REQUEST

SPARES_REFUSE: Final = ("uncordon", "drain", "reset-gpu", "reboot", "terminate")
"""Requests that make no sense of a spare."""


def blocked_reason(
    node: NodeRecord, record: PoolRecord, now: datetime, *, can_wait: bool = False
) -> str:
    """Why nothing automatic may take this node out of service now; empty where it may.

    `can_wait`: it is work that a service window was made for, such as what a degraded node needs.
    """
    if is_held(node, now):
        return f"{node.node} is held {describe_hold(node)}"
    frozen = maintenance_windows.opening(record.spec.windows, "freeze", now)
    # On a silent node nothing can be disturbed any more, and what the cloud takes it takes.
    gone = node.lost or cloud_notices.urgent(node, record.spec, now)
    if frozen is not None and not gone:
        return (
            f"the window {frozen.window.name} keeps it as it is until {frozen.end:%m-%d %H:%M} UTC"
        )
    if can_wait and not may_begin_deferred(record, now):
        coming = maintenance_windows.next_opening(record.spec.windows, "service", now)
        when = f", next at {coming.start:%m-%d %H:%M} UTC" if coming else ""
        return f"it can wait for a service window{when}"
    return ""


def is_held(node: NodeRecord, now: datetime) -> bool:
    """Whether an operator holds the node."""
    return node.held_until is not None and now < node.held_until


def describe_hold(node: NodeRecord) -> str:
    """A hold in words."""
    assert node.held_until is not None
    by = f" by {node.held_by}" if node.held_by else ""
    return f"until {node.held_until:%m-%d %H:%M} UTC{by}: {node.held_reason}"


def may_begin_deferred(record: PoolRecord, now: datetime) -> bool:
    """Whether work that can wait may begin: a service window is open, or the pool has none."""
    spec = record.spec
    if not any(window.kind == "service" for window in spec.windows):
        return True
    return maintenance_windows.opening(spec.windows, "service", now) is not None


def next_change(snapshot: PoolSnapshot, now: datetime) -> datetime | None:
    """When the next hold ends, or a window opens or closes."""
    soonest = maintenance_windows.next_edge(snapshot.record.spec.windows, now)
    for node in snapshot.nodes.needs_attention:
        if is_held(node, now):
            soonest = earlier(soonest, node.held_until)
    return soonest


def next_loss(record: PoolRecord, nodes: Nodes, now: datetime) -> datetime | None:
    """When the next silent node becomes a lost one."""
    soonest: datetime | None = None
    for node in nodes.needs_attention:
        due = given_up_at(node, record)
        if due is not None and not remediation_reason(node, record, now):
            soonest = earlier(soonest, to_come(due, now))
    return soonest


def released(snapshot: PoolSnapshot, now: datetime) -> tuple[NodeRecord, ...]:
    """Nodes whose hold has come to its end."""
    return tuple(
        node
        for node in snapshot.nodes.needs_attention
        if node.held_until is not None and not is_held(node, now)
    )


def refusal(
    verb: str, node: NodeRecord, record: PoolRecord, now: datetime
) -> tuple[Refusal, str] | None:
    """Why what a person asks of a node is refused; None where it is not."""
    requested = ON_REQUEST.get(verb)
    if requested is not None and record.spec.mode == "observe":
        return "observing", (
            f"pool {record.name} has mode: observe, in which nothing is touched; set mode: act for "
            "the pool and the fleet, restart the pool-manager, and ask again"
        )
    disrupts = requested is not None and (requested.disrupts or requested.removes_node)
    if disrupts and is_held(node, now):
        return "held", (
            f"{node.node} is held {describe_hold(node)}; first: navarch release {node.node}"
        )
    if verb == "replace" and record.spec.nodes == "enrolled":
        return "wrong-state", (
            f"nothing makes another machine in place of {node.node}, which joined the fleet: drain "
            f"it (navarch drain {node.node}), or take it out (navarch leave {node.node})"
        )
    if node.spare and verb in SPARES_REFUSE:
        return "wrong-state", (
            f"{node.node} is a spare, cordoned in reserve: it goes into service when a node is "
            f"replaced or the pool grows (navarch scale {record.name}); navarch replace "
            f"{node.node} renews it"
        )
    return None
