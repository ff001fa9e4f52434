"""Decides which nodes must not stay, and how long a silent one is waited for. Pure."""

from datetime import datetime, timedelta
from typing import Final

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import announced_restarts, cloud_notices, shared_ends

UNVERIFIED_TIMES: Final = 3
"""So many times `lost_after` a silent node is waited for while the provider cannot say of it."""
_PROVIDER_WORDS: Final = {
    "gone": "; the provider says that its instance is gone",
    "present": "; its instance exists",
    "": "; the provider cannot say whether its instance exists",
}


def remediation_reason(node: NodeRecord, record: PoolRecord, now: datetime) -> str:
    """Return why a node must be replaced; empty where it need not be."""
    if node.state != "active":
        return ""
    if node.notices and (reason := cloud_notices.taken_reason(node)):
        return "" if shared_ends.stays_until(node, record) else reason
    if node.health == "unhealthy":
        return node.health_reason or "unhealthy"
    due = given_up_at(node, record)
    if due is not None and node.lost_at is not None and now >= due:
        silent = (now - node.lost_at).total_seconds()
        known = (
            f"; {node.down_reason}" if node.down_reason else _PROVIDER_WORDS[node.provider_state]
        )
        return f"silent for {silent:.0f} s{known}"
    return ""


def given_up_at(node: NodeRecord, record: PoolRecord) -> datetime | None:
    """When a silent node must be replaced: the less is known of it, the later.

    Never where its silence is ours: an operator readmits or replaces it.
    """
    if not node.lost or node.lost_at is None or node.provider_state == "disconnected":
        return None
    times = {"gone": 0, "present": 1, "": UNVERIFIED_TIMES}[node.provider_state]
    due = node.lost_at + timedelta(seconds=times * float(record.spec.health.lost_after))
    expected = announced_restarts.silent_until(node) if times else None
    return due if expected is None else max(due, expected)
