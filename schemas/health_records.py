"""Declares the records of the health-monitor: bucket HEALTH, key `<pool>.<node>`."""

from datetime import datetime
from typing import Any, Literal

from schemas.enums import Action, DrillReach, FaultKind, HealthStatus
from schemas.held_conditions import ConditionList
from schemas.messages import Record
from schemas.node_events import Metric
from schemas.value_limits import Int, UtcTime


class RecordedFault(Record, frozen=True, kw_only=True):
    """Records one evaluated fault in a node's health history."""

    id: str
    time: UtcTime
    """When it occurred, by the node's clock."""
    seen_at: UtcTime | None = None
    """When it was stored; None: unknown."""
    kind: str
    code: Int = 0
    gpu_index: Int = -1
    message: str = ""
    metrics: dict[str, Metric] = {}
    result: HealthStatus = "healthy"
    action: Action = "none"
    rule: str = ""
    boot_id: str = ""
    drill: DrillReach = ""


class GpuHealth(Record, frozen=True, kw_only=True):
    """Health of one GPU that is not healthy."""

    index: Int
    status: HealthStatus
    action: Action = "none"
    rule: str = ""
    reason: str = ""
    fault: str = ""
    kind: FaultKind | Literal[""] = ""
    code: Int = 0
    since: UtcTime


class HealthRecord(Record, frozen=True, kw_only=True):
    """HEALTH `<pool>.<node>`: a node's health."""

    pool: str
    node: str
    status: HealthStatus = "unknown"
    action: Action = "none"
    rule: str = ""
    policy: str = ""
    reason: str = ""
    gpu_index: Int = -1
    fault: str = ""
    kind: FaultKind | Literal[""] = ""
    """Kind of the fault that decided."""
    code: Int = 0
    job: str = ""
    """Job whose process caused that fault."""
    trace: str = ""
    """traceparent of the fault that decided."""
    since: UtcTime | None = None
    recent: tuple[RecordedFault, ...] = ()
    lost: bool = False
    cordon_gpus: tuple[Int, ...] = ()
    """GPUs that are to get no new work while the node stays in service."""
    gpus: tuple[GpuHealth, ...] = ()
    """GPUs that are not healthy; a fault of the whole node is not in this list."""
    drill: DrillReach = ""
    """How far the drill goes whose fault decided; empty: a real fault decided."""
    conditions: ConditionList | None = None
    """What holds on the node, by its agent; None: an agent that does not say it."""
    detail: dict[str, Any] = {}
    """The health-monitor's internal state (windows, counts), opaque to readers."""


def is_after(fault: RecordedFault, since: datetime | None, boot_id: str) -> bool:
    """Return whether a fault is later than a node's remediation: a reset, or a new boot."""
    after_reset = since is not None and fault.time > since
    return after_reset or (boot_id != "" and fault.boot_id == boot_id)
