"""Decides whether a node has work, by what its agent and its workload system report. Pure.

A job that loads its data, or waits for others of its job, uses no GPU: so a node is idle only where
its GPUs have rested for some minutes and the workload system says that nothing runs there. What was
drained gets no work before it is uncordoned.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

from schemas.node_records import NodeRecord
from services.pool_manager.planner.pool_snapshot import NodeUse

IDLE_MIN: Final = timedelta(minutes=5)
"""A node whose GPUs have rested for less may be between two steps of a job."""


def use_of(
    node: NodeRecord, use: Mapping[str, NodeUse] | None, now: datetime
) -> Literal["idle", "unknown", "busy"]:
    """Return whether a node has work; `use`: by node, where it was read."""
    used = (use or {}).get(node.node, NodeUse())
    drained = node.drained and not node.drain_expired
    if (node.gangs and not drained) or used.work == "runs":
        return "busy"
    if used.gpus is None:
        return "unknown"
    if not has_rested(used, now):
        return "busy"
    return "idle" if used.work == "none" or drained else "unknown"


def node_hours(node: NodeRecord, used: NodeUse, nodes: int, now: datetime) -> float | None:
    """Return what the end of a node's job would lose, on all its `nodes`; None: not known.

    A job that uses no GPU now began at an unknown time, but not before its node was in service.
    """
    if used.gpus is None:
        return None
    since = used.gpus.since if used.gpus.busy else node.admitted_at
    if since is None or not (used.gpus.busy or now - since < IDLE_MIN):
        return None
    return nodes * (now - since).total_seconds() / 3600


def is_idle(node: NodeRecord, use: Mapping[str, NodeUse] | None, now: datetime) -> bool:
    """Return whether a node is known to have no work."""
    return use_of(node, use, now) == "idle"


def has_no_work(node: NodeRecord, use: Mapping[str, NodeUse] | None, now: datetime) -> bool:
    """Return whether a node has no work to lose: it is silent, or known to be empty."""
    return node.lost or is_idle(node, use, now)


def has_rested(used: NodeUse, now: datetime) -> bool:
    """Return whether a node's GPUs have rested for long enough."""
    return used.gpus is not None and not used.gpus.busy and now - used.gpus.since >= IDLE_MIN
