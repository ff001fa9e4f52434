"""Decides which GPUs the workload system gives no new work, and which have it again. Pure.

Such a cordon takes no work and no node out of service, so only the cap of quarantined nodes bounds
it. It is ordered once: where that fails, the node's record says unhealthy, and the node is
quarantined and repaired as a whole. An order that lifts it is repeated.
"""

from datetime import datetime, timedelta
from typing import Final

from schemas.node_records import NodeRecord
from services.pool_manager.planner.node_counts import is_gone

AGAIN_SECONDS: Final = 60.0
"""After an order that failed to lift a cordon, before it is repeated."""
LIFTED: Final = "no GPU of the node is faulty any more"


def is_wanted(node: NodeRecord) -> bool:
    """Return whether the last verdict names GPUs that the workload system still gives work."""
    wanted = node.health == "degraded" and bool(node.faulty_gpus)
    return wanted and node.faulty_gpus != node.cordoned_gpus


def is_lifted(node: NodeRecord, now: datetime) -> bool:
    """Return whether cordoned GPUs that no verdict names any more may be given back now."""
    if not node.cordoned_gpus or node.faulty_gpus or node.health in ("unhealthy", "unknown"):
        return False
    if node.state != "active" or node.lost or is_gone(node):
        return False
    repeat = repeat_at(node)
    return repeat is None or now >= repeat


def repeat_at(node: NodeRecord) -> datetime | None:
    """Return when a failed order to lift is repeated; None: none has failed."""
    if node.gpu_cordon_failed_at is None or node.faulty_gpus or not node.cordoned_gpus:
        return None
    return node.gpu_cordon_failed_at + timedelta(seconds=AGAIN_SECONDS)
