"""Finds what differs between HEALTH and NODES: lost records, and verdicts without events. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_events import Returned, Verdict
from schemas.node_records import NodeRecord, is_made_by_others
from services.health_monitor.rules.health_state import Condition, Working, working_of
from services.health_monitor.rules.node_health import LEVEL_SECONDS_MAX, verdict_of

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
    if is_of_other_boot(health, node.boot_id):
        return None  # of the machine before, whose end HEALTH could not take in
    return verdict_of(
        health,
        identity=f"verdict-again-{health.pool}-{health.node}-{now.timestamp():.0f}",
        at=since,
        cause=health.fault,
        previous=node.health,
        instance=health.node,
    )


def is_left_over(health: HealthRecord, node: NodeRecord | None, now: datetime) -> bool:
    """Return whether a record is of a node that is gone: its end was not heard of, or too early.

    One of the next machine of its name, which its owner may have made by now, is kept.
    """
    if node is None or node.state != "terminated":
        return False
    ended_at = node.changed_at
    late = ended_at is not None and now - ended_at >= LATE
    return late and not may_begin(node, working_of(health).boot)


def has_not_joined(health: HealthRecord, node: NodeRecord | None, now: datetime) -> bool:
    """Return whether a record is of a machine with a gone node's name that is no node itself yet.

    It is kept while the machine beats.
    """
    if node is None or node.state != "terminated" or not may_begin(node, working_of(health).boot):
        return False
    return health.since is not None and now - health.since >= LATE


def is_unregistered(node: NodeRecord, now: datetime) -> bool:
    """Return whether a node in service has registered and its health is unknown nonetheless."""
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


def recovered_health(node: NodeRecord, now: datetime) -> HealthRecord | None:
    """Return the record that the node's last verdict and silence make; None: it had none.

    What was not enough for a verdict is lost. What degraded it wears off a day after the verdict.
    """
    if node.state == "terminated" or node.registered_at is None:
        return None
    conditions = {}
    if node.health == "degraded":
        until = (node.health_at or now) + timedelta(seconds=LEVEL_SECONDS_MAX)
        conditions["recovered:0:-1"] = Condition(
            action=node.health_action,
            rule="",
            reason=node.health_reason,
            fault=node.health_fault,
            gpu_index=node.health_gpu,
            boot=node.boot_id,
            job=node.health_job,
            until=until.timestamp(),
            drill=node.health_drill,
        )
    work = Working(boot=node.boot_id, registered="recovered", conditions=conditions)
    return HealthRecord(
        pool=node.pool,
        node=node.node,
        status=node.health,
        action=node.health_action,
        reason=node.health_reason,
        fault=node.health_fault,
        code=node.health_code,
        gpu_index=node.health_gpu,
        job=node.health_job,
        drill=node.health_drill,
        trace=node.health_trace,
        since=node.health_at,
        # NODES takes its registration for a sign of life; its return is to be published still.
        lost=node.lost or node.return_due,
        detail=msgspec.to_builtins(work),
    )


def may_begin(node: NodeRecord | None, boot: str) -> bool:
    """Return whether a fact may be the first of a node: it is no late one of a node that is gone.

    Others may give the name of such a node again; the machine then has another boot.
    """
    if node is None or node.state != "terminated":
        return True
    return is_made_by_others(node) and boot not in ("", node.boot_id)


def is_of_other_boot(record: HealthRecord, boot: str | None) -> bool:
    """Return whether a record is of another boot than a fact; False where either is not known."""
    return boot not in (None, "", working_of(record).boot or boot)
