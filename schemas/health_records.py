"""Records of the health-monitor: bucket HEALTH, key `<pool>.<node>`."""

from datetime import datetime
from typing import Any, Literal

from schemas.enums import Action, FaultKind, HealthStatus
from schemas.messages import Record, UtcTime
from schemas.node_events import Metric


class RecordedFault(Record, frozen=True, kw_only=True):
    """One judged fault, as a node's health remembers it."""

    id: str
    time: UtcTime
    """By the node's clock."""
    seen_at: UtcTime | None = None
    """When it was stored; None: not known."""
    kind: str
    code: int = 0
    gpu_index: int = -1
    message: str = ""
    metrics: dict[str, Metric] = {}
    result: HealthStatus = "healthy"
    action: Action = "none"
    rule: str = ""
    boot_id: str = ""


class GpuHealth(Record, frozen=True, kw_only=True):
    """What the policy makes of one GPU that is not healthy."""

    index: int
    status: HealthStatus
    action: Action = "none"
    rule: str = ""
    reason: str = ""
    fault: str = ""
    kind: FaultKind | Literal[""] = ""
    code: int = 0
    since: UtcTime


class HealthRecord(Record, frozen=True, kw_only=True):
    """HEALTH `<pool>.<node>`: what the policy makes of a node."""

    pool: str
    node: str
    status: HealthStatus = "unknown"
    action: Action = "none"
    rule: str = ""
    policy: str = ""
    reason: str = ""
    gpu_index: int = -1
    fault: str = ""
    kind: FaultKind | Literal[""] = ""
    """Kind and code of the fault that decided."""
    code: int = 0
    job: str = ""
    """Whose process that fault was of."""
    trace: str = ""
    """traceparent of the fault that decided."""
    since: UtcTime | None = None
    recent: tuple[RecordedFault, ...] = ()
    lost: bool = False
    gpus: tuple[GpuHealth, ...] = ()
    """Of each GPU that is not healthy; a fault of the node as a whole is of none."""
    detail: dict[str, Any] = {}
    """The health-monitor's own working state (windows, counts), opaque to readers."""


def is_after(note: RecordedFault, since: datetime | None, boot_id: str) -> bool:
    """Whether a fault was seen after a node was mended: after a reset, or in the new boot."""
    after_reset = since is not None and note.time > since
    return after_reset or (boot_id != "" and note.boot_id == boot_id)
