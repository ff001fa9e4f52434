"""Declares events about nodes, on `navarch.v1.node.<pool>.<node>.event.<event>`, and telemetry."""

from typing import Final, Literal

from schemas.drill_orders import DrillStarted as DrillStarted
from schemas.enums import (
    Action,
    AttemptOutcome,
    DrillReach,
    FaultKind,
    HealthStatus,
    NoticeEffect,
    SagaKind,
)
from schemas.gpu_samples import CheckResult as CheckResult
from schemas.gpu_samples import GpuIdentity as GpuIdentity
from schemas.gpu_samples import GpuSample
from schemas.gpu_samples import Metric as Metric
from schemas.held_conditions import ConditionList
from schemas.machine_identity import MachineIdentity
from schemas.messages import (
    AGENT,
    HEALTH_MONITOR,
    METRICS,
    NOTIFIER,
    POOL_MANAGER,
    PROVISIONER,
    Codec,
    last_word,
    publisher,
)
from schemas.node_event import NodeEvent as NodeEvent
from schemas.node_work import RemainingWork
from schemas.value_limits import Address, Float, Identifier, Int, Name, Seconds, UtcTime


class Fault(NodeEvent, frozen=True, kw_only=True, tag=AGENT):
    """A fault is one hardware event that a host observed. `time` is when the host observed it."""

    kind: FaultKind
    system: str = ""
    """The subsystem, by DCGM's name where it has one (`DCGM_HEALTH_WATCH_PCIE`)."""
    gpu_index: Int = -1
    """-1: the whole node, or an unidentified GPU."""
    gpu_uuid: Identifier = ""
    gpu_serial: Identifier = ""
    pci: Identifier = ""
    code: Int = 0
    """XID or SXID; 0 where the kind has none."""
    subcode: str = ""
    message: str = ""
    """Kernel log line, or a sentence for the operator."""
    metrics: dict[str, Metric] = {}
    """Values that a health policy can use: `xid_code`, `temperature`, `ecc_dbe_count` …"""
    source: str = "kmsg"
    """Where it was observed: kmsg, nvml, host, cloud. drill: nowhere, an operator began a drill; of
    an agent such a fault counts nowhere."""
    boot_id: Name = ""
    sequence: Int = 0
    """Sequence in the kernel log, or the source's own counter."""
    job: str = ""
    """Job of the process, where the host knows it: `slurm-1234`, `pod-<uid>`."""
    condition: Name = ""
    """The condition that begins with it, and holds until it is seen no more; empty: an event."""
    counter: Int = 0
    since: UtcTime | None = None
    """When the condition was first seen."""


class ConditionEnded(NodeEvent, frozen=True, kw_only=True, tag=AGENT):
    """A condition that held is seen no more. `cause` is the fault with which it began."""

    condition: Name
    gpu_index: Int = -1
    boot_id: Name = ""
    counter: Int = 0
    message: str = ""


class Registered(NodeEvent, frozen=True, kw_only=True, tag=AGENT):
    """An agent started and described its node."""

    instance: Identifier
    hostname: Name = ""
    boot_id: Identifier = ""
    gpus: tuple[GpuIdentity, ...] = ()
    driver_version: Name = ""
    agent_version: Name = ""
    address: Address = ""
    rack: Name = ""
    """Rack of the host, by the operator, the NVLink domain or the cloud: what fails together."""
    nvlink_domain: Name = ""
    """`ClusterUUID.CliqueId` of the NVLink fabric of several hosts that all its GPUs are in."""
    provider_id: Identifier = ""
    """The instance's ID by the metadata of AWS, Google Cloud or Azure, as the provider lists it."""
    machine_id: Identifier = ""
    """The UUID of the machine by its firmware (DMI); empty: not readable."""
    drills: bool = False
    """Whether the agent's own settings allow drills on the node."""


class ProviderNotice(NodeEvent, frozen=True, kw_only=True, tag=AGENT):
    """The provider gave notice about the node, or withdrew a notice."""

    notice: Name
    """ID of the notice; a withdrawal has the same."""
    kind: Literal["preemption", "maintenance"] = "preemption"
    action: Name = ""
    """The cloud's term for its action: terminate, stop, hibernate …"""
    message: str = ""
    effect: NoticeEffect = "reclaim"
    deadline: UtcTime | None = None
    """Earliest time of the action; None: at any moment."""
    window_end: UtcTime | None = None
    """Latest time by which the action is over, where the cloud names it."""
    withdrawn: bool = False
    boot_id: Name = ""


class BootChecked(NodeEvent, frozen=True, kw_only=True, tag=AGENT):
    """The boot checks ended; a node is admitted only when they passed."""

    ok: bool
    checks: tuple[CheckResult, ...] = ()
    boot_id: Name = ""


class Verdict(NodeEvent, frozen=True, kw_only=True, tag=HEALTH_MONITOR):
    """A node's health changed."""

    status: HealthStatus
    action: Action = "none"
    rule: str = ""
    policy: str = ""
    """First 12 hex digits of the policy file's SHA-256."""
    reason: str = ""
    gpu_index: Int = -1
    fault: str = ""
    """ID of the fault that decided."""
    kind: FaultKind | Literal[""] = ""
    """Kind of that fault; empty where no fault decided."""
    code: Int = 0
    previous: HealthStatus = "unknown"
    instance: Name = ""
    job: str = ""
    """Job of the fault that decided."""
    cordon_gpus: tuple[Int, ...] = ()
    """GPUs that are to get no new work while the node stays in service."""
    drill: DrillReach = ""
    """Set where the fault that decided is a drill's: how far it goes."""


class Lost(NodeEvent, frozen=True, kw_only=True, tag=HEALTH_MONITOR):
    """A node's heartbeats stopped."""

    instance: Name = ""
    credentials_expired: bool = False
    """They stopped when its credentials expired."""


class Returned(NodeEvent, frozen=True, kw_only=True, tag=HEALTH_MONITOR):
    """A lost node sends heartbeats again."""

    instance: Name = ""


class Admitted(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A node passed admission and is in service, or a spare."""

    saga: str = ""
    spare: bool = False
    """It is kept cordoned until it is promoted."""


class MachineRefused(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A second machine uses the node's ID: what it reports is ignored. Repeated once an hour."""

    machine: MachineIdentity
    """The node's own."""
    refused: MachineIdentity
    reason: str = ""
    remedy: str = ""


class IdentityChanged(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """An admitted node's agent reports another identity than the node was admitted with.

    The record keeps the fixed one until the agent reports it again, or an operator accepts
    the other.
    """

    status: Literal["changed", "restored", "accepted"]
    reason: str = ""
    """The differences, and whose GPUs are claimed."""
    by: Name = ""
    remedy: str = ""


class Promoted(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A spare is in service."""

    instead_of: str = ""
    """The node that it replaced; empty: the pool grew."""
    saga: str = ""


class Cordoned(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The workload system places no new work on the node."""

    reason: str = ""
    saga: str = ""


class Uncordoned(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The workload system may place work on the node again; its health state is reset."""

    reason: str = ""
    saga: str = ""
    since: UtcTime | None = None
    """When its GPUs were reset, by its own clock: what it reported after that counts still."""
    boot_id: Name = ""
    """The boot that a reboot has begun: what was reported of that counts still."""
    cleared_at: UtcTime | None = None
    """When an operator declared it healthy; later faults still count."""


class NodeHeld(NodeEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.held"):
    """An operator holds the node: until then automation leaves it alone."""

    until: UtcTime
    by: str = ""
    reason: str = ""


class Released(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A hold ended: it expired, or an operator released it."""

    by: str = ""
    reason: str = ""


class WorkRemains(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """A drain waits for work; published when that changes, soon at first, then once a minute."""

    saga: str
    work: tuple[RemainingWork, ...] = ()
    """The first five."""
    total: Int
    until: UtcTime | None = None
    """When what is left is evicted; absent: it may take as long as it needs."""
    detail: Name = ""  # why it stays, in the workload system's words


class CheckpointRequested(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """The work on a node was asked for a checkpoint, before its drain."""

    saga: str
    work: tuple[RemainingWork, ...] = ()
    """The first twenty."""
    total: Int
    until: UtcTime
    """Until then it may leave by itself; then the drain is ordered. Where all that is left by then
    has announced its checkpoint, it is evicted at once."""


class OwnersNotified(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """The owners of work on a node are sent a message: a drain with a deadline has begun.

    It is published before the first message, so that no owner gets two about one drain.
    """

    saga: str
    work: tuple[RemainingWork, ...] = ()
    """The first twenty, with their owners."""
    total: Int
    until: UtcTime
    """When the work that is left is ended."""


class OwnerNoticeFailed(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """An owner of work was not reached before the work is ended; the drain goes on."""

    saga: str
    owner: Name = ""
    """Empty: no owner was reached."""
    reason: Name = ""


class WorkLeft(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """A workload system called back: the work that a saga's drain waits for has left the node."""

    saga: str
    by: Name
    """The user in the order's subject."""


class WorkloadState(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """The workload system changed what it says of the node itself."""

    system: Name
    """The notifier that read it, as `kubernetes`."""
    ready: bool = True
    """False: the workload system cannot use the node (NotReady, DOWN)."""
    cordoned: bool = False
    """Another than Navarch has cordoned it: Navarch does not uncordon it."""
    reason: Name = ""
    """In the system's own words; empty for a node that is ready and not cordoned."""
    since: UtcTime | None = None
    """Since when, where the system says it."""


class WorkGangs(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """Jobs of several nodes run on a node that is unhealthy or drains; all known ones."""

    gangs: tuple[Name, ...] = ()


class WorkFailed(NodeEvent, frozen=True, kw_only=True, tag=NOTIFIER):
    """A job failed on the node, as the workload system says. `time` is when it failed."""

    system: Name
    work: RemainingWork
    reason: Name = ""


class Drained(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The node's work is gone, or its drain deadline passed."""

    saga: str = ""
    expired: bool = False
    """True: the deadline passed with work still on the node."""
    waited: bool = True
    """False: the drain did not wait for a confirmation, so whether work is left is unknown."""


class Terminated(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The node has left its pool: the provider removes its instance, or it becomes a leak."""

    saga: str = ""
    sagas: Int = 0
    """Where others removed it: how many sagas were about it."""


class Remediated(NodeEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A reset or a reboot of the node has ended, successfully or not."""

    remediation: SagaKind
    outcome: AttemptOutcome
    attempt: Int = 0
    """Number of this attempt, of `attempts_max`; 0: an operator requested it."""
    attempts_max: Int = 0
    fault_signature: str = ""
    step: str = ""
    """The step that failed."""
    reason: str = ""
    saga: str = ""
    duration_seconds: Seconds = 0.0


class Repaired(NodeEvent, frozen=True, kw_only=True, tag=METRICS):
    """A node's outage has ended, with its cost."""

    saga: str = ""
    """The saga that ended the outage."""
    outcome: Literal["replaced", "reset", "rebooted", "uncordoned", "removed"]
    new_node: str = ""
    fault_signature: str
    """`xid-79`, `silence`, `operator-request` …"""
    unhealthy_at: UtcTime
    """When the node became unhealthy, lost or cordoned, whichever was first."""
    restored_at: UtcTime
    """When it was back in service, or its replacement was admitted."""
    gpu_count: Int = 0
    lost_gpu_hours: Float = 0.0
    """gpu_count times the hours from `unhealthy_at` to `restored_at`."""
    evidence: str = ""
    """Name of the bundle in EVIDENCE; empty: operator requests without a fault have none."""


class CredentialsIssued(NodeEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """A new node's agent received its own credentials, for a key that the node generated."""

    key: str
    """The public key; it is not secret."""


class CredentialsRefused(NodeEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """A request with a node's bootstrap credentials was refused."""

    reason: str


class BusAccess(NodeEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """A node's credentials are refused because its agent floods the bus, or accepted again."""

    refused: bool
    reason: str = ""
    by: Name = ""


class SetupRan(NodeEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """One of a pool's `setup_commands` ended on a new node."""

    command: Int
    """Number of the command, from 1."""
    commands: Int
    text: str = ""
    """Its first line."""
    exit_status: Int
    duration_seconds: Seconds = 0.0
    output: str = ""
    """The end of its output."""
    saga: str = ""


class Telemetry(NodeEvent, frozen=True, kw_only=True, tag=AGENT):
    """The agent sampled the whole node by NVML. `time` is when it was taken."""

    gpus: tuple[GpuSample, ...] = ()
    cpu_percent: Float | None = None
    memory_used_bytes: Int | None = None
    memory_total_bytes: Int | None = None
    sequence: Int = 0
    sampled_at: UtcTime | None = None
    conditions: ConditionList | None = None
    """What holds on the node; None: an agent of an earlier release, which does not say it."""


NODE_EVENT_TYPES: tuple[type[NodeEvent], ...] = tuple(NodeEvent.__subclasses__())
FACTS: dict[type[NodeEvent], str] = {
    **{each: last_word(each) for each in NODE_EVENT_TYPES if each is not Telemetry},
    ConditionEnded: "fault",  # in order after the faults with which conditions begin
}
"""Event class -> last token of its subject."""
FACTS_OF_AGENTS: Final = tuple(
    dict.fromkeys(fact for kind, fact in FACTS.items() if publisher(kind) == "agent")
)
FACTS_OF_SERVICES: Final = tuple(each for each in FACTS.values() if each not in FACTS_OF_AGENTS)

node_codec = Codec(NODE_EVENT_TYPES)
