"""What differs between HEALTH and NODES because an event was lost, or set aside. Pure."""

from datetime import datetime, timedelta
from typing import Final

from schemas.health_records import HealthRecord
from schemas.node_events import Returned, Verdict
from schemas.node_records import NodeRecord
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.rules.lost_health import may_begin
from services.health_monitor.rules.node_health import verdict_of

LATE: Final = timedelta(seconds=120)
"""What NODES lacks for so long is lost; most events are handled within a second."""


def missing_verdict(health: HealthRecord, node: NodeRecord | None, now: datetime) -> Verdict | None:
    """The verdict to publish again; None: NODES has it, or has a later one, or need not have it."""
    since = health.since
    if node is None or node.state == "terminated" or since is None or now - since < LATE:
        return None
    same = health.status == node.health and health.cordon_gpus == node.faulty_gpus
    if same or health.status == "unknown":
        return None
    if node.health_at is not None and node.health_at >= since:
        return None
    return verdict_of(
        health,
        identity=f"verdict-again-{health.pool}-{health.node}-{now.timestamp():.0f}",
        at=since,
        cause=health.fault,
        previous=node.health,
        instance=health.node,
    )


def is_left_over(health: HealthRecord, node: NodeRecord | None, now: datetime) -> bool:
    """Whether a record is of a node that is gone: its end was not heard of, or heard of too early.

    One of the next machine of its name, which its owner may have made by now, is kept.
    """
    if node is None or node.state != "terminated":
        return False
    ended_at = node.changed_at
    late = ended_at is not None and now - ended_at >= LATE
    return late and not may_begin(node, working_of(health).boot)


def has_not_joined(health: HealthRecord, node: NodeRecord | None, now: datetime) -> bool:
    """Whether a record is of a machine that had the name of a node that is gone, and is none yet.

    It is kept while the machine beats.
    """
    if node is None or node.state != "terminated" or not may_begin(node, working_of(health).boot):
        return False
    return health.since is not None and now - health.since >= LATE


def is_unregistered(node: NodeRecord, now: datetime) -> bool:
    """Whether a node in service of unknown health has registered, and without effect."""
    at = node.registered_at
    if node.state != "active" or node.health != "unknown" or at is None:
        return False
    return now - max(at, node.admitted_at or at) >= LATE


def missing_return(health: HealthRecord, node: NodeRecord | None, now: datetime) -> Returned | None:
    """The return to publish again of a node whose heartbeats come; None: NODES does not lack it."""
    if node is None or not node.lost or node.lost_at is None or health.lost:
        return None
    if node.state == "terminated" or now - node.lost_at < LATE:
        return None
    return Returned(
        id=f"returned-again-{health.pool}-{health.node}-{now.timestamp():.0f}",
        time=now,
        pool=health.pool,
        node=health.node,
        instance=health.node,
    )
