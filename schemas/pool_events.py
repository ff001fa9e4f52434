"""Declares events about pools, on `navarch.v1.pool.<pool>.event.<event>`."""

from typing import Final, Literal

from schemas.enums import Action, BreakerCause, IncidentScope, LaunchRefusal, Refusal
from schemas.messages import POOL_MANAGER, PROVISIONER, RUNTIME, Codec, Message, last_word
from schemas.proposed_removals import RemovalGate
from schemas.value_limits import Float, Int, Seconds, Token, UtcTime

INCIDENT_NAMED_MAX: Final = 50
"""Nodes listed in an incident's event, which also has their number."""


class PoolEvent(Message, frozen=True, kw_only=True):
    """Declares the fields of every event about a pool."""

    pool: Token


class Scaled(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A pool's desired size changed."""

    previous: Int
    nodes: Int
    reason: str = ""
    request: str = ""
    by: str = ""
    """Who asked."""


class ScaleRefused(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A scale request was refused and nothing changed."""

    refusal: Refusal
    reason: str
    """What was wrong and what would be accepted, in one sentence."""
    request: str = ""
    by: str = ""
    """Who asked."""


class RequestAccepted(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A request was accepted; `saga` carries it out."""

    verb: str
    node: str = ""
    saga: str = ""
    request: str = ""
    by: str = ""
    """Who asked."""
    note: str = ""
    """A consequence that the operator may not expect."""


class RequestRefused(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A request was refused and nothing changed."""

    verb: str
    refusal: Refusal
    reason: str
    node: str = ""
    request: str = ""
    by: str = ""
    """Who asked."""


class PoolRemoved(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A pool was removed at an operator's request, with its last instance and its record."""


class BreakerOpened(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """Remediation stops until the breaker closes; sagas that restore nodes continue."""

    unavailable: Int
    """Nodes that Navarch took out of service; `limit` is their maximum."""
    limit: Int
    waiting: tuple[str, ...] = ()
    """The first unhealthy nodes that wait."""
    reason: str = ""
    breaker_cause: BreakerCause = "level"
    disruptions: Int = 0
    """Disruptions within the budget's window, and their limit; -1: none."""
    disruptions_limit: Int = -1
    by: str = ""
    """The operator who opened it; empty: it opened automatically."""
    request: str = ""


class BreakerHalfOpened(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The breaker's cause has ended: one node is remediated as a probe."""

    saga: str
    """The probe."""
    node: str = ""
    breaker_cause: BreakerCause = ""
    """What opened it."""
    reason: str = ""


class BreakerClosed(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """Unhealthy nodes are remediated again, within the budget."""

    unavailable: Int
    limit: Int
    breaker_cause: BreakerCause = ""
    """What opened it."""
    reason: str = ""
    by: str = ""
    """The operator who closed it; empty: it closed automatically."""
    request: str = ""


class QuarantineFull(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The pool has as many nodes in quarantine as it may: other unhealthy nodes still take work."""

    status: Literal["opened", "closed"]
    quarantined: Int
    limit: Int
    """Of the pool; the fleet's and that of an incident's nodes may be lower."""
    waiting: tuple[str, ...] = ()
    """The first unhealthy nodes that still take work."""
    reason: str = ""
    remedy: str = ""


class OnDemandShort(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """Fewer nodes are on demand or reserved than the pool requires; spot takes no such place."""

    status: Literal["opened", "closed"]
    nodes: Int
    """Nodes in service that are not spot."""
    required: Int
    reason: str = ""
    remedy: str = ""


class PoolCondition(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """Something about a pool that a person should know has begun, or is over."""

    condition: str
    """`below-minimum`: fewer nodes are in service than `min_nodes`."""
    status: Literal["opened", "closed"]
    reason: str = ""
    remedy: str = ""


class Incident(PoolEvent, frozen=True, kw_only=True, tag=RUNTIME):
    """Several nodes have the same fault: they are one incident, not as many replacements."""

    incident: str
    """Name of the incident: `xid-79-1795225542`; `opened` and `closed` share it."""
    status: Literal["opened", "closed"]
    kind: str
    """A fault's kind, or `silence`."""
    code: Int = 0
    nodes: Int
    named: tuple[str, ...] = ()
    """The first affected nodes."""
    first: UtcTime
    last: UtcTime
    reason: str = ""
    scope: IncidentScope = "pool"
    """What the nodes have in common."""
    within: str = ""
    """Value of the scope: the job, rack or zone; empty for scope `pool`."""


class SagaOpened(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A saga was decided, with the reason."""

    saga: str
    kind: str
    node: str = ""
    new_node: str = ""
    reason: str = ""


class WouldStart(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """Automation decided this in observe mode, and does not perform it."""

    kind: str
    node: str = ""
    nodes: Int = 0
    """Number of nodes, where it concerns more than one."""
    reason: str = ""


class NodesDrifted(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """Nodes were launched with other settings than their pool has since its last change."""

    nodes: Int
    """Number of them."""
    names: tuple[str, ...] = ()
    """The first of them."""
    differences: tuple[str, ...] = ()
    """`image`, `user data`, `instance type`, `provider`, `setup commands`, `labels`."""
    replaced: bool = False
    """Whether they are replaced one after the other, or only reported."""


class NodeRefused(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A new node was refused at admission; its instance is terminated and another launched."""

    node: str
    saga: str
    step: str = ""
    reason: str = ""
    zone: str = ""
    attempt: Int = 1
    """Number of this consecutive refusal, of `attempts`."""
    attempts: Int = 0
    remedy: str = ""
    """What the operator can do, after too many refusals."""


class NodeReplaced(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """An old node is gone and a new one is in service."""

    old_node: str
    new_node: str
    saga: str
    promoted: str = ""
    """The spare that replaced the old node; the new node becomes a spare."""
    reason: str = ""
    duration_seconds: Seconds = 0.0


class SagaFailed(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A saga was unwound; the reconciler retries after `retry_seconds`."""

    saga: str
    step: str
    reason: str
    node: str = ""
    new_node: str = ""
    node_gone: bool = False
    """Whether `node` was terminated before: what is left is a gap, which another launch fills."""
    retry_seconds: Seconds = 0.0


class SagaCancelled(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A saga was unwound at an operator's request, or ended because its log was lost.

    `then` is the saga that follows.
    """

    saga: str
    step: str
    reason: str
    node: str = ""
    new_node: str = ""
    node_gone: bool = False
    """Whether `node` was terminated before."""
    then: str = ""


class SagaIsStuck(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.saga_stuck"
):
    """A saga's undo failed; `remedy` says what the operator must do."""

    saga: str
    step: str
    reason: str
    remedy: str = ""


class SagaOverdue(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A saga's step is overdue; it continues until an operator intervenes."""

    saga: str
    step: str
    node: str = ""
    since: UtcTime | None = None
    reason: str = ""
    remedy: str = ""


class OperatorNeeded(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """A node is unhealthy, and the pool's remediation leaves it to an operator."""

    node: str
    action: Action = "none"
    """The verdict's action."""
    reason: str = ""
    """What is wrong with the node."""
    remedy: str = ""
    """Why it is left to an operator, and what to do."""
    cordoned: bool = False
    """Whether the node is out of service until then."""
    flapping: bool = False
    """It loses contact and returns, again and again."""
    removed: bool = False
    """The node itself is gone, and no other has its name: a successor is missing."""


class InstanceLeaked(PoolEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """An instance that should be gone still exists and costs money."""

    instance: str
    provider: str
    provider_id: str = ""
    reason: str = ""
    dollars_per_hour: Float = 0.0


class RemovalAnswered(PoolEvent, frozen=True, kw_only=True, tag=POOL_MANAGER):
    """The removal of a machine was proposed that no order means: it may go, or is held back."""

    instance: str
    provider: str
    provider_id: str
    gate: RemovalGate = ""
    """What holds it back; empty: nothing."""
    reason: str = ""


class InstanceIdCorrected(PoolEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """A node's only instance is listed under another ID, and its record has that ID now."""

    instance: str
    provider: str
    provider_id: str
    previous: str
    """The ID that its record had."""


class LaunchRefused(PoolEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """A launch was refused: no allowed offering is within its cost limits."""

    node: str
    saga: str = ""
    refusal: LaunchRefusal
    reason: str
    remedy: str = ""


class LaunchWaiting(PoolEvent, frozen=True, kw_only=True, tag=PROVISIONER):
    """Every offering of a launch is exhausted; it waits for capacity."""

    node: str
    saga: str = ""
    reason: str
    until: UtcTime | None = None
    """Time of the next attempt, by this launch or another."""


POOL_EVENT_TYPES: tuple[type[PoolEvent], ...] = tuple(PoolEvent.__subclasses__())
FACTS: dict[type[PoolEvent], str] = {each: last_word(each) for each in POOL_EVENT_TYPES}
"""Event class -> last token of its subject."""

pool_codec = Codec(POOL_EVENT_TYPES)
