"""What a pool needs now: the reconciler. Pure; it takes no hint about what changed.

From what is wanted (the pool's record) and what there is (its nodes) it decides which sagas to
start, within the budget. The shell writes the new record by compare-and-set, and only then starts
the sagas that it names; so two replicas cannot both fill one gap or spend one budget twice.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.pool_events import BreakerClosed, BreakerOpened, PoolEvent
from schemas.reasons import SagaKind
from schemas.records import NodeRecord, OpenSaga, PoolRecord
from services.pool_manager import incidents
from services.pool_manager.budget import limit

LAUNCHES_MAX: Final = 200
"""New nodes begun in one decision; the next decision goes on from there."""
WAITING_NAMED_MAX: Final = 50
"""Nodes that a breaker event names; their number stands beside them."""
UNVERIFIED_TIMES: Final = 3
"""So many times `lost_after` a silent node is waited for while the provider cannot say of it."""
_PROVIDER_WORDS: Final = {
    "gone": "; the provider says that its instance is gone",
    "present": "; its instance stands",
    "": "; the provider cannot say whether its instance stands",
}
RETRY_FIRST_SECONDS: Final = 2.0
RETRY_MAX_SECONDS: Final = 600.0

DISRUPTIVE: Final[frozenset[SagaKind]] = frozenset({"replace", "reset-gpu", "reboot", "drain"})
"""Kinds that take a node out of service by our own doing."""
UNASKED: Final[frozenset[SagaKind]] = frozenset({"replace", "scale-up", "scale-down"})
"""Kinds that the reconciler starts by itself, and so must not repeat in a spin."""
REMOVING: Final[frozenset[SagaKind]] = frozenset({"replace", "scale-down"})
"""Kinds whose node will be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything a decision about one pool may look at."""

    fleet: str
    record: PoolRecord
    nodes: tuple[NodeRecord, ...]
    """The pool's nodes, terminated ones left out."""
    revision: int = 0
    """Of the record: names the events of a decision, so that repeating it repeats their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do about one pool."""

    record: PoolRecord
    start: Mapping[str, OpenSaga] = field(default_factory=dict)
    """Sagas to begin, by id; the record holds them already."""
    events: tuple[PoolEvent, ...] = ()
    wake_at: datetime | None = None
    """When to look again though nothing happens."""


def plan(world: World, now: datetime) -> Plan:
    """Decide; with nothing to do the record comes back as it was."""
    # The size first: a surplus takes the sick nodes away, and a gap that is being filled is no
    # reason any more to let a sick node wait.
    return _replace_sick(world, _resize(world, Plan(record=world.record), now), now)


# --- what there is -------------------------------------------------------------------------------


def busy(record: PoolRecord) -> set[str]:
    """Nodes that an open saga is about."""
    return {name for each in record.open.values() for name in (each.node, each.new_node) if name}


def size(record: PoolRecord, nodes: Iterable[NodeRecord]) -> int:
    """How many nodes the pool will have when what is open has come to its end."""
    leaving = {each.node for each in record.open.values() if each.kind in REMOVING}
    coming = {each.new_node for each in record.open.values() if each.new_node}
    present = {node.node for node in nodes} | coming
    return len(present - leaving)


def unavailable(record: PoolRecord, nodes: Iterable[NodeRecord]) -> int:
    """How many of the pool's nodes are out of service by our own doing, or missing.

    A sick node that nobody has touched does not count: else two sick nodes in a small pool would
    forbid each other's repair. A gap that a failed replacement left does count.
    """
    nodes = tuple(nodes)
    disrupted = sum(1 for each in record.open.values() if each.kind in DISRUPTIVE)
    taken = busy(record)
    cordoned = sum(1 for node in nodes if node.cordoned and node.node not in taken)
    return disrupted + cordoned + max(0, record.desired - size(record, nodes))


def sick(node: NodeRecord, record: PoolRecord, now: datetime) -> str:
    """Why a node must be replaced; empty where it need not be."""
    if node.state != "active":
        return ""
    if node.health == "unhealthy":
        return node.health_reason or "unhealthy"
    if node.lost and node.lost_at is not None:
        silent = (now - node.lost_at).total_seconds()
        if silent >= _patience_seconds(node, record):
            return f"silent for {silent:.0f} s" + _PROVIDER_WORDS[node.provider_says]
    return ""


def _patience_seconds(node: NodeRecord, record: PoolRecord) -> float:
    """How long a silent node is waited for: the less is known of it, the longer."""
    times = {"gone": 0, "present": 1, "": UNVERIFIED_TIMES}[node.provider_says]
    return times * float(record.spec.health.lost_after)


# --- replacing what is sick ----------------------------------------------------------------------


def _replace_sick(world: World, begun: Plan, now: datetime) -> Plan:
    seen = incidents.observe(begun.record, world.nodes, world.revision, now)
    begun = replace(begun, record=seen.record, events=(*begun.events, *seen.events))
    record, spec = begun.record, begun.record.spec
    taken = busy(record)
    waiting = sorted(
        (node for node in world.nodes if node.node not in taken and sick(node, record, now)),
        key=lambda node: (node.health_at or node.lost_at or now, node.node),
    )
    wake_at = _earlier(begun.wake_at, _next_loss(world, record, now))
    wake_at = _earlier(wake_at, incidents.next_end(record, now))
    if not spec.health.auto_replace:
        return replace(begun, wake_at=wake_at)
    allowed = limit(spec.budget.max_unavailable, record.desired)
    # A sick node that somebody has cordoned already counts as unavailable; replacing it takes no
    # more out of service, so it passes even where the budget is spent.
    spent = unavailable(record, world.nodes)
    start = dict(begun.start)
    left: list[NodeRecord] = []
    if _launches_fail(record, now):
        # A node terminated now would leave a gap. Sick nodes wait in their places.
        left, waiting = waiting, []
        wake_at = _earlier(wake_at, record.retry_at)
    for node in waiting:
        if incidents.room(record, incidents.sickness(node), now) == 0:
            left.append(node)
            continue
        if spent >= allowed and not node.cordoned:
            left.append(node)
            continue
        saga, opened, record = _open(world.fleet, record, "replace", now, node=node)
        start[saga] = msgspec.structs.replace(opened, reason=sick(node, record, now))
        record = _with_open(record, saga, start[saga])
        spent += 0 if node.cordoned else 1
    record, events = _breaker(world, record, spent, allowed, left, now)
    events = (*begun.events, *events)
    return replace(begun, record=record, start=start, events=events, wake_at=wake_at)


def _launches_fail(record: PoolRecord, now: datetime) -> bool:
    """Whether the last launch failed and no later one has succeeded yet."""
    if not record.failures:
        return False
    trying = any(each.kind == "scale-up" for each in record.open.values())
    return trying or (record.retry_at is not None and now < record.retry_at)


def _next_loss(world: World, record: PoolRecord, now: datetime) -> datetime | None:
    """When the next silent node becomes a lost one."""
    soonest: datetime | None = None
    for node in world.nodes:
        if node.lost and node.lost_at is not None and not sick(node, record, now):
            due = node.lost_at + timedelta(seconds=_patience_seconds(node, record))
            soonest = _earlier(soonest, due)
    return soonest


def _breaker(
    world: World,
    record: PoolRecord,
    spent: int,
    allowed: int,
    left: list[NodeRecord],
    now: datetime,
) -> tuple[PoolRecord, tuple[PoolEvent, ...]]:
    if bool(left) == record.breaker_open:
        return record, ()
    record = msgspec.structs.replace(record, breaker_open=bool(left))
    name = record.name
    if not left:
        closed = BreakerClosed(
            id=f"breaker-closed-{name}-{world.revision}",
            time=now,
            pool=name,
            unavailable=spent,
            limit=allowed,
        )
        return record, (closed,)
    opened = BreakerOpened(
        id=f"breaker-opened-{name}-{world.revision}",
        time=now,
        pool=name,
        unavailable=spent,
        limit=allowed,
        waiting=tuple(node.node for node in left[:WAITING_NAMED_MAX]),
        reason=(
            f"{len(left)} sick wait: {spent} of {record.desired} out of service, "
            f"{allowed} allowed"
            + (f"; launches fail ({record.failures} in a row)" if record.failures else "")
            + incidents.told(record.incidents, map(incidents.sickness, left))
        ),
    )
    return record, (opened,)


# --- bringing the pool to its size ---------------------------------------------------------------


def _resize(world: World, begun: Plan, now: datetime) -> Plan:
    record = begun.record
    gap = record.desired - size(record, world.nodes)
    start = dict(begun.start)
    if gap > 0:
        if record.retry_at is not None and now < record.retry_at:
            return replace(begun, wake_at=record.retry_at)
        for _ in range(min(gap, LAUNCHES_MAX)):
            saga, opened, record = _open(world.fleet, record, "scale-up", now)
            reason = f"{record.desired - gap} of {record.desired} nodes"
            start[saga] = msgspec.structs.replace(opened, reason=reason)
            record = _with_open(record, saga, start[saga])
    elif gap < 0 and (record.retry_at is None or now >= record.retry_at):
        for node in _surplus(record, world.nodes, now)[:-gap]:
            saga, opened, record = _open(world.fleet, record, "scale-down", now, node=node)
            reason = f"{record.desired - gap} nodes where {record.desired} are wanted"
            start[saga] = msgspec.structs.replace(opened, reason=reason)
            record = _with_open(record, saga, start[saga])
    return replace(begun, record=record, start=start)


def _surplus(record: PoolRecord, nodes: Iterable[NodeRecord], now: datetime) -> list[NodeRecord]:
    """Nodes that may leave, those first that are of least use: sick, cordoned, then youngest."""
    taken = busy(record)
    free = [node for node in nodes if node.node not in taken and node.state == "active"]

    def use(node: NodeRecord) -> tuple[int, float, str]:
        rank = 0 if sick(node, record, now) else 1 if node.cordoned else 2
        age = (now - (node.admitted_at or now)).total_seconds()
        return rank, age, node.node

    return sorted(free, key=use)


# --- names and openings --------------------------------------------------------------------------


def node_name(fleet: str, pool: str, serial: int) -> str:
    """A new node's name: the pool, a number people can say, and four digits of the fleet's own.

    The digits keep a fleet that lost its bus, or another fleet in the same account, from naming the
    same instance.
    """
    digits = hashlib.sha256(f"{fleet}/{pool}/{serial}".encode()).hexdigest()[:4]
    return f"{pool}-{serial}-{digits}"


def _open(
    fleet: str, record: PoolRecord, kind: SagaKind, now: datetime, *, node: NodeRecord | None = None
) -> tuple[str, OpenSaga, PoolRecord]:
    new_node = ""
    if kind in ("replace", "scale-up"):
        serial = record.serial + 1
        record = msgspec.structs.replace(record, serial=serial)
        new_node = node_name(fleet, record.name, serial)
    opened = OpenSaga(
        kind=kind,
        node=node.node if node else "",
        new_node=new_node,
        action=node.health_action if node else "none",
        fault=node.health_fault if node else "",
        sickness=incidents.sickness(node) if node else "",
        trace=node.health_trace if node else "",
        since=now,
    )
    return saga_id(kind, node, new_node), opened, record


def saga_id(kind: SagaKind, node: NodeRecord | None, new_node: str = "") -> str:
    """Derived from what the saga is about, so that a repeated cause cannot start two."""
    return f"{kind}-{node.node}-{node.sagas + 1}" if node else f"{kind}-{new_node}"


def open_for(
    fleet: str, record: PoolRecord, kind: SagaKind, now: datetime, node: NodeRecord
) -> tuple[str, OpenSaga, PoolRecord]:
    """Open a saga about a node because somebody asked."""
    saga, opened, record = _open(fleet, record, kind, now, node=node)
    return saga, opened, _with_open(record, saga, opened)


def _with_open(record: PoolRecord, saga: str, opened: OpenSaga) -> PoolRecord:
    return msgspec.structs.replace(record, open={**record.open, saga: opened})


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    if one is None or other is None:
        return one or other
    return min(one, other)


# --- when a saga has ended -----------------------------------------------------------------------


def close(record: PoolRecord, saga: str, *, failed: bool, now: datetime) -> PoolRecord:
    """Take an ended saga off a record; each failure in a row makes the next start wait longer."""
    ended = record.open.get(saga)
    if ended is None:
        return record
    left = {name: each for name, each in record.open.items() if name != saga}
    if failed:
        failures = record.failures + 1
        wait = min(RETRY_FIRST_SECONDS * 2 ** (failures - 1), RETRY_MAX_SECONDS)
        retry_at: datetime | None = now + timedelta(seconds=wait)
    elif ended.kind in UNASKED:
        failures, retry_at = 0, None
    else:
        failures, retry_at = record.failures, record.retry_at
    return msgspec.structs.replace(record, open=left, failures=failures, retry_at=retry_at)
