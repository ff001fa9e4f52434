"""Facts about nodes, on `navarch.v1.node.<pool>.<node>.event.<fact>`, and their samples."""

from typing import Any, Literal

import msgspec

from schemas.enums import Action, AttemptOutcome, FaultKind, HealthStatus, SagaKind
from schemas.messages import Codec, Message, UtcTime

Metric = int | float | str | bool


class NodeEvent(Message, frozen=True, kw_only=True):
    """What every fact about a node carries."""

    pool: str
    node: str


class GpuIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which GPU: what stays the same over resets and reboots, and over nodes."""

    index: int
    uuid: str = ""
    serial: str = ""
    pci: str = ""
    """Bus id as the kernel log writes it: `0000:3b:00`, lower case, without function."""
    name: str = ""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check's outcome, in one sentence."""

    name: str
    ok: bool
    detail: str = ""


class Fault(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.agent.event.v1.fault"):
    """One observed hardware event. `time` is when the host saw it."""

    kind: FaultKind
    system: str = ""
    """The watch that saw it, in DCGM's words where it has one (`DCGM_HEALTH_WATCH_PCIE`)."""
    gpu_index: int = -1
    """-1: the node as a whole, or a GPU that could not be told."""
    gpu_uuid: str = ""
    gpu_serial: str = ""
    pci: str = ""
    code: int = 0
    """XID or SXID; 0 where the kind has none."""
    subcode: str = ""
    message: str = ""
    """The line or the sentence a person reads."""
    metrics: dict[str, Metric] = {}
    """What a policy may ask of: `xid_code`, `temperature`, `ecc_dbe_count` …"""
    source: str = "kmsg"
    """Which witness: kmsg, nvml, host, cloud, drill."""
    boot_id: str = ""
    sequence: int = 0
    """Place in the kernel log, or the witness's own count."""
    job: str = ""
    """Whose process it was, where the host could tell: `slurm-1234`, `pod-<uid>`."""


class Registered(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.agent.event.v1.registered"):
    """An agent speaks for the first time since it started."""

    instance: str
    hostname: str = ""
    boot_id: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    driver_version: str = ""
    agent_version: str = ""
    address: str = ""
    rack: str = ""
    """Where the host stands, as people or its cloud name it: what fails together."""


class Preempting(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.agent.event.v1.preempting"):
    """The cloud takes the node back, or has withdrawn its word that it would."""

    notice: str
    """Which announcement; the same when it is withdrawn."""
    kind: Literal["preemption", "maintenance"] = "preemption"
    action: str = ""
    """The cloud's word for what it does: terminate, stop, hibernate …"""
    message: str = ""
    deadline: UtcTime | None = None
    """When it happens at the earliest; None: at any moment."""
    withdrawn: bool = False
    boot_id: str = ""


class BootChecked(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.agent.event.v1.boot_checked"
):
    """The boot checks ended; a node is admitted only when they passed."""

    ok: bool
    checks: tuple[CheckResult, ...] = ()
    boot_id: str = ""


class Verdict(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.health_monitor.event.v1.verdict"
):
    """A node's health changed."""

    status: HealthStatus
    action: Action = "none"
    rule: str = ""
    policy: str = ""
    """First 12 hex digits of the policy file's SHA-256."""
    reason: str = ""
    gpu_index: int = -1
    fault: str = ""
    """Id of the fault that decided."""
    kind: FaultKind | Literal[""] = ""
    """Its kind; empty where no fault decided."""
    code: int = 0
    was: HealthStatus = "unknown"
    instance: str = ""
    job: str = ""
    """Of the fault that decided."""


class Lost(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.health_monitor.event.v1.lost"):
    """A node's heartbeat ran out."""

    instance: str = ""


class Returned(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.health_monitor.event.v1.returned"
):
    """A lost node's heart beats again."""

    instance: str = ""


class Admitted(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.admitted"
):
    """A node passed admission and is in service, or in reserve."""

    saga: str = ""
    spare: bool = False
    """It is kept cordoned until it is promoted."""


class Promoted(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.promoted"
):
    """A spare is in service."""

    instead_of: str = ""
    """The node whose place it took; empty: the pool grew."""
    saga: str = ""


class Cordoned(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.cordoned"
):
    """The workload system places nothing new on the node."""

    reason: str = ""
    saga: str = ""


class Uncordoned(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.uncordoned"
):
    """The workload system may place work on the node again; its health is judged anew."""

    reason: str = ""
    saga: str = ""
    since: UtcTime | None = None
    """When its GPUs were reset, by its own clock: what it reported after that counts still."""
    boot_id: str = ""
    """The boot that a reboot has begun: what was reported of that counts still."""
    cleared_at: UtcTime | None = None
    """When somebody vouched for it: what was stored after that counts still."""


class Held(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.held"):
    """Somebody holds the node: until then nothing automatic takes it out of service."""

    until: UtcTime
    by: str = ""
    reason: str = ""


class Released(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.released"
):
    """The node is held no more: its time is over, or somebody ended it."""

    by: str = ""
    reason: str = ""


class Drained(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.drained"):
    """The node's work is gone, or its drain deadline passed."""

    saga: str = ""
    expired: bool = False
    """True: the deadline passed with work still on the node."""
    waited: bool = True
    """False: nobody waited, so nobody knows whether the work has left."""


class Terminated(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.terminated"
):
    """The provider confirmed that the node's instance is gone."""

    saga: str = ""


class Remediated(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.remediated"
):
    """A reset or a reboot of the node has ended: it is back in service, or it did not help."""

    remedy: SagaKind
    outcome: AttemptOutcome
    attempt: int = 0
    """Which attempt at curing it, of `attempts_max`; 0: somebody asked for it."""
    attempts_max: int = 0
    fault_signature: str = ""
    step: str = ""
    """Where it failed."""
    reason: str = ""
    saga: str = ""
    duration_seconds: float = 0.0


class Repaired(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.metrics.event.v1.repaired"):
    """A node's time out of service has ended, and this is what it cost."""

    saga: str = ""
    """What ended it."""
    outcome: Literal["replaced", "reset", "rebooted", "uncordoned", "removed"]
    new_node: str = ""
    fault_signature: str
    """`xid-79`, `silence`, `by-hand` …"""
    unhealthy_at: UtcTime
    """Since when it was judged unhealthy, lost or cordoned, whichever was first."""
    restored_at: UtcTime
    """Since when its place is filled again."""
    gpu_count: int = 0
    lost_gpu_hours: float = 0.0
    """gpu_count times the hours from `unhealthy_at` to `restored_at`."""
    evidence: str = ""
    """Name of the bundle in the object store EVIDENCE; empty: none is kept of what was by hand."""


class GpuSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One GPU's readings; a reading the GPU does not have is absent."""

    index: int
    uuid: str = ""
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: int | None = None
    memory_temperature_celsius: int | None = None
    temperature_margin_celsius: int | None = None
    sm_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    ecc_dbe_volatile: int | None = None
    ecc_sbe_volatile: int | None = None
    ecc_dbe_aggregate: int | None = None
    ecc_sbe_aggregate: int | None = None
    remapped_correctable: int | None = None
    remapped_uncorrectable: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retired_pages: int | None = None
    nvlink_errors: int | None = None
    nvlinks_up: int | None = None
    pcie_replays: int | None = None
    pcie_width: int | None = None
    pcie_generation: int | None = None
    memory_utilization_percent: int | None = None
    memory_clock_mhz: int | None = None
    power_limit_watts: float | None = None
    fabric_state: int | None = None
    """NVML's: 1 not started, 2 in progress, 3 completed; absent where there is no fabric."""
    fabric_status: int | None = None
    """NVML's return code of the registration with the fabric; 0: it succeeded."""
    fabric_health_mask: int | None = None
    """NVML's bits: degraded bandwidth, route recovery, unhealthy routes, configuration …"""
    extra: dict[str, Any] = {}


class CredentialsIssued(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.credentials_issued"
):
    """A new node's agent was given its own credentials, once, for a key that the node has made."""

    key: str
    """The public key; nothing of it is secret."""


class CredentialsRefused(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.credentials_refused"
):
    """Somebody has a node's bootstrap credentials and was given nothing for them."""

    reason: str


class SetupRan(
    NodeEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.setup_ran"
):
    """One of a pool's `setup_commands` ended on a new node."""

    command: int
    """Counted from 1."""
    commands: int
    text: str = ""
    """Its first line."""
    exit_status: int
    duration_seconds: float = 0.0
    output: str = ""
    """The end of what it wrote."""
    saga: str = ""


class Telemetry(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.agent.event.v1.telemetry"):
    """One NVML sample of the whole node. `time` is when it was taken."""

    gpus: tuple[GpuSample, ...] = ()
    cpu_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    sequence: int = 0
    sampled_at: UtcTime | None = None


NODE_EVENT_TYPES: tuple[type[NodeEvent], ...] = (
    Fault,
    Registered,
    Preempting,
    BootChecked,
    Verdict,
    Lost,
    Returned,
    Admitted,
    Promoted,
    Cordoned,
    Uncordoned,
    Held,
    Released,
    Drained,
    Terminated,
    Remediated,
    Repaired,
    CredentialsIssued,
    CredentialsRefused,
    SetupRan,
    Telemetry,
)

FACTS: dict[type[NodeEvent], str] = {
    Fault: "fault",
    Registered: "registered",
    Preempting: "preempting",
    BootChecked: "boot-checked",
    Verdict: "verdict",
    Lost: "lost",
    Returned: "returned",
    Admitted: "admitted",
    Promoted: "promoted",
    Cordoned: "cordoned",
    Uncordoned: "uncordoned",
    Held: "held",
    Released: "released",
    Drained: "drained",
    Terminated: "terminated",
    Remediated: "remediated",
    Repaired: "repaired",
    CredentialsIssued: "credentials-issued",
    CredentialsRefused: "credentials-refused",
    SetupRan: "setup-ran",
}
"""The last token of each event's subject."""

node_codec = Codec(NODE_EVENT_TYPES)
