"""Declares the records of pools and of the fleet: bucket POOLS."""

from typing import Annotated, ClassVar, Final, Literal

import msgspec

from schemas.autoscaling_advice import AutoscalingAdvice
from schemas.breaker_state import Breaker, ObservedAction, OpenIncident
from schemas.enums import DrainMode, SagaKind
from schemas.messages import Record
from schemas.operator_requests import CompletedRequest
from schemas.saga_params import SagaTraits
from schemas.settings import PoolSpec
from schemas.value_limits import (
    Float,
    Identifier,
    Int,
    Name,
    OptionalToken,
    Seconds,
    Slot,
    Token,
    UtcTime,
)


class FleetRecord(Record, frozen=True, kw_only=True, omit_defaults=True):
    """POOLS `fleet`: the fleet's ID, with which every instance is tagged."""

    id: Annotated[Identifier, msgspec.Meta(min_length=1)]
    restored_at: UtcTime | None = None
    """When the pool-manager last noticed that the whole store was restored from a backup. What
    sagas of before have done since the backup is unknown."""


class WorkloadName(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Records the last request about one of the workload system's names for a pool's nodes."""

    wanted: bool
    """Whether there is to be a node of this name."""
    sequence: Int = 0
    """Of the request; an older one changes nothing."""
    at: UtcTime


class OpenSaga(SagaTraits, Record, frozen=True, kw_only=True, omit_defaults=True):
    """A saga that the pool has decided on and that has not ended."""

    kind: SagaKind
    trace: str = ""
    """traceparent of what led to it, so that one replacement is one trace."""
    cause: str = ""
    drain: DrainMode | Literal[""] = ""
    """Empty: the pool's."""
    drain_timeout_seconds: Seconds | None = None
    """None: the pool's."""
    order: str = ""
    """Empty: the pool's."""
    workload_name: str = ""
    """The name that the workload system gave `new_node`."""
    gang: OptionalToken = ""
    """The launches with which `new_node` is launched in one place, or not at all."""
    gang_size: Int = 0
    rack: Name = ""
    """The rack of `node`, where racks are units."""
    since: UtcTime
    counted: bool = False
    """The budget's rates count it."""
    called_off: str = ""
    """Why its launch is given up: the pool no longer wants the node. Empty: it is wanted."""
    launch_failed: bool = False
    """Its launch has failed, and its machine is being removed: the pool launches another."""


class AwaitedSuccessor(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A node was removed whose maker is to make another: it has not joined yet."""

    saga: str
    since: UtcTime
    began_at: UtcTime
    """When the replacement began."""
    reason: str = ""
    overdue: bool = False
    """Operators know that none has joined in time, and the pool expects one node fewer."""
    successor: Token | Literal[""] = ""
    """The node that joins in its place, until that is published."""


class DearNode(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A node that costs much more than what could be launched in its place."""

    dollars_per_hour: Float
    """What it costs now."""
    cheaper: Float
    """What its successor would cost."""
    offering: str
    """From which offering."""
    since: UtcTime
    at: UtcTime
    """When that was last found."""


class OpenCondition(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Records a condition of a pool that holds, such as fewer nodes than its minimum."""

    since: UtcTime
    reported: bool = False
    """Operators know of it."""
    reason: str = ""
    """What was published of it."""


class Growth(Record, frozen=True, kw_only=True):
    """Records what an autoscaler grew a pool for, until the effect of it is known."""

    at: UtcTime
    nodes: Int
    """That are to be added."""
    waiting: dict[str, Int]
    """Shape of jobs -> how many waited."""
    size: Int = 0
    """Size of the pool with them; 0: written by an earlier release."""


class CapacityEnd(Record, frozen=True, kw_only=True):
    """Records when the provider takes nodes of one market and zone."""

    place: str
    at: UtcTime
    since: UtcTime
    """When the pool-manager first knew of it."""
    shared: bool = False
    """What is launched there has the same end, as in a capacity block or a dated reservation."""


class PoolRecord(Record, frozen=True, kw_only=True):
    """POOLS `pool.<pool>`: the pool's desired size, open sagas and safety state.

    Every decision about a pool is one compare-and-set of this record, so that two replicas cannot
    use the same budget or fill the same gap twice.
    """

    is_packed_when_large: ClassVar[bool] = True
    name: Token
    spec: PoolSpec
    desired: Int
    scaled_at: UtcTime | None = None
    """When the desired size last changed; the autoscaler's cooldown counts from it."""
    advice: AutoscalingAdvice | None = None
    """Autoscaling advice that is not followed; None: the advice is followed."""
    growth: Growth | None = None
    """The autoscaler's last growth, while its effect on the waiting jobs is unknown."""
    unserved: dict[str, Int] = {}
    """Shape of jobs -> how many kept waiting while nodes that were added for them had no work."""
    unserved_gone: dict[str, Int] = {}
    """The same of those that wait no more, while a node in service has no work."""
    unserved_since: UtcTime | None = None
    gangs: tuple[Int, ...] = ()
    """What the autoscaler grew it for, in their order: each is launched as a whole, so that one for
    which there is no room keeps none waiting that comes before it."""
    serial: Int = 0
    """Number of nodes ever named in this pool."""
    open: dict[str, OpenSaga] = {}
    openings: Int = 0
    """Number of writes of this record that opened sagas; LEASES keeps the highest."""
    breaker: Breaker = Breaker()
    disruptions: dict[Slot, Int] = {}
    """Disruptions started, by slots (epoch seconds) of a sixtieth of the window."""
    fleet_disruptions: dict[Slot, Int] = {}
    """The same by slots of the fleet's window."""
    resets: dict[Slot, Int] = {}
    """GPU resets and reboots started, by slots of the budget's window."""
    fleet_resets: dict[Slot, Int] = {}
    """The same by slots of the fleet's window."""
    voluntary: dict[Slot, Int] = {}
    """Removals of nodes without a fault started, by slots of the budget's window."""
    fleet_voluntary: dict[Slot, Int] = {}
    """The same by slots of the fleet's window."""
    quarantine_full: bool = False
    """Unhealthy nodes are left in service, because as many as may be are quarantined."""
    operator_notified: dict[str, str] = {}
    """Node -> ID of the fault or notice, so that operators are notified once."""
    incidents: dict[str, OpenIncident] = {}
    """Fault signature -> open incident."""
    replaced_racks: dict[Name, UtcTime] = {}
    """Rack -> since when it is replaced as a whole, until another is in service in its place."""
    recent_remediations: dict[str, dict[str, UtcTime]] = {}
    """Fault signature -> node -> when its remediation began on the word of that fault alone, within
    `budget.window`: many of these are an incident however slowly they came."""
    observed_actions: dict[str, ObservedAction] = {}
    """Observe mode: sagas that would be open."""
    failures: Int = 0
    """Consecutive failed launches; determines the wait before the next."""
    over_spend_cap: bool = False
    """All of them were growth refused by a spend_cap; replacements continue, since the old node's
    cost is freed."""
    retry_at: UtcTime | None = None
    refused_cordons: Int = 0
    """Sagas in a row that ended because the workload system did not cordon their node; determines
    the wait before the next."""
    cordon_at: UtcTime | None = None
    """Earliest time of the next saga that needs a cordon, where no operator asked for it."""
    cordon_refused_at: UtcTime | None = None
    """When the last of them ended; for seconds after it not even what is urgent begins."""
    refusals: Int = 0
    """New nodes refused at admission, consecutively."""
    avoid: dict[str, UtcTime] = {}
    """Zone -> until when it is the last choice, because a node from there was refused."""
    capacity_ends: tuple[CapacityEnd, ...] = ()
    """Ends of nodes that the provider announced, the nearest first."""
    applied: str = ""
    """The last request that created or changed it; empty: the configuration."""
    removing: str = ""
    """The request to remove it; empty: none."""
    promote_at: UtcTime | None = None
    """Earliest time of the next promotion of a spare, after one failed."""
    renew_at: UtcTime | None = None
    """Earliest time of the next replacement of a healthy node."""
    renew_wait: str = ""
    """Why it waits until then; empty: the last one failed."""
    on_demand_short: bool = False
    """Operators know that fewer nodes are on demand or reserved than `on_demand_min` requires."""
    conditions: dict[str, OpenCondition] = {}
    """Condition -> since when it holds."""
    dear: dict[str, DearNode] = {}
    """Nodes that could be replaced by much cheaper ones, as of the last look at prices."""
    launch_sources: dict[str, str] = {}
    """Digests of the images and the user data that its launches take from the configuration."""
    launch_digests: dict[str, str] = {}
    """Digests of everything that its launches depend on, those among them."""
    configured_at: UtcTime | None = None
    """When anything that its launches depend on last changed."""
    drift_reported: str = ""
    """Digest of the configuration from which nodes were last reported to differ."""
    awaited: dict[str, AwaitedSuccessor] = {}
    """Adopted nodes: removed node -> its successor, which has not joined."""
    completed_requests: tuple[CompletedRequest, ...] = ()
    """The last requests carried out, oldest first."""
    workload_names: dict[str, WorkloadName] = {}
    """Names that were requested, in a pool that is sized by them."""
    pending_events: tuple[msgspec.Raw, ...] = ()
    """Outbox: events decided with this record that may not have been published yet."""


class RemovedPool(Record, frozen=True, kw_only=True):
    """POOLS `removed.<pool>`: kept after a pool is removed, so that node names are never reused."""

    serial: Int = 0
    removal: CompletedRequest | None = None
    """The request that removed it; an older one must not create it again."""


OPEN_UNITS_MAX: Final = 8_000
"""Of a pool's open sagas, at which nothing more is begun without a request. A unit is at most 100
bytes of the record as it is stored, which so stays below `RECORD_BYTES_MAX`."""
LAUNCH_UNITS_MAX: Final = 1_000
"""At which a pool launches nothing more, so that it still repairs its nodes."""
LAUNCH_UNITS: Final = 1
NAMED_LAUNCH_UNITS: Final = 2
"""Of a launch whose node has a name of the workload system's."""
SAGA_UNITS: Final = 2
"""Of any other saga, with a reason of up to `REASON_CHARS`."""
ANNOUNCED_UNITS_MAX: Final = 4_000
"""Of the sagas that are open for a notice of the cloud or because a node is renewed: 2,000 with a
short reason. At this nothing more is begun for these, those of the earliest deadline first, so that
a cloud that takes thousands of nodes at once leaves faults and launches their room."""
REASON_CHARS: Final = 100
"""A longer reason costs a unit more for each so many characters."""
RECORD_BYTES_MAX: Final = 832 * 1024
"""Of a pool's record as it is stored, beyond which a request opens no saga: its reason may be long.
The server takes 1 MiB."""


def pool_key(pool: str) -> str:
    """Return the key of a pool in POOLS."""
    return f"pool.{pool}"


def removed_key(pool: str) -> str:
    """Return the key of a removed pool in POOLS."""
    return f"removed.{pool}"


FLEET_KEY = "fleet"
"""Key of the fleet in POOLS."""
