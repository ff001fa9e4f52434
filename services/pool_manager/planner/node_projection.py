"""Applies an event to a node's record. Pure; the same event twice changes nothing more.

Replicas share the work, so two events of one node may be applied in either order: what an event
says is kept with its time or its boot, and nothing depends on which came first.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas.enums import HealthStatus
from schemas.node_events import (
    BootChecked,
    Lost,
    NodeEvent,
    ProviderNotice,
    Registered,
    Returned,
    Verdict,
    WorkGangs,
    WorkloadState,
)
from schemas.node_records import GANGS_MAX, LOSSES_MAX, NodeRecord, WorkloadView
from schemas.saga_params import LaunchSpec
from services.pool_manager.planner import cloud_notices, fixed_identity, node_identity
from services.pool_manager.planner.announced_restarts import silent_until
from services.pool_manager.planner.fixed_identity import Owners, no_owner

FOUND: Final[dict[str, Any]] = {
    "lost": False,
    "lost_at": None,
    "provider_state": "",
    "down_reason": "",
}
"""Of a node that is heard again."""


def apply_event(
    record: NodeRecord | None,
    event: NodeEvent,
    stored_at: datetime,
    owners: Owners = no_owner,
) -> NodeRecord | None:
    """Return the changed record; None where the event is about no node of ours."""
    if record is None or record.state == "terminated":
        # An agent on an instance without a record is not ours to manage.
        return None
    if isinstance(event, BootChecked | ProviderNotice) and _is_refused(record, event.boot_id):
        return record
    changed = _change(record, event, stored_at, owners)
    if changed == record:
        return record
    return msgspec.structs.replace(changed, changed_at=stored_at)


def _change(
    record: NodeRecord, event: NodeEvent, stored_at: datetime, owners: Owners
) -> NodeRecord:
    change = msgspec.structs.replace
    match event:
        case Registered():
            return _registered(record, event, stored_at, owners)
        case BootChecked():
            detail = "; ".join(f"{c.name}: {c.detail}" for c in event.checks if not c.ok)
            return change(
                record,
                boot_checked=event.ok,
                boot_checked_id=event.boot_id,
                boot_detail=detail,
            )
        case Verdict():
            if record.health_at is not None and event.time < record.health_at:
                return record
            return change(
                record,
                health=with_gpu_cordon(record, event.status, event.cordon_gpus),
                health_at=event.time,
                health_action=event.action,
                health_reason=event.reason,
                health_fault=event.fault,
                health_kind=event.kind,
                health_code=event.code,
                health_job=event.job,
                health_drill=event.drill,
                health_gpu=event.gpu_index,
                faulty_gpus=event.cordon_gpus,
            )
        case ProviderNotice():
            return cloud_notices.record_notice(record, event, stored_at)
        case Lost() if not _stale(record, event.time):
            # A return that came between two losses must not count once it arrives.
            begun = record if record.lost else _silent(record, event, stored_at)
            return change(begun, liveness_at=event.time)
        case WorkloadState() | WorkGangs():
            return _with_workload(record, event)
        case Returned() if not _stale(record, event.time):
            return change(record, **FOUND, return_due=False, liveness_at=event.time)
        case _:
            return record


def with_gpu_cordon(
    record: NodeRecord, status: HealthStatus, faulty_gpus: tuple[int, ...]
) -> HealthStatus:
    """A node's health: unhealthy where keeping work off its faulty GPUs alone is no use.

    The workload system has not done it, the node takes no work yet, or a repair that has not
    succeeded has left it out of service.
    """
    if status != "degraded" or not faulty_gpus:
        return status
    failed = record.gpu_cordon_failed_at is not None and record.cordoned_gpus == faulty_gpus
    arriving = record.state in ("launching", "registered")
    return "unhealthy" if failed or arriving or record.spare or _is_left_out(record) else status


def _is_left_out(record: NodeRecord) -> bool:
    """Whether the last saga about a node was a repair that has not succeeded."""
    return record.cordoned and any(
        each.outcome in ("failed", "cancelled") and each.saga.endswith(f"-{record.sagas}")
        for each in record.attempts[-1:]
    )


def _with_workload(record: NodeRecord, event: WorkloadState | WorkGangs) -> NodeRecord:
    if isinstance(event, WorkGangs):
        if record.gangs_at is not None and event.time < record.gangs_at:
            return record
        gangs = event.gangs[:GANGS_MAX]
        return msgspec.structs.replace(record, gangs=gangs, gangs_at=event.time)
    if record.workload_at is not None and event.time < record.workload_at:
        return record
    view = WorkloadView(
        system=event.system,
        ready=event.ready,
        cordoned=event.cordoned,
        reason=event.reason,
        since=event.since or event.time,
    )
    usable = event.ready and not event.cordoned
    return msgspec.structs.replace(
        record, workload=None if usable else view, workload_at=event.time
    )


def _registered(
    record: NodeRecord, event: Registered, stored_at: datetime, owners: Owners
) -> NodeRecord:
    """An agent's (re)start: its boot and, until the node is admitted, its names and hardware.

    Workload systems find nodes by these, and later a user's code may be root there.
    """
    identity = node_identity.identified(record.identity, event, stored_at)
    record = msgspec.structs.replace(record, identity=identity)
    if not node_identity.is_own(identity, event, stored_at):
        return record  # of a second machine, or delivered late
    identity = fixed_identity.settled(record, identity, event, owners, stored_at)
    record = _with_hardware(msgspec.structs.replace(record, identity=identity), event)
    kept = record if record.admitted_at is not None else None
    # By the server's clock, as a silence is: the agent's own may be ahead of it. That of a known
    # boot may be an operator's replay, so there the heartbeats say whether the agent is back.
    is_known = bool(event.boot_id) and event.boot_id == record.boot_id
    heard: dict[str, Any] = {} if is_known or _stale(record, stored_at) else FOUND
    return msgspec.structs.replace(
        record,
        state="registered" if record.state == "launching" else record.state,
        hostname=(kept and kept.hostname) or event.hostname,
        address=(kept and kept.address) or event.address or record.address,
        boot_id=event.boot_id,
        driver_version=event.driver_version,
        agent_version=event.agent_version,
        drills=event.drills,
        registered_at=record.registered_at or stored_at,
        **heard,
    )


def _with_hardware(record: NodeRecord, event: Registered) -> NodeRecord:
    """Return the record with the GPUs and the rack of a report that is not another machine's."""
    identity = record.identity
    if identity is None or identity.claimed is not None:
        return record
    label = record.launch.labels.get("rack", "") if record.launch else ""
    place = identity.fixed or event
    return msgspec.structs.replace(
        record,
        gpus=event.gpus,
        rack=place.rack or label,
        nvlink_domain=place.nvlink_domain,
    )


def _is_refused(record: NodeRecord, boot_id: str) -> bool:
    return record.identity is not None and record.identity.refuses(boot_id)


def _silent(record: NodeRecord, event: Lost, stored_at: datetime) -> NodeRecord:
    """Return a node's record as it is lost; what Navarch or the cloud does counts as no loss."""
    silent = msgspec.structs.replace(record, lost=True, lost_at=stored_at)
    ours = record.saga or event.credentials_expired or silent_until(silent) is not None
    return msgspec.structs.replace(
        silent,
        losses=record.losses if ours else (*record.losses, stored_at)[-LOSSES_MAX:],
        return_due=True,
        provider_state="disconnected" if event.credentials_expired else "",
    )


def _stale(record: NodeRecord, at: datetime) -> bool:
    """Whether news of life or death is older than what is known."""
    return record.liveness_at is not None and at < record.liveness_at


def launched(record: NodeRecord, made: Mapping[str, Any]) -> LaunchSpec | None:
    """The launch of a node with what was chosen of it, once its provision step has said so."""
    if record.launch is None or not made.get("instance_type"):
        return record.launch
    chosen = {key: str(made.get(key, "")) for key in ("provider", "instance_type")}
    # The provisioner's word on what it has launched with beats what was configured here then.
    fingerprint = record.launch.fingerprint and record.launch.fingerprint | made.get("sources", {})
    return msgspec.structs.replace(record.launch, **chosen, fingerprint=fingerprint)
