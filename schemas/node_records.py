"""Declares the records of nodes: buckets NODES and HEARTBEATS, key `<pool>.<node>`."""

from typing import Final, Literal

import msgspec

from schemas.enums import (
    Action,
    AttemptOutcome,
    DrillReach,
    HealthStatus,
    NodeState,
    NoticeEffect,
    SagaKind,
)
from schemas.launch_offers import Market
from schemas.machine_identity import NodeMachines
from schemas.messages import Record
from schemas.node_events import GpuIdentity
from schemas.saga_params import LaunchSpec
from schemas.value_limits import Address, Identifier, Int, Name, Token, UtcTime

LOSSES_MAX: Final = 16
"""Losses of contact that a node's record has."""
GANGS_MAX: Final = 4
"""Gangs that a node's record has."""
DRAINED_BEFORE_SECONDS: Final = 5.0
"""So long before the cloud takes a node its drain ends: the rest may take as long."""


class RemediationAttempt(Record, frozen=True, kw_only=True):
    """One reset or reboot of a node, or its last replacement, derived from its saga's log."""

    saga: str
    kind: SagaKind
    fault_signature: str = ""
    at: UtcTime
    ended_at: UtcTime | None = None
    outcome: AttemptOutcome = "open"
    reason: str = ""
    """Why it failed or was cancelled."""
    tried: bool = True
    """Whether it was begun: the workload system may not have cordoned the node."""
    cordoned_by_operator: bool = True
    """Whether its node was cordoned before, other than for a quarantine or an earlier attempt."""
    for_silence: bool = False
    """Whether it was begun for the node's silence alone."""
    kept_at: Int = 0
    """How many sagas had been about the node when a later one left its cordon as it was; 0: no."""
    unfit: bool = False
    """Whether the node failed the check after it."""


class CloudNotice(Record, frozen=True, kw_only=True):
    """A provider's notice about a node, as the agent received it."""

    kind: Literal["preemption", "maintenance"] = "preemption"
    action: str = ""
    reason: str = ""
    effect: NoticeEffect = "reclaim"
    deadline: UtcTime | None = None
    window_end: UtcTime | None = None
    at: UtcTime
    """Time of the last event about it; older events are ignored."""
    withdrawn: bool = False
    boot_id: str = ""
    """The boot that a restart is to end; empty: not known."""


class WorkloadView(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Records what the workload system said last: the node is unusable, or cordoned by another."""

    system: str
    ready: bool = True
    cordoned: bool = False
    """By another than Navarch."""
    reason: str = ""
    since: UtcTime | None = None


class Quarantine(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An unhealthy node was cordoned by Navarch alone, until its repair begins or it is healthy."""

    reason: str = ""
    """What is wrong with it."""
    since: UtcTime
    failed_at: UtcTime | None = None
    """When its last cordon or uncordon failed: whether it takes work is unknown, and the order is
    repeated."""


class NodeRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """NODES `<pool>.<node>`: a node from the decision to launch it until its instance is gone."""

    pool: Token
    node: Token
    state: NodeState = "launching"
    cordoned: bool = False
    cordoned_at: UtcTime | None = None
    """Since when; absent while it is not cordoned."""
    quarantine: Quarantine | None = None
    """Set while the cordon is a quarantine: not an operator's, and not a repair's."""
    tests: tuple[UtcTime, ...] = ()
    """When its last rechecks began, oldest first."""
    test_failed_at: UtcTime | None = None
    """When NVML last did not answer in one: evidence against the node beside its kernel log."""
    spare: bool = False
    """It is kept cordoned until it replaces another node."""
    drained: bool = False
    """Its drain is over: no work was left, or `drain_expired`."""
    drain_expired: bool = False
    """The time of its drain was up with work left on it."""
    lost: bool = False
    lost_at: UtcTime | None = None
    provider_state: Literal["", "present", "gone", "disconnected"] = ""
    """State of a lost node's instance; empty: not queried yet, or unknown to the provider.
    disconnected: its silence is ours, because its credentials are refused or have expired."""
    down_reason: str = ""
    """Of a lost node: why its instance does not run, as its provider reports; empty: unknown, or it
    runs."""
    losses: tuple[UtcTime, ...] = ()
    """When it was lost, the last at the end; without those of repairs and announced restarts, and
    of before it was last uncordoned."""
    return_due: bool = False
    """`lost` was published, and no `returned` since: also once its agent has registered again."""
    liveness_at: UtcTime | None = None
    """Time of the last `lost` or `returned` event applied; older events are ignored."""
    saga: str = ""
    """The one open saga, if any."""
    saga_entry: Int = 0
    """Sequence in SAGAS of the last entry applied to this record; older entries are ignored."""
    sagas: Int = 0
    """Number of sagas about this node that have ended; the next saga's number."""
    reason: str = ""
    health: HealthStatus = "unknown"
    """As of the last verdict; the health-monitor's own record is in HEALTH."""
    health_at: UtcTime | None = None
    health_action: Action = "none"
    health_reason: str = ""
    health_fault: str = ""
    health_kind: str = ""
    """Kind of that fault: equal faults on several nodes make an incident."""
    health_code: Int = 0
    health_job: str = ""
    """Job whose process caused that fault."""
    health_drill: DrillReach = ""
    """How far the drill goes whose fault that is; empty: a real one."""
    health_gpu: Int = -1
    """Index of the GPU that the verdict is about; -1: the whole node, or unknown."""
    faulty_gpus: tuple[Int, ...] = ()
    """GPUs that are to get no new work while the node stays in service, by the last verdict."""
    cordoned_gpus: tuple[Int, ...] = ()
    """GPUs that the workload system gives no new work, as it was last ordered."""
    gpu_cordon_failed_at: UtcTime | None = None
    """When that order last failed; None: it did not."""
    promotion_unknown_at: UtcTime | None = None
    """When a promotion of this spare, or its cordon after that, ended without a known result."""
    attempts: tuple[RemediationAttempt, ...] = ()
    """The last resets and reboots, oldest first."""
    health_trace: str = ""
    """traceparent of the verdict, so that its consequences join that trace."""
    no_room_since: UtcTime | None = None
    """Since when its replacement finds no capacity beside it; None once it is uncordoned."""
    notices: dict[str, CloudNotice] = {}
    """Notices by ID, withdrawn ones included."""
    withdrawals: tuple[UtcTime, ...] = ()
    """When notices were last withdrawn, oldest first: several make further ones less credible."""
    sole_notice: str = ""
    """The notice that alone took the node out of service, in a saga since unwound."""
    held_until: UtcTime | None = None
    """Until then automation leaves the node alone."""
    held_by: str = ""
    held_reason: str = ""
    workload: WorkloadView | None = None
    """None: its workload system says nothing, or that it is ready and not cordoned by another."""
    workload_at: UtcTime | None = None
    """Time of the last event about that; older events are ignored."""
    gangs: tuple[Name, ...] = ()
    """Jobs of several nodes that run on it, or ran when its saga began, while it is unhealthy or
    drains; at most GANGS_MAX."""
    gangs_at: UtcTime | None = None
    """Time of the last event about them; older events are ignored."""
    launch: LaunchSpec | None = None
    hostname: str = ""
    address: Address = ""
    region: Identifier = ""
    zone: Identifier = ""
    rack: str = ""
    nvlink_domain: str = ""
    """What its GPUs report of that, whatever the rack is called."""
    host: str = ""
    """The physical machine, where the provider names it."""
    market: Market | Literal[""] = ""
    """On which it was launched; empty: an older release or others launched it."""
    restarts_cold: bool = False
    """Its provider can switch the machine off and on."""
    denied_reason: str = ""
    """Why its hardware must not be admitted; set after a denylist lookup and never stored."""
    misplaced_reason: str | None = ""
    """Why it is not where it belongs, None: not known yet; set like `denied_reason`."""
    boot_id: str = ""
    identity: NodeMachines | None = None
    """Which machine the node is, and which others used its name; None: it has not registered since
    this is recorded."""
    gpus: tuple[GpuIdentity, ...] = ()
    boot_checked: bool | None = None
    boot_checked_id: str = ""
    """The boot that was checked; events may arrive out of order."""
    boot_detail: str = ""
    driver_version: str = ""
    agent_version: str = ""
    drills: bool = False
    """Whether the agent's own settings allow drills on the node."""
    registered_at: UtcTime | None = None
    admitted_at: UtcTime | None = None
    changed_at: UtcTime | None = None

    @property
    def is_quarantined(self) -> bool:
        """True where the node is cordoned only because it is unhealthy and its repair waits."""
        return self.cordoned and self.quarantine is not None


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Records whether any GPU of a node is in use, as its agent samples it, and since when."""

    busy: bool
    since: UtcTime


class HeartbeatRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """HEARTBEATS `<pool>.<node>`: the agent is alive until the record's TTL expires.

    It repeats what the agent has read in its node's record, so that a record restored from a backup
    is recognised.
    """

    pool: Token
    node: Token
    instance: str = ""
    boot_id: str = ""
    time: UtcTime
    admitted_at: UtcTime | None = None
    """Of the node's record; kept when the record no longer has it."""
    sagas: Int = 0
    """The highest `sagas` of the node's record since that admission."""
    gpu_use: GpuUse | None = None
    """None: not known."""
    credentials_until: UtcTime | None = None
    """When the agent's credentials expire; absent until the last quarter of their life."""
    unwritable: bool = False
    """Whether EVENTS stores nothing of what the agent publishes: it may be the only one to know."""


def is_made_by_others(node: NodeRecord) -> bool:
    """Return whether Navarch adopted a node's machine: others may give its name again."""
    return node.launch is not None and not node.launch.fleet


def node_key(pool: str, node: str) -> str:
    """Return the key of every record about one node."""
    return f"{pool}.{node}"
