"""Read-only queries, `navarch.v1.query.<name>`, and the views that answer them."""

from typing import Annotated, Any

import msgspec

from schemas.autoscaling_advice import Advice


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fault as `navarch get` shows it."""

    time: str
    kind: str
    message: str
    code: int = 0
    gpu_index: int = -1
    result: str = ""
    rule: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as people see it; field names are part of the public face (`jq '.health'`)."""

    id: str
    pool: str
    status: str
    """The node's state: launching, registered, active, leaving, terminated; `cordoned` apart."""
    health: str
    cordoned: bool = False
    spare: bool = False
    """Kept cordoned in reserve."""
    drained: bool = False
    lost: bool = False
    gpu_count: int = 0
    provider: str = ""
    region: str = ""
    zone: str = ""
    rack: str = ""
    instance_type: str = ""
    address: str = ""
    saga: str = ""
    reason: str = ""
    job: str = ""
    """Whose process the fault was of that decided on its health."""
    held_until: str = ""
    held_by: str = ""
    held_reason: str = ""
    registered_at: str = ""
    last_change: str = ""
    gpus: tuple[dict[str, Any], ...] = ()
    """Each with its `health`, and with action, rule, reason … where that is not `healthy`."""
    health_events: tuple[HealthEvent, ...] = ()


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as people see it."""

    name: str
    desired: int
    nodes: int
    active: int
    healthy: int
    unhealthy: int
    cordoned: int
    min_nodes: int
    max_nodes: int
    breaker: str
    """closed, open or half-open."""
    requested: bool = False
    """Made by a request, not by the configuration."""
    removing: bool = False
    """Its nodes leave, then the pool is forgotten."""
    open_sagas: tuple[str, ...] = ()
    spares: int = 0
    """How many are to be kept in reserve."""
    spares_ready: int = 0
    mode: str = "act"
    """act or observe."""
    observed_actions: tuple[dict[str, Any], ...] = ()
    """Under mode observe: what would be under way."""
    breaker_since: str = ""
    breaker_cause: str = ""
    breaker_reason: str = ""
    breaker_by: str = ""
    breaker_forced: bool = False
    """Opened by a person: only a person closes it."""
    breaker_probe: str = ""
    """Half-open: the saga of the one repair."""
    breaker_probe_at: str = ""
    """Open after a failed repair: no other is tried before."""
    ramp: int = 0
    """After it closed: so many repairs at once; 0: as the budget allows."""
    unavailable: int = 0
    """Nodes out of service by our own doing, and how many may be."""
    unavailable_limit: int = 0
    disruptions: int = 0
    """Replacements begun within the budget's window, and how many may be; -1: any number."""
    disruptions_limit: int = -1
    resets: int = 0
    """GPU resets and reboots begun within the window, and how many may be; -1: any number."""
    resets_limit: int = -1
    window_seconds: float = 0.0
    sick: int = 0
    """Nodes that are to be repaired and that nothing is done about yet."""
    advice: Advice | None = None
    """What its autoscaler asks for and does not get."""


class FleetBudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet's budget as people see it."""

    desired: int
    """Nodes that all pools want."""
    unavailable: int
    unavailable_limit: int
    disruptions: int
    disruptions_limit: int = -1
    """-1: any number."""
    resets: int = 0
    resets_limit: int = -1
    window_seconds: float = 0.0
    lifted: bool = False
    """It cannot bind, so nothing is counted for it."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """One page of an answer; ask again with `after=next` until `next` is empty."""

    items: tuple[msgspec.Raw, ...] = ()
    next: str = ""


class Query(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A question about the fleet."""

    pool: str = ""
    node: str = ""
    names: Annotated[tuple[str, ...], msgspec.Meta(max_length=1000)] = ()
    """Of instances: those of these nodes alone."""
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    terminated: bool = False
    """Also those that are gone."""


class QueryError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a question was not answered."""

    error: str
    reason: str
