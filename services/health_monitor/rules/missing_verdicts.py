"""Verdicts of which NODES has nothing: the event was lost, or set aside, before it was handled.

Pure.
"""

from datetime import datetime, timedelta
from typing import Final

from schemas.health_records import HealthRecord
from schemas.node_events import Verdict
from schemas.node_records import NodeRecord

LATE: Final = timedelta(seconds=120)
"""A verdict that NODES lacks for so long is lost; most are handled within a second."""


def missing_verdict(health: HealthRecord, node: NodeRecord | None, now: datetime) -> Verdict | None:
    """The verdict to publish again; None: NODES has it, or has a later one, or need not have it."""
    since = health.since
    if node is None or node.state == "terminated" or since is None or now - since < LATE:
        return None
    if health.status in ("unknown", node.health):
        return None
    if node.health_at is not None and node.health_at >= since:
        return None
    return Verdict(
        id=f"verdict-again-{health.pool}-{health.node}-{now.timestamp():.0f}",
        time=since,
        cause=health.fault,
        pool=health.pool,
        node=health.node,
        status=health.status,
        action=health.action,
        rule=health.rule,
        policy=health.policy,
        reason=health.reason,
        gpu_index=health.gpu_index,
        fault=health.fault,
        kind=health.kind,
        code=health.code,
        job=health.job,
        previous=node.health,
        instance=health.node,
    )
