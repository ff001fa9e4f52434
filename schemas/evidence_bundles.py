"""Evidence about unhealthy nodes: object store EVIDENCE, and the totals in REPAIRS.

Two objects per outage: `<pool>.<node>.capture` is written at the verdict, while the node still
responds; `<pool>.<node>.<saga>` is the complete bundle, written once when the outage has ended.
Every part is bounded, and omitted items are counted.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from schemas.enums import Action, HealthStatus
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.messages import Record
from schemas.node_events import BootChecked, Fault, GpuIdentity, Telemetry, Verdict
from schemas.node_records import NodeRecord
from schemas.value_limits import (
    Float,
    Identifier,
    Int,
    Name,
    OptionalSagaToken,
    OptionalToken,
    Token,
    UtcTime,
)

AROUND_SECONDS: Final = 900.0
"""Samples further from the fault than this are omitted."""
SAMPLES_BEFORE_MAX: Final = 120
SAMPLES_AFTER_MAX: Final = 120
FAULTS_MAX: Final = 500
KERNEL_LINES_MAX: Final = 1_000
TIMELINE_MAX: Final = 2_000
PART_BYTES_MAX: Final = 2 * 1_048_576
"""Limit of each list; its beginning and its end are kept."""

OPERATOR_REQUEST: Final = "operator-request"
"""Fault signature of an outage that an operator requested without any fault."""

Outcome = Literal["open", "recovered", "replaced", "reset", "rebooted", "uncordoned", "removed"]
"""How an outage ended; `open`: it has not; `recovered`: without any remediation."""


class TimelineEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Holds one stored message about the node: an event or a saga log entry."""

    time: UtcTime
    """When the server stored it, so that all entries share one clock."""
    since_ms: Float = 0.0
    """Since the node became unhealthy."""
    stream: str
    subject: str
    sequence: Int
    message: dict[str, Any] = {}


class EvaluatedFault(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a fault and its result under the health policy."""

    fault: Fault
    stored_at: UtcTime
    result: HealthStatus = "unknown"
    action: Action = "none"
    rule: str = ""


class KernelLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the kernel log, as the driver wrote it."""

    time: UtcTime
    boot_id: str = ""
    sequence: Int = 0
    line: str


class EvidenceCapture(Record, frozen=True, kw_only=True):
    """State that would soon be lost: captured at a verdict, a loss or the start of a saga."""

    pool: str
    node: str
    captured_at: UtcTime
    moment: UtcTime
    """Time of the fault that decided; the samples surround it."""
    fault_signature: str = ""
    """Empty: the node was not out of service."""
    unhealthy_at: UtcTime | None = None
    outcome: Outcome = "open"
    record: NodeRecord | None = None
    health: HealthRecord | None = None
    instance: InstanceRecord | None = None
    samples: tuple[Telemetry, ...] = ()


class EvidenceBundle(Record, frozen=True, kw_only=True):
    """Holds everything about one outage of one node."""

    pool: Token
    node: Token
    saga: OptionalSagaToken = ""
    """The saga that ended the outage."""
    outcome: Outcome = "open"
    new_node: str = ""
    fault_signature: str = ""
    """`xid-79`, `silence`, `operator-request` …: lost hours are counted by it."""
    unhealthy_at: UtcTime
    """When the node became unhealthy, lost or cordoned, whichever was first."""
    restored_at: UtcTime | None = None
    """When the replacement was admitted, or the node uncordoned."""
    verdict: Verdict | None = None
    """Has the rule and the hash of the policy that decided."""
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
    gpu_count: Int = 0
    gpus: tuple[GpuIdentity, ...] = ()
    running_at: UtcTime | None = None
    terminated_at: UtcTime | None = None
    dollars_per_hour: Float = 0.0
    lost_gpu_hours: Float = 0.0
    faults: tuple[EvaluatedFault, ...] = ()
    kernel_lines: tuple[KernelLine, ...] = ()
    samples: tuple[Telemetry, ...] = ()
    checks: tuple[BootChecked, ...] = ()
    """Boot checks and diagnostics that the agent reported."""
    timeline: tuple[TimelineEntry, ...] = ()
    omitted: dict[str, Int] = {}
    """Part -> items omitted because of its limit."""


class EvidenceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what the object store says of a capture or a bundle, for lists."""

    pool: Token
    node: Token
    outcome: Outcome
    saga: OptionalSagaToken = ""
    new_node: OptionalToken = ""
    fault_signature: Name = ""
    unhealthy_at: UtcTime | None = None
    restored_at: UtcTime | None = None
    lost_gpu_hours: Float = 0.0
    gpus: Int = 0
    provider_id: Identifier = ""
    rule: Name = ""


class KeptEvidence(EvidenceDescription, frozen=True, kw_only=True):
    """The evidence of an outage, as it is kept."""

    name: str
    """Of the object in EVIDENCE."""
    bytes: Int
    time: UtcTime
    """When it was stored."""


def read_description(about: Mapping[str, str]) -> EvidenceDescription | None:
    """Read an object's description; None where it is not one of an outage."""
    given = {name: value for name, value in about.items() if value}
    try:
        return msgspec.convert(given, EvidenceDescription, strict=False)
    except msgspec.ValidationError:
        return None


REPAIR_BUCKETS: Final = 14


class RepairCount(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one fault signature in one pool, over all its nodes."""

    pool: str
    fault_signature: str
    gpu_seconds: Float = 0.0
    seconds: Float = 0.0
    buckets: Annotated[
        tuple[Int, ...], msgspec.Meta(min_length=REPAIR_BUCKETS, max_length=REPAIR_BUCKETS)
    ] = (0,) * REPAIR_BUCKETS
    """Histogram of times to repair, not cumulative; the last is beyond every bound."""


class RepairTotals(Record, frozen=True, kw_only=True):
    """REPAIRS `totals`: sums over every `repaired` event up to a sequence, each counted once."""

    sequence: Int = 0
    counts: tuple[RepairCount, ...] = ()


TOTALS_KEY: Final = "totals"
"""Key in REPAIRS."""


def capture_name(pool: str, node: str) -> str:
    """Return the name of a node's capture in EVIDENCE."""
    return f"{pool}.{node}.capture"


def bundle_name(pool: str, node: str, saga: str) -> str:
    """Return the name of a bundle in EVIDENCE."""
    return f"{pool}.{node}.{saga}"
