"""Which nodes must not stay, and how long a silent one is waited for. Pure."""

from datetime import datetime
from typing import Final

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from services.pool_manager.planner import cloud_notices

UNVERIFIED_TIMES: Final = 3
"""So many times `lost_after` a silent node is waited for while the provider cannot say of it."""
_PROVIDER_WORDS: Final = {
    "gone": "; the provider says that its instance is gone",
    "present": "; its instance exists",
    "": "; the provider cannot say whether its instance exists",
}


def remediation_reason(node: NodeRecord, record: PoolRecord, now: datetime) -> str:
    """Why a node must be replaced; empty where it need not be."""
    if node.state != "active":
        return ""
    if node.notices and (reason := cloud_notices.taken_reason(node)):
        return reason
    if node.health == "unhealthy":
        return node.health_reason or "unhealthy"
    if node.lost and node.lost_at is not None:
        silent = (now - node.lost_at).total_seconds()
        if silent >= tolerated_seconds(node, record):
            return f"silent for {silent:.0f} s" + _PROVIDER_WORDS[node.provider_state]
    return ""


def tolerated_seconds(node: NodeRecord, record: PoolRecord) -> float:
    """How long a silent node is waited for: the less is known of it, the longer."""
    times = {"gone": 0, "present": 1, "": UNVERIFIED_TIMES}[node.provider_state]
    return times * float(record.spec.health.lost_after)
