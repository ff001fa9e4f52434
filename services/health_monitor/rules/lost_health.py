"""A node's health as NODES has it, where its record in HEALTH is lost. Pure."""

from datetime import datetime, timedelta

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord, is_made_by_others
from services.health_monitor.rules.health_state import Condition, Working, working_of
from services.health_monitor.rules.node_health import LEVEL_SECONDS_MAX


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
        trace=node.health_trace,
        since=node.health_at,
        # NODES takes its registration for a sign of life; its return is to be published still.
        lost=node.lost or node.return_due,
        detail=msgspec.to_builtins(work),
    )


def may_begin(node: NodeRecord | None, boot: str) -> bool:
    """Whether a fact may be the first of a node: it is no late one of a node that is gone.

    Others may give the name of such a node again; the machine then has another boot.
    """
    if node is None or node.state != "terminated":
        return True
    return is_made_by_others(node) and boot not in ("", node.boot_id)


def is_of_other_boot(record: HealthRecord, boot: str | None) -> bool:
    """Whether a record is of another boot than a fact; no where either is not known."""
    return boot not in (None, "", working_of(record).boot or boot)
