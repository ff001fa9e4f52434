"""Which sick nodes are acted on now, within the budget, and which wait. Pure."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.pool_events import BreakerClosed, BreakerOpened, PoolEvent
from schemas.records import NodeRecord, PoolRecord
from services.pool_manager import incidents, notices, spares, touching
from services.pool_manager.budget import limit
from services.pool_manager.opening import begin, with_open
from services.pool_manager.sickness import patience_seconds, sick
from services.pool_manager.world import Plan, World, busy, earlier, to_come, unavailable

WAITING_NAMED_MAX: Final = 50
"""Nodes that a breaker event names; their number stands beside them."""


def repair(world: World, begun: Plan, now: datetime) -> Plan:
    """Begin what the budget and the incidents let begin; tell when the others must wait."""
    seen = incidents.observe(begun.record, world.nodes, world.revision, now)
    begun = replace(begun, record=seen.record, events=(*begun.events, *seen.events))
    record, spec = begun.record, begun.record.spec
    taken = busy(record)
    waiting = sorted(
        (
            node
            for node in world.nodes
            if node.node not in taken
            and sick(node, record, now)
            and not touching.kept(node, record, now)
        ),
        key=lambda node: (
            not notices.urgent(node, spec, now),
            node.health_at or node.lost_at or now,
            node.node,
        ),
    )
    wake_at = earlier(begun.wake_at, _next_loss(world, record, now))
    wake_at = earlier(wake_at, incidents.next_end(record, now))
    wake_at = earlier(wake_at, notices.next_moment(record, world.nodes, now))
    if not spec.health.auto_replace:
        return replace(begun, wake_at=wake_at)
    allowed = limit(spec.budget.max_unavailable, record.desired)
    # A sick node that somebody has cordoned already counts as unavailable; replacing it takes no
    # more out of service, so it passes even where the budget is spent.
    spent = unavailable(record, world.nodes)
    start = dict(begun.start)
    left: list[NodeRecord] = []
    if _launches_fail(record, now):
        # A node terminated now would leave a gap. Sick nodes wait in their places; what the cloud
        # takes leaves its gap anyway, so one try is made to be ahead of it. Where a spare is ready
        # there is no gap.
        ready = spares.covered(record, world.nodes, waiting, now)
        ahead = [
            each
            for each in waiting
            if each in ready or (notices.urgent(each, spec, now) and not each.cordoned)
        ]
        left, waiting = [each for each in waiting if each not in ahead], ahead
        # While the next launch is under way its moment has passed, and its end is what tells.
        wake_at = earlier(wake_at, to_come(record.retry_at, now))
    for node in waiting:
        if incidents.room(record, incidents.sickness(node), now) == 0:
            left.append(node)
            continue
        # Nor does the cloud ask: what it takes passes, and counts.
        if spent >= allowed and not node.cordoned and not notices.urgent(node, spec, now):
            left.append(node)
            continue
        promotes = spares.substitute(record, world.nodes, node, now)
        saga, opened, record = begin(
            world.fleet, record, "replace", now, node=node, promotes=promotes
        )
        start[saga] = msgspec.structs.replace(opened, reason=sick(node, record, now))
        record = with_open(record, saga, start[saga])
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
            due = node.lost_at + timedelta(seconds=patience_seconds(node, record))
            soonest = earlier(soonest, to_come(due, now))
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
