"""Keeps the health of each GPU beside its node's: its worst current condition. Pure.

`core` decides what the node is; this keeps, from the same conditions, what each GPU is. A GPU that
made its node unhealthy stays so for as long as the node does. A fault of the node as a whole (GPU
-1) is no GPU's.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from schemas.enums import Action
from schemas.health_records import GpuHealth, HealthRecord
from schemas.node_events import Fault
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import Condition, Working

ACTION_RANK: Final[Mapping[Action, int]] = {
    "none": 0,
    "restart_app": 1,
    "inspect": 2,
    "reset_gpu": 3,
    "reboot": 4,
    "replace": 5,
}
"""Which action calls for more."""


def with_unhealthy(
    record: HealthRecord, fault: Fault, judged: Judgement, reason: str, now: datetime
) -> HealthRecord:
    """Note that a fault made its GPU unhealthy; an earlier one that calls for as much is kept."""
    if fault.gpu_index < 0:
        return record
    before = _of(record, fault.gpu_index)
    if before is not None and before.status == "unhealthy":
        if ACTION_RANK[judged.action] <= ACTION_RANK[before.action]:
            return record
        now = before.since
    affected = GpuHealth(
        index=fault.gpu_index,
        status="unhealthy",
        action=judged.action,
        rule=judged.rule,
        reason=reason,
        fault=fault.id,
        kind=fault.kind,
        code=fault.code,
        since=now,
    )
    others = tuple(each for each in record.gpus if each.index != fault.gpu_index)
    return msgspec.structs.replace(record, gpus=(*others, affected))


def with_conditions(record: HealthRecord, work: Working, now: datetime) -> HealthRecord:
    """Make the GPUs what the node's status and conditions say."""
    affected: dict[int, GpuHealth] = {}
    if record.status == "unhealthy":
        affected = {each.index: each for each in record.gpus if each.status == "unhealthy"}
    for index, worst in _worst(work).items():
        if index in affected:
            continue
        before = _of(record, index)
        since = before.since if before is not None and before.status == "degraded" else now
        affected[index] = GpuHealth(
            index=index,
            status="degraded",
            action=worst.action,
            rule=worst.rule,
            reason=worst.reason,
            fault=worst.fault,
            kind=worst.kind,
            code=worst.code,
            since=since,
        )
    gpus = tuple(affected[index] for index in sorted(affected))
    return record if gpus == record.gpus else msgspec.structs.replace(record, gpus=gpus)


def rank(condition: Condition) -> tuple[int, float, str]:
    """Return a condition's sort key: its action's rank, and then how long the condition lasts."""
    return (ACTION_RANK[condition.action], condition.until, condition.fault)


def _worst(work: Working) -> dict[int, Condition]:
    worst: dict[int, Condition] = {}
    for each in work.conditions.values():
        index = each.gpu_index
        if index >= 0 and (index not in worst or rank(each) > rank(worst[index])):
            worst[index] = each
    return worst


def _of(record: HealthRecord, index: int) -> GpuHealth | None:
    return next((each for each in record.gpus if each.index == index), None)
