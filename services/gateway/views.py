"""Declares what the HTTP API answers where no record or view of the fleet is the answer. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from schemas.breaker_state import OpenIncident
from schemas.event_texts import Tone
from schemas.fleet_queries import CurrentFailure, Expiry, NodeView, PoolView
from schemas.instance_records import InstanceRecord
from schemas.pool_records import PoolRecord
from schemas.stops import StopsAnswer
from services.bus.port import Stored
from services.fleet_client.fleet_status import FleetState
from services.fleet_client.pool_watch import NodePlace, PoolChange
from services.fleet_client.saga_progress import Progress
from services.operator_text.event_text import describe_stored
from services.operator_text.stop_text import stop_lines

PROBLEM_TYPE: Final = "application/problem+json"
STREAM_TYPE: Final = "text/event-stream"
"""Media types of a `Problem` and of server-sent events."""
RENEWAL: Final = "`navarch gateway token create` makes another"
INVALID_CHARS_MAX: Final = 4_096
UNWOUND: Final = frozenset({"unwinding", "stuck"})


class NodePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some nodes, in the order of pool and name."""

    items: tuple[NodeView, ...]
    next: str = ""
    """The cursor of the next page; empty: there is none."""


class InstanceView(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, without what only the provisioner needs."""

    pool: str
    instance: str
    """The node's name."""
    state: str
    provider: str
    provider_id: str
    instance_type: str
    region: str
    zone: str
    address: str
    dollars_per_hour: float
    error: str
    intended_at: datetime
    running_at: datetime | None
    terminating_at: datetime | None
    terminated_at: datetime | None
    removal_attempts: int = 0
    """Recorded attempts to terminate it that failed."""
    removal_tried_at: datetime | None = None
    """Time of the last such attempt."""
    host: str = ""
    """The physical machine, where the provider names it."""
    host_key: str = ""
    """SSH host key at first contact."""
    saga: str = ""
    attempts: int = 0
    created_at: datetime | None = None
    kept_until: datetime | None = None
    down_since: datetime | None = None
    """Since when its provider reports that it does not run, and what it reports."""
    down_reason: str = ""
    impaired_reason: str = ""
    """Which of the provider's status checks fail."""
    disconnected_at: datetime | None = None
    """Since when the node's credentials are refused."""
    disconnected_reason: str = ""


class InstancePage(msgspec.Struct, frozen=True, kw_only=True):
    """Some instances, in the order of pool and name."""

    items: tuple[InstanceView, ...]
    next: str = ""


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A pool in numbers. Every node counts as either healthy, unhealthy or cordoned."""

    name: str
    total_nodes: int
    healthy_nodes: int
    unhealthy_nodes: int
    cordoned_nodes: int
    utilization: float | None = None
    """Percent, averaged over the GPUs; null: not known."""
    can_scale_up: bool
    can_scale_down: bool
    bootstrap_failed: int
    """Launches that failed and are being undone, or need an operator."""
    bootstrap_pending: int
    """Nodes that are launched and not yet in service."""


class IncidentView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes an open incident."""

    pool: str
    signature: str
    """`xid-79`, `silence`."""
    scope: str
    within: str
    nodes: int
    since: datetime
    last: datetime
    released: bool
    """An operator closed the breaker: it no longer delays remediation."""


class StoredPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Says where and when a message was stored."""

    subject: str
    sequence: int
    time: datetime


class SagaEntryView(StoredPlace, frozen=True, kw_only=True):
    """An entry of a saga's log, and where it is stored."""

    entry: dict[str, Any]


class PoolChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what is new of a pool."""

    whole: bool = False
    """These are all its nodes, and the entries of all its open sagas."""
    nodes: tuple[NodePlace, ...] = ()
    """Nodes that have come, gone, or changed their state."""
    entries: tuple[SagaEntryView, ...] = ()
    """Of its sagas' logs."""
    removed: bool = False
    """The pool is removed, and the stream ends."""


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The pools, the open sagas, and what fails, as far as the caller may see them."""

    pools: tuple[PoolView, ...]
    sagas: tuple[dict[str, Any], ...] = ()
    """The open ones, in short."""
    remaining_work: tuple[str, ...] = ()
    """What drains wait for."""
    orphans: tuple[InstanceView, ...] = ()
    """Instances without a record."""
    failures: tuple[CurrentFailure, ...] = ()
    """What fails in the services."""
    expiries: tuple[Expiry, ...] = ()
    """What of the caller's expires."""
    bus_is_open: bool = False
    """Every client that reaches the bus controls the fleet."""
    stops: StopsAnswer = msgspec.field(default_factory=StopsAnswer)
    """What operators have stopped, and what waits for it."""
    stop_lines: tuple[str, ...] = ()
    """The same as `navarch status` writes it, a sentence for each stop."""


class SagaLog(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a saga and the entries of its log, oldest first."""

    saga: Progress
    log: tuple[dict[str, Any], ...]
    stored: tuple[StoredPlace, ...] = ()
    """Of each entry."""


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored event, in words and as it is stored."""

    sequence: int
    """Its place in the stream: the `id` of the same event in /api/v1/events/stream."""
    time: datetime
    """When it was stored."""
    subject: str = ""
    """Where it was stored."""
    kind: str
    """`verdict`, `cordoned`, `saga-opened`, …"""
    about: str
    """`POOL/NODE`, a pool, a saga, a service."""
    title: str
    detail: str
    tone: Tone
    event: dict[str, Any]
    """The message; `invalid` alone where it cannot be read."""


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Holds some events, oldest first; of `/events/newest`, newest first."""

    items: tuple[EventView, ...]
    next: int = 0
    """Pass it as `after` for what follows, now or later; of `/events/newest`, as `before`."""
    more: bool = False
    """Whether more is stored already."""


class ChangeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A change that the fleet has accepted."""

    request: str
    """ID of the request; the events that follow from it have it."""
    pool: str
    verb: str
    node: str = ""
    saga: str = ""
    """The saga that carries it out: GET /api/v1/sagas/ID."""
    note: str = ""
    """A consequence that the caller may not expect."""
    event: dict[str, Any] = {}
    """The event that answers it, as it is stored."""


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Says why a request was not answered."""

    type: str = "about:blank"
    title: str = ""
    status: int
    detail: str
    remedy: str
    """What to do about it."""
    refusal: str = ""
    """The code with which the fleet refused a change."""
    code: str = ""
    """The same, or the code of any other problem: docs/troubleshooting.md has them all."""


def instance_view(record: InstanceRecord) -> InstanceView:
    """An instance as operators see it."""
    kept = {
        name: getattr(record, name)
        for name in InstanceView.__struct_fields__
        if name != "instance_type"
    }
    chosen = record.offering or record.launch
    return InstanceView(instance_type=chosen.instance_type, **kept)


def pool_status(
    pool: PoolView,
    nodes: Sequence[NodeView],
    sagas: Iterable[Progress],
    utilization: float | None,
) -> PoolStatus:
    """Count a pool's nodes."""
    cordoned = [each for each in nodes if each.cordoned]
    other = [each for each in nodes if not each.cordoned]
    unhealthy = [each for each in other if each.health == "unhealthy" or each.lost]
    return PoolStatus(
        name=pool.name,
        total_nodes=len(nodes),
        healthy_nodes=len(other) - len(unhealthy),
        unhealthy_nodes=len(unhealthy),
        cordoned_nodes=len(cordoned),
        utilization=utilization,
        can_scale_up=len(nodes) < pool.max_nodes,
        can_scale_down=len(nodes) > pool.min_nodes,
        bootstrap_failed=sum(1 for each in sagas if each.new_node and each.status in UNWOUND),
        bootstrap_pending=sum(1 for each in nodes if each.status in ("launching", "registered")),
    )


def incident_views(pool: PoolRecord) -> list[IncidentView]:
    """Return the open incidents of a pool."""
    return [_incident(pool.name, signature, each) for signature, each in pool.incidents.items()]


def _incident(pool: str, signature: str, incident: OpenIncident) -> IncidentView:
    return IncidentView(
        pool=pool,
        signature=signature,
        scope=incident.scope,
        within=incident.within,
        nodes=incident.nodes,
        since=incident.since,
        last=incident.last,
        released=incident.released,
    )


def event_view(stored: Stored) -> EventView:
    """Return an event with its text."""
    text = describe_stored(stored)
    return EventView(
        sequence=stored.sequence,
        time=stored.time,
        subject=stored.subject,
        kind=stored.subject.rpartition(".")[2],
        about=text.subject,
        title=text.title,
        detail=text.detail,
        tone=text.tone,
        event=stored_object(stored),
    )


def token_expiry(expires: datetime | None) -> tuple[Expiry, ...]:
    """When a caller's token expires, if it does."""
    return (Expiry(what="your token", at=expires, remedy=RENEWAL),) if expires else ()


def status_view(state: FleetState, own: tuple[Expiry, ...]) -> FleetStatus:
    """A fleet's state; `own`: what of the caller's expires."""
    return FleetStatus(
        pools=state.pools,
        sagas=state.sagas,
        remaining_work=state.remaining_work,
        orphans=tuple(map(instance_view, state.orphans)),
        failures=state.failures,
        expiries=own,
        bus_is_open=state.is_open,
        stops=state.stops,
        stop_lines=tuple(stop_lines(state.stops)),
    )


def saga_entry_view(stored: Stored) -> SagaEntryView:
    """Return an entry of a saga's log."""
    return SagaEntryView(
        subject=stored.subject,
        sequence=stored.sequence,
        time=stored.time,
        entry=stored_object(stored),
    )


def pool_change_view(change: PoolChange) -> PoolChangeView:
    """Return a change of a pool."""
    return PoolChangeView(
        whole=change.whole,
        nodes=change.nodes,
        entries=tuple(map(saga_entry_view, change.entries)),
        removed=change.removed,
    )


def stored_place(stored: Stored) -> StoredPlace:
    """Return where and when a message was stored."""
    return StoredPlace(subject=stored.subject, sequence=stored.sequence, time=stored.time)


def stored_object(stored: Stored) -> dict[str, Any]:
    """A stored message as JSON; what is no JSON object is quoted."""
    try:
        return msgspec.json.decode(stored.data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"invalid": stored.data[:INVALID_CHARS_MAX].decode("utf-8", "replace")}
