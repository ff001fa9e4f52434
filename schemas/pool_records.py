"""Records of pools and of the fleet: bucket POOLS."""

from typing import Literal

import msgspec

from schemas.autoscaling_advice import Advice
from schemas.breaker_state import Breaker, ObservedAction, OpenIncident
from schemas.enums import Action, DrainMode, SagaKind
from schemas.messages import Record, UtcTime
from schemas.operator_requests import CompletedRequest
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


def pool_key(pool: str) -> str:
    """Key of a pool in POOLS."""
    return f"pool.{pool}"


def removed_key(pool: str) -> str:
    """Key of what outlives a pool."""
    return f"removed.{pool}"


FLEET_KEY = "fleet"
"""Key of the fleet in POOLS."""
