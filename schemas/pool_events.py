"""Facts about pools, on `navarch.v1.pool.<pool>.event.<fact>`."""

from typing import Final, Literal

from schemas.enums import Action, BreakerCause, IncidentScope, LaunchRefusal, Refusal
from schemas.messages import Codec, Message, UtcTime

INCIDENT_NAMED_MAX: Final = 50
"""Nodes that an incident's event names; their number stands beside them."""


class PoolEvent(Message, frozen=True, kw_only=True):
    """What every fact about a pool carries."""

    pool: str


class Scaled(PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.scaled"):
    """A pool's desired size changed."""

    was: int
    nodes: int
    reason: str = ""
    request: str = ""


class ScaleRefused(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.scale_refused"
):
    """A scale request was refused; nothing else happened."""

    refusal: Refusal
    reason: str
    """What was wrong and what would be accepted, in a sentence."""
    request: str = ""


class RequestAccepted(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.request_accepted"
):
    """A request about a node was accepted; `saga` is what carries it out."""

    verb: str
    node: str = ""
    saga: str = ""
    request: str = ""
    note: str = ""
    """What follows from it, where that may surprise."""


class RequestRefused(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.request_refused"
):
    """A request about a node was refused; nothing else happened."""

    verb: str
    refusal: Refusal
    reason: str
    node: str = ""
    request: str = ""


class PoolRemoved(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.pool_removed"
):
    """A pool that was asked to go is gone: its last node's instance is, and so is its record."""


class BreakerOpened(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.breaker_opened"
):
    """Sick nodes are not acted on until it closes; everything that heals goes on."""

    unavailable: int
    """Nodes out of service by our own doing, and how many may be."""
    limit: int
    waiting: tuple[str, ...] = ()
    """The first of the sick nodes that wait."""
    reason: str = ""
    breaker_cause: BreakerCause = "level"
    disruptions: int = 0
    """Repairs begun within the budget's window, and how many may be; -1: any number."""
    disruptions_limit: int = -1
    by: str = ""
    """Who asked for it; empty where it opened by itself."""
    request: str = ""


class BreakerHalfOpened(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.breaker_half_opened"
):
    """What opened it is over: one node is repaired, and how that ends decides."""

    saga: str
    """The repair."""
    node: str = ""
    breaker_cause: BreakerCause = ""
    """What had opened it."""
    reason: str = ""


class BreakerClosed(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.breaker_closed"
):
    """Sick nodes are acted on again, within the budget."""

    unavailable: int
    limit: int
    breaker_cause: BreakerCause = ""
    """What had opened it."""
    reason: str = ""
    by: str = ""
    """Who asked for it; empty where it closed by itself."""
    request: str = ""


class Incident(PoolEvent, frozen=True, kw_only=True, tag="io.navarch.runtime.event.v1.incident"):
    """Many nodes have the same at once: one trouble, and not as many replacements."""

    incident: str
    """Its name: `xid-79-1795225542`; `opened` and `closed` share it."""
    status: Literal["opened", "closed"]
    kind: str
    """A fault's kind, or `silence`."""
    code: int = 0
    nodes: int
    named: tuple[str, ...] = ()
    """The first of them."""
    first: UtcTime
    last: UtcTime
    reason: str = ""
    scope: IncidentScope = "pool"
    """What the nodes share."""
    within: str = ""
    """Which job, rack, zone … it is; empty where it is the pool."""


class SagaOpened(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.saga_opened"
):
    """A saga was decided on, with the reason."""

    saga: str
    kind: str
    node: str = ""
    new_node: str = ""
    reason: str = ""


class WouldStart(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.would_start"
):
    """The pool's mode is observe: this was decided, and is not done."""

    kind: str
    node: str = ""
    nodes: int = 0
    """How many, where it is not about one."""
    reason: str = ""


class NodeRefused(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.node_refused"
):
    """A new node was refused at admission; its instance goes, and another is launched."""

    node: str
    saga: str
    step: str = ""
    reason: str = ""
    zone: str = ""
    attempt: int = 1
    """Which in a row, of `attempts`."""
    attempts: int = 0
    remedy: str = ""
    """What a person can do, once there have been too many."""


class NodeReplaced(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.node_replaced"
):
    """An old node is gone and a new one is in service."""

    old_node: str
    new_node: str
    saga: str
    promoted: str = ""
    """The spare that took the old node's place; the new one then is the spare."""
    reason: str = ""
    duration_seconds: float = 0.0


class SagaFailed(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.saga_failed"
):
    """A saga was unwound; the reconciler tries again after `retry_seconds`."""

    saga: str
    step: str
    reason: str
    node: str = ""
    new_node: str = ""
    retry_seconds: float = 0.0


class SagaCancelled(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.saga_cancelled"
):
    """A saga was unwound because somebody asked for it; `then` names the saga that follows."""

    saga: str
    step: str
    reason: str
    node: str = ""
    new_node: str = ""
    then: str = ""


class SagaIsStuck(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.saga_stuck"
):
    """A saga's undo failed: a person is needed, and `remedy` says for what."""

    saga: str
    step: str
    reason: str
    remedy: str = ""


class SagaOverdue(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.saga_overdue"
):
    """A saga's step lasts longer than it should; it is waited for until a person says otherwise."""

    saga: str
    step: str
    node: str = ""
    since: UtcTime | None = None
    reason: str = ""
    remedy: str = ""


class OperatorNeeded(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.pool_manager.event.v1.operator_needed"
):
    """A node is sick, and the pool's remediation leaves it to people."""

    node: str
    action: Action = "none"
    """What the verdict calls for."""
    reason: str = ""
    """What the node has."""
    remedy: str = ""
    """Why it is left to people, and what they can do."""
    cordoned: bool = False
    """Whether it is taken out of service until then."""


class InstanceLeaked(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.instance_leaked"
):
    """An instance that should be gone still stands, and costs money."""

    instance: str
    provider: str
    provider_id: str = ""
    reason: str = ""
    dollars_per_hour: float = 0.0


class LaunchRefused(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.launch_refused"
):
    """A launch was not begun: nothing that it may take is within what it may cost."""

    node: str
    saga: str = ""
    refusal: LaunchRefusal
    reason: str
    remedy: str = ""


class LaunchWaiting(
    PoolEvent, frozen=True, kw_only=True, tag="io.navarch.provisioner.event.v1.launch_waiting"
):
    """Whatever a launch may take is exhausted: it waits until some of it can be had again."""

    node: str
    saga: str = ""
    reason: str
    until: UtcTime | None = None
    """The next try, by this launch or by another."""


POOL_EVENT_TYPES: tuple[type[PoolEvent], ...] = (
    Scaled,
    ScaleRefused,
    RequestAccepted,
    RequestRefused,
    PoolRemoved,
    BreakerOpened,
    BreakerHalfOpened,
    BreakerClosed,
    Incident,
    SagaOpened,
    WouldStart,
    NodeRefused,
    NodeReplaced,
    SagaFailed,
    SagaCancelled,
    SagaIsStuck,
    SagaOverdue,
    OperatorNeeded,
    InstanceLeaked,
    LaunchRefused,
    LaunchWaiting,
)

FACTS: dict[type[PoolEvent], str] = {
    Scaled: "scaled",
    ScaleRefused: "scale-refused",
    RequestAccepted: "request-accepted",
    RequestRefused: "request-refused",
    PoolRemoved: "pool-removed",
    BreakerOpened: "breaker-opened",
    BreakerHalfOpened: "breaker-half-opened",
    BreakerClosed: "breaker-closed",
    Incident: "incident",
    SagaOpened: "saga-opened",
    WouldStart: "would-start",
    NodeRefused: "node-refused",
    NodeReplaced: "node-replaced",
    SagaFailed: "saga-failed",
    SagaCancelled: "saga-cancelled",
    SagaIsStuck: "saga-stuck",
    SagaOverdue: "saga-overdue",
    OperatorNeeded: "operator-needed",
    InstanceLeaked: "instance-leaked",
    LaunchRefused: "launch-refused",
    LaunchWaiting: "launch-waiting",
}
"""The last token of each event's subject."""

pool_codec = Codec(POOL_EVENT_TYPES)
