"""Records of nodes: buckets NODES and HEARTBEATS, key `<pool>.<node>`."""

from typing import Literal

from schemas.enums import Action, AttemptOutcome, HealthStatus, NodeState, SagaKind
from schemas.messages import Record, UtcTime
from schemas.node_events import GpuIdentity
from schemas.saga_params import LaunchSpec


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


class HeartbeatRecord(Record, frozen=True, kw_only=True):
    """HEARTBEATS `<pool>.<node>`: the agent is alive. Its TTL is the whole protocol."""

    pool: str
    node: str
    instance: str = ""
    boot_id: str = ""
    time: UtcTime


def node_key(pool: str, node: str) -> str:
    """Key of everything that is kept per node."""
    return f"{pool}.{node}"
