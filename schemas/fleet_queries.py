"""Read-only queries, `navarch.v1.query.<name>`, and the views that answer them."""

from datetime import datetime
from typing import Annotated, Any

import msgspec

from schemas.autoscaling_advice import AutoscalingAdvice
from schemas.fleet_events import FailureKind, StoreCause
from schemas.held_conditions import ConditionView
from schemas.value_limits import Int, Token


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fault as `navarch get` shows it."""

    time: str
    kind: str
    message: str
    code: int = 0
    gpu_index: int = -1
    result: str = ""
    rule: str = ""


class GpuView(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of a node, as its agent reported it, and what the health policy makes of it."""

    index: Int
    uuid: str = ""
    serial: str = ""
    pci: str = ""
    """Bus ID: `0000:3b:00`."""
    name: str = ""
    health: str = "unknown"
    cordoned: bool = False
    """It gets no new work while the node stays in service."""
    action: str = ""
    """What the policy does about it; this and what follows: empty while it is healthy."""
    rule: str = ""
    reason: str = ""
    fault: str = ""
    """ID of the fault that decided."""
    kind: str = ""
    code: Int = 0
    since: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """View of a node; its field names are public (`jq '.health'`)."""

    id: Token
    pool: Token
    status: str
    """The node's state: launching, registered, active, leaving or terminated."""
    health: str
    cordoned: bool = False
    quarantined: bool = False
    """It is cordoned while its repair waits."""
    cordoned_gpus: tuple[Int, ...] = ()
    """GPUs that get no new work while the node stays in service."""
    spare: bool = False
    """It is kept cordoned until it replaces another node."""
    drained: bool = False
    drain_expired: bool = False
    """Its drain ended at the deadline, with work left; then it is not `drained`."""
    lost: bool = False
    gpu_count: int = 0
    provider: str = ""
    region: str = ""
    zone: str = ""
    rack: str = ""
    nvlink_domain: str = ""
    """`ClusterUUID.CliqueId`, where its GPUs are in an NVLink fabric of several hosts."""
    instance_type: str = ""
    market: str = ""
    """`on-demand`, `spot` or `reserved`; empty: not known."""
    address: str = ""
    hostname: str = ""
    """As its agent reports it."""
    labels: dict[str, str] = {}
    """Of its launch: those that its pool had then."""
    driver_version: str = ""
    agent_version: str = ""
    identity_difference: str = ""
    """What its agent reports that the node was not admitted with, and no operator has accepted."""
    identity_claim: str = ""
    """The short name of that, to accept it by (`navarch identity accept`)."""
    saga: str = ""
    reason: str = ""
    renewal: str = ""
    """Why it is to be replaced although it is well, or how it differs from its pool's settings."""
    job: str = ""
    """Job whose process caused the fault that decided."""
    workload: str = ""
    """What the workload system says, if it cannot use the node or another cordoned it there."""
    held_until: str = ""
    held_by: str = ""
    held_reason: str = ""
    registered_at: str = ""
    last_change: str = ""
    last_heartbeat: str = ""
    """When its agent last reported that it is alive; empty: longer ago than a heartbeat is kept."""
    gpus: tuple[GpuView, ...] = ()
    conditions: tuple[ConditionView, ...] = ()
    """Everything that holds on the node, and what cannot be read there."""
    health_events: tuple[HealthEvent, ...] = ()
    """Its latest faults; a list of nodes has none."""


class ListedNode(NodeView, frozen=True, kw_only=True, omit_defaults=True):
    """The same as services pass thousands of them on: without what has its default value."""


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a pool to operators: its size, its nodes' states, its breaker and its sagas."""

    name: Token
    desired: int
    nodes: int
    active: int
    healthy: int
    unhealthy: int
    cordoned: int
    min_nodes: int
    max_nodes: int
    gpu_count: int = 0
    """GPUs of each node."""
    breaker: str
    """closed, open or half-open."""
    requested: bool = False
    """Created by a request, not by the configuration."""
    removing: bool = False
    """Its nodes are being removed, then the pool."""
    open_sagas: tuple[str, ...] = ()
    spares: int = 0
    """Spares to keep."""
    spares_ready: int = 0
    mode: str = "act"
    """act or observe."""
    unhealthy_after: int = 1
    """Consecutive unhealthy results before a node is unhealthy; fatal faults need one."""
    cordon_scope: str = "node"
    """node, or gpu: only the faulty GPU gets no new work where that is possible."""
    observed_actions: tuple[dict[str, Any], ...] = ()
    """Observe mode: sagas that would be open."""
    breaker_since: str = ""
    breaker_cause: str = ""
    breaker_reason: str = ""
    breaker_by: str = ""
    breaker_forced: bool = False
    """Opened by an operator: only an operator closes it."""
    breaker_probe: str = ""
    """Half-open: the saga of the probe."""
    breaker_probe_at: str = ""
    """Open after a failed probe: earliest time of the next."""
    ramp: int = 0
    """Remediations allowed at once after it closed; 0: as the budget allows."""
    unavailable: int = 0
    """Nodes that Navarch took out of service, and their limit."""
    unavailable_limit: int = 0
    disruptions: int = 0
    """Replacements started within the budget's window, and their limit; -1: none."""
    disruptions_limit: int = -1
    resets: int = 0
    """GPU resets and reboots started within the window, and their limit; -1: none."""
    resets_limit: int = -1
    window_seconds: float = 0.0
    awaiting_remediation: int = 0
    """Unhealthy nodes whose remediation has not started."""
    drifted: int = 0
    """Nodes that were launched with other settings than the pool has, or have another driver."""
    to_renew: int = 0
    """Healthy nodes that are to be replaced at leisure, and whose replacement has not started."""
    advice: AutoscalingAdvice | None = None
    """Autoscaling advice that is not followed."""
    warnings: tuple[str, ...] = ()
    """What the pool's configuration risks, and what to do."""


class FleetBudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the fleet's budget to operators."""

    desired: int
    """Desired size of all pools together."""
    unavailable: int
    unavailable_limit: int
    disruptions: int
    disruptions_limit: int = -1
    """-1: no limit."""
    resets: int = 0
    resets_limit: int = -1
    window_seconds: float = 0.0
    lifted: bool = False
    """It cannot limit anything, so nothing is counted."""


class PolicyRuleView(msgspec.Struct, frozen=True, kw_only=True):
    """A rule of the health policy; the first that matches decides."""

    name: str
    description: str = ""
    condition: str
    """CEL over the fault."""
    result: str
    action: str
    count: int = 1
    """Faults within the window from which on it matches."""
    window_seconds: float = 0.0
    per: str = "gpu"
    delay_seconds: float = 0.0
    """How long a condition is held before it counts."""


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the health policy in force."""

    name: str
    hash: str
    """As verdicts name it."""
    rules: tuple[PolicyRuleView, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a reply; query again with `after=next` until `next` is empty."""

    items: tuple[msgspec.Raw, ...] = ()
    next: str = ""


class Query(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Requests a view of the fleet."""

    pool: str = ""
    node: str = ""
    names: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()
    """For instances: only those of these nodes."""
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    terminated: bool = False
    """Include terminated ones."""
    state: str = ""
    """For instances: only those in this state; empty: any."""
    gpus: bool = False
    """For nodes: with their GPUs and heartbeats."""


class QueryError(msgspec.Struct, frozen=True, kw_only=True):
    """Says why a query failed."""

    error: str
    reason: str


class Expiry(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stops working at a known time."""

    what: str
    at: datetime
    remedy: str


class CurrentFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Something that fails now."""

    failure: FailureKind
    about: str
    """`pool training`, `POOLS pool.training`, `stream SAGAS`."""
    reason: str
    remedy: str
    store_cause: StoreCause = ""
    """Why the server stores nothing, of `store-unwritable`."""
