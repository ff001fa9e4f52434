"""What the buckets hold, one record a key. One writer per bucket; everyone reads."""

from datetime import datetime
from typing import Any, Literal

import msgspec

from schemas.autoscaling_advice import Advice
from schemas.breaker_state import Breaker, ObservedAction, OpenIncident
from schemas.duration import decode_hook
from schemas.launch_offers import Offering
from schemas.messages import Record, UtcTime
from schemas.node_events import GpuIdentity, Metric
from schemas.reasons import (
    Action,
    AttemptOutcome,
    DrainMode,
    FaultKind,
    HealthStatus,
    InstanceState,
    NodeState,
    SagaKind,
)
from schemas.requests import CompletedRequest
from schemas.saga_log_entries import LaunchSpec
from schemas.settings import PoolSpec


class FleetRecord(Record, frozen=True, kw_only=True):
    """POOLS `fleet`: which fleet this bus carries; every instance is tagged with it."""

    id: str


class OpenSaga(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A saga that a pool has decided on and that has not ended."""

    kind: SagaKind
    node: str = ""
    """The node it takes out of service or acts on."""
    new_node: str = ""
    """The node it brings."""
    spare: bool = False
    """The node it brings, or takes away, is one of the reserve."""
    promotes: str = ""
    """The spare that it puts into service."""
    reason: str = ""
    action: Action = "none"
    fault: str = ""
    by: str = ""
    trace: str = ""
    """traceparent of what led to it, so that the whole replacement is one trace."""
    cause: str = ""
    fault_signature: str = ""
    """What its node has (`xid-79`, `silence`): sagas of one incident are counted by it."""
    drain: DrainMode | Literal[""] = ""
    """Empty: as the pool says."""
    drain_timeout_seconds: float | None = None
    """None: as the pool says."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs to reset; empty: all."""
    boot_id: str = ""
    """The boot that a reboot is to end."""
    restores_service: bool = False
    """Its node was well and in service when somebody asked: unwinding gives it back."""
    attempt: int = 0
    """Which attempt at curing the node it is, of `attempts_max`."""
    attempts_max: int = 0
    order: str = ""
    """Empty: as the pool says."""
    notice: str = ""
    """The cloud's announcement that led to it, if one did."""
    sole_notice: str = ""
    """The same, where the node is out of service for nothing else."""
    cleared_at: UtcTime | None = None
    """When somebody vouched for the node that it gives back; None: when it began."""
    since: UtcTime


class PoolRecord(Record, frozen=True, kw_only=True):
    """POOLS `pool.<pool>`: what is wanted and what is under way.

    Every decision about a pool is one compare-and-set of this record, so that two replicas cannot
    both spend the same budget or fill the same gap.
    """

    name: str
    spec: PoolSpec
    desired: int
    scaled_at: UtcTime | None = None
    """When the desired size was changed last, by whomever; the autoscaler's cooldown counts it."""
    advice: Advice | None = None
    """What the autoscaler asks for and does not get; None: it has what it wants."""
    serial: int = 0
    """Counts the nodes ever named in this pool."""
    open: dict[str, OpenSaga] = {}
    breaker: Breaker = Breaker()
    disruptions: dict[str, int] = {}
    """Replacements and drains begun, by slots (epoch seconds) of a sixtieth of the window."""
    fleet_disruptions: dict[str, int] = {}
    """The same, by slots of the fleet's window."""
    resets: dict[str, int] = {}
    """GPU resets and reboots begun, by slots of the budget's window."""
    fleet_resets: dict[str, int] = {}
    """The same, by slots of the fleet's window."""
    operator_notified: dict[str, str] = {}
    """Node -> id of what people were asked to look at: nobody is asked twice."""
    incidents: dict[str, OpenIncident] = {}
    """Sickness -> the incident that is open."""
    observed_actions: dict[str, ObservedAction] = {}
    """Under mode observe: what would be under way."""
    failures: int = 0
    """Launches that failed one after the other; sets the wait before the next."""
    over_spend_cap: bool = False
    """All of those were to make the pool larger, and refused for a spend_cap: what replaces a node
    gives back what it costs, and goes on."""
    retry_at: UtcTime | None = None
    refusals: int = 0
    """New nodes that were refused at admission, one after the other."""
    avoid: dict[str, UtcTime] = {}
    """Zone -> until when it comes last, because hardware from there was refused."""
    applied: str = ""
    """The last request that made or changed it; empty: the configuration's."""
    removing: str = ""
    """The request to remove it; empty: it stays."""
    promote_at: UtcTime | None = None
    """Not before this is a spare put into a gap again, after that has failed."""
    completed_requests: tuple[CompletedRequest, ...] = ()
    """The last requests that were, oldest first."""
    pending_events: tuple[msgspec.Raw, ...] = ()
    """Facts that were decided together with this record and may not have been published yet."""


class RemovedPool(Record, frozen=True, kw_only=True):
    """POOLS `removed.<pool>`: what outlives a pool, so that no node is ever named twice."""

    serial: int = 0
    removal: CompletedRequest | None = None
    """The request that removed it: an older one must not make it again."""


class Attempt(Record, frozen=True, kw_only=True):
    """One reset or reboot of a node, as its saga's log tells it."""

    saga: str
    kind: SagaKind
    fault_signature: str = ""
    at: UtcTime
    ended_at: UtcTime | None = None
    outcome: AttemptOutcome = "open"
    reason: str = ""
    """Why it failed or was cancelled."""


class CloudNotice(Record, frozen=True, kw_only=True):
    """The cloud's word that it takes a node, as the agent heard it."""

    kind: Literal["preemption", "maintenance"] = "preemption"
    action: str = ""
    reason: str = ""
    deadline: UtcTime | None = None
    at: UtcTime
    """Of the last event about it; an older one changes nothing."""
    withdrawn: bool = False


class NodeRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """NODES `<pool>.<node>`: a node from its intention until its instance is gone."""

    pool: str
    node: str
    state: NodeState = "launching"
    cordoned: bool = False
    spare: bool = False
    """Kept cordoned in reserve."""
    drained: bool = False
    lost: bool = False
    lost_at: UtcTime | None = None
    provider_state: Literal["", "present", "gone"] = ""
    """Of a lost node's instance; empty: not asked yet, or it cannot say."""
    liveness_at: UtcTime | None = None
    """Of the last loss or return that was applied; an older one changes nothing."""
    saga: str = ""
    """The one open saga, if any."""
    saga_entry: int = 0
    """Sequence in SAGAS of the last entry that this record has taken in; older ones are stale."""
    sagas: int = 0
    """How many sagas about this node have ended; the next one's number."""
    reason: str = ""
    health: HealthStatus = "unknown"
    """As of the last verdict; the health-monitor's own record is in HEALTH."""
    health_at: UtcTime | None = None
    health_action: Action = "none"
    health_reason: str = ""
    health_fault: str = ""
    health_kind: str = ""
    """Kind and code of that fault: nodes that have the same at once are one incident."""
    health_code: int = 0
    health_job: str = ""
    """Whose process that fault was of: fault signature that a job brings is the job's."""
    health_gpu: int = -1
    """Index of the GPU that the verdict is about; -1: of the node, or it is not known."""
    attempts: tuple[Attempt, ...] = ()
    """The last resets and reboots, oldest first."""
    health_trace: str = ""
    """traceparent of the verdict, so that what it leads to is one trace."""
    notices: dict[str, CloudNotice] = {}
    """What the cloud has announced, by the announcement's id; withdrawn ones too."""
    sole_notice: str = ""
    """The announcement ahead of which it was taken out of service, by a saga then unwound."""
    held_until: UtcTime | None = None
    """Until then nothing automatic takes the node out of service."""
    held_by: str = ""
    held_reason: str = ""
    launch: LaunchSpec | None = None
    hostname: str = ""
    address: str = ""
    region: str = ""
    zone: str = ""
    rack: str = ""
    host: str = ""
    """The physical machine, where the provider tells."""
    denied_reason: str = ""
    """Why its hardware must not be admitted; filled in when that is looked up, and not stored."""
    boot_id: str = ""
    gpus: tuple[GpuIdentity, ...] = ()
    boot_checked: bool | None = None
    boot_checked_id: str = ""
    """The boot that was checked; events of one node may arrive out of order."""
    boot_detail: str = ""
    driver_version: str = ""
    agent_version: str = ""
    registered_at: UtcTime | None = None
    admitted_at: UtcTime | None = None
    changed_at: UtcTime | None = None


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


class InstanceRecord(Record, frozen=True, kw_only=True):
    """INSTANCES `<pool>.<node>`: what costs money, from the intention to the confirmed absence."""

    pool: str
    instance: str
    """Our own name: the node's."""
    state: InstanceState = "intended"
    provider: str
    token: str
    """Idempotency token and tag: the same for every try of this intention."""
    launch: LaunchSpec
    offering: Offering | None = None
    """What was chosen, recorded before it is asked for; None: nothing has been asked for yet."""
    provider_id: str = ""
    region: str = ""
    zone: str = ""
    address: str = ""
    host_key: str = ""
    """SSH host key as first seen, `ssh-ed25519 AAAA…`; another one at this address is refused."""
    host: str = ""
    """The physical machine, where the provider tells."""
    agent_key: str = ""
    """Public key that this node's credentials were issued for; no second key gets any."""
    saga: str = ""
    attempts: int = 0
    asks: int = 0
    """How many have asked a provider without idempotency tokens: all but the first look before."""
    rebooted: str = ""
    """Saga and step of the last reboot that the provider accepted: it is not asked for twice."""
    error: str = ""
    dollars_per_hour: float = 0.0
    intended_at: UtcTime
    running_at: UtcTime | None = None
    terminating_at: UtcTime | None = None
    """Since when it should be gone; how long that may take decides what is called leaked."""
    removal_attempts: int = 0
    """How often its provider was asked in vain to remove it, as far as that was noted."""
    tried_at: UtcTime | None = None
    """When it was asked last."""
    terminated_at: UtcTime | None = None


class HeartbeatRecord(Record, frozen=True, kw_only=True):
    """HEARTBEATS `<pool>.<node>`: the agent is alive. Its TTL is the whole protocol."""

    pool: str
    node: str
    instance: str = ""
    boot_id: str = ""
    time: UtcTime


class LeaseRecord(Record, frozen=True, kw_only=True):
    """LEASES `<name>`: who does what only one may do."""

    holder: str
    since: UtcTime


class RateLimitRecord(Record, frozen=True, kw_only=True):
    """LEASES `pace-<name>`: whose turn it is at something that may be asked only so often.

    The turn begins when this was stored, or at `not_before`, whichever is later.
    """

    not_before: UtcTime | None = None
    kind: str = ""
    """Of a turn of which there may be fewer still: `launch`."""
    slower: dict[str, UtcTime] = {}
    """Kind -> from when on the next of it may be; that of this very turn is counted anew."""


def decoder(kind: type[Record]) -> msgspec.json.Decoder[Any]:
    """A decoder for one kind of record."""
    return msgspec.json.Decoder(kind, dec_hook=decode_hook)


def is_after(note: RecordedFault, since: datetime | None, boot_id: str) -> bool:
    """Whether a fault was seen after a node was mended: after a reset, or in the new boot."""
    after_reset = since is not None and note.time > since
    return after_reset or (boot_id != "" and note.boot_id == boot_id)


def node_key(pool: str, node: str) -> str:
    """Key of everything that is kept per node."""
    return f"{pool}.{node}"


def pool_key(pool: str) -> str:
    """Key of a pool in POOLS."""
    return f"pool.{pool}"


def removed_key(pool: str) -> str:
    """Key of what outlives a pool."""
    return f"removed.{pool}"


FLEET_KEY = "fleet"
"""Key of the fleet in POOLS."""
