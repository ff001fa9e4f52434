"""What is kept of a sick node in the object store EVIDENCE, for whoever repairs or replaces it.

Two objects per outage: `<pool>.<node>.capture` is taken when the verdict comes, while the node can
still be asked, and `<pool>.<node>.<saga>` is the whole story, put together once when it has ended.
Everything is bounded, and what was left out is counted.
"""

from typing import Any, Final, Literal

import msgspec

from schemas.enums import Action, HealthStatus
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import Record, UtcTime
from schemas.node_events import BootChecked, Fault, GpuIdentity, Telemetry, Verdict
from schemas.node_records import NodeRecord

AROUND_SECONDS: Final = 900.0
"""Samples further from the fault than this are left out."""
SAMPLES_BEFORE_MAX: Final = 120
SAMPLES_AFTER_MAX: Final = 120
FAULTS_MAX: Final = 500
KERNEL_LINES_MAX: Final = 1_000
TIMELINE_MAX: Final = 2_000
PART_BYTES_MAX: Final = 2 * 1_048_576
"""Of each of these lists: its beginning and its end are kept."""

BY_HAND: Final = "by-hand"
"""What a node is called to have that somebody took out of service without any fault."""

Outcome = Literal["open", "recovered", "replaced", "reset", "rebooted", "uncordoned", "removed"]
"""How a fault signature ended; `open`: it has not; `recovered`: by itself, and nothing was done."""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One stored message about the node: an event, or an entry of a saga's log."""

    time: UtcTime
    """When the server stored it: all of these come from one clock."""
    since_ms: float = 0.0
    """From the moment the node fell ill."""
    stream: str
    subject: str
    sequence: int
    message: dict[str, Any] = {}


class JudgedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault and what the health policy made of it."""

    fault: Fault
    stored_at: UtcTime
    result: HealthStatus = "unknown"
    action: Action = "none"
    rule: str = ""


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the kernel log, as the driver wrote it."""

    time: UtcTime
    boot_id: str = ""
    sequence: int = 0
    line: str


class EvidenceCapture(Record, frozen=True, kw_only=True):
    """What would be gone soon: taken when a node is judged, lost or about to be worked on."""

    pool: str
    node: str
    captured_at: UtcTime
    moment: UtcTime
    """What the samples are around: the fault that decided."""
    fault_signature: str = ""
    """Empty: it was not out of service then."""
    unhealthy_at: UtcTime | None = None
    outcome: Outcome = "open"
    record: NodeRecord | None = None
    health: HealthRecord | None = None
    instance: InstanceRecord | None = None
    samples: tuple[Telemetry, ...] = ()


class EvidenceBundle(Record, frozen=True, kw_only=True):
    """All of one fault signature of one node."""

    pool: str
    node: str
    saga: str = ""
    """What ended it."""
    outcome: Outcome = "open"
    new_node: str = ""
    fault_signature: str = ""
    """`xid-79`, `silence`, `by-hand` …: what lost hours are counted under."""
    unhealthy_at: UtcTime
    """Since when it was judged unhealthy, lost or cordoned, whichever was first."""
    restored_at: UtcTime | None = None
    """Since when its place is filled again: the replacement admitted, or the node uncordoned."""
    verdict: Verdict | None = None
    """Names the rule and the hash of the policy that was in force."""
    hostname: str = ""
    address: str = ""
    region: str = ""
    zone: str = ""
    boot_id: str = ""
    provider: str = ""
    provider_id: str = ""
    instance_type: str = ""
    driver_version: str = ""
    agent_version: str = ""
    gpu_count: int = 0
    gpus: tuple[GpuIdentity, ...] = ()
    running_at: UtcTime | None = None
    terminated_at: UtcTime | None = None
    dollars_per_hour: float = 0.0
    lost_gpu_hours: float = 0.0
    faults: tuple[JudgedFault, ...] = ()
    kernel_lines: tuple[KernelLine, ...] = ()
    samples: tuple[Telemetry, ...] = ()
    checks: tuple[BootChecked, ...] = ()
    """Boot checks and diagnostics that the agent told of."""
    timeline: tuple[TimelineEntry, ...] = ()
    omitted: dict[str, int] = {}
    """Part -> how many of it the bounds have cost."""


class RepairCount(msgspec.Struct, frozen=True, kw_only=True):
    """What one fault signature has cost one pool, over all its nodes."""

    pool: str
    fault_signature: str
    gpu_seconds: float = 0.0
    seconds: float = 0.0
    buckets: tuple[int, ...] = ()
    """Of the histogram of times to repair, each bucket for itself."""


class RepairTotals(Record, frozen=True, kw_only=True):
    """REPAIRS `totals`: every `repaired` event up to a sequence, each taken in exactly once."""

    sequence: int = 0
    counts: tuple[RepairCount, ...] = ()


TOTALS_KEY: Final = "totals"
"""Key in REPAIRS."""


def capture_name(pool: str, node: str) -> str:
    """Name of a node's capture in EVIDENCE."""
    return f"{pool}.{node}.capture"


def bundle_name(pool: str, node: str, saga: str) -> str:
    """Name of a bundle in EVIDENCE."""
    return f"{pool}.{node}.{saga}"
