"""Decides whether more is known of an unhealthy node than the fault a wave shares. Pure.

A bad driver or agent makes every kernel log show the same fault. A second source that agrees, on
the same node and at the same time, does not come from one log line: NVML, or a diagnostic.
"""

from datetime import timedelta
from typing import Final

from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord

KERNEL_LOG_KINDS: Final = frozenset({"xid", "sxid", "lines_lost"})
SAME_TIME: Final = timedelta(minutes=10)
"""Evidence from longer before the verdict is about something else."""


def is_confirmed(node: NodeRecord, health: HealthRecord | None) -> bool:
    """Return whether another source than the shared fault's found the node unhealthy, too."""
    if node.health != "unhealthy" or node.health_at is None:
        return False
    if node.test_failed_at is not None and node.test_failed_at >= node.health_at:
        return True
    if health is None:
        return False
    earliest = node.health_at - SAME_TIME
    return any(
        each.result == "unhealthy"
        and not each.drill
        and each.kind not in KERNEL_LOG_KINDS | {node.health_kind}
        and (each.seen_at or each.time) >= earliest
        for each in health.recent
    )
