"""Which sick nodes are acted on now, within the budget, and which wait. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import msgspec

from schemas.breaker_state import Breaker
from schemas.enums import BreakerCause
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerClosed, BreakerHalfOpened, BreakerOpened, PoolEvent
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner.node_counts import busy
from services.pool_manager.planner.pool_snapshot import Plan, World, earlier, to_come
from services.pool_manager.planner.remediation import remedy_selection
from services.pool_manager.planner.remediation.remediator import Choice
from services.pool_manager.planner.remediation.unhealthy_nodes import patience_seconds, sick
from services.pool_manager.planner.safety import breaker, eligibility, incidents
from services.pool_manager.planner.safety.breaker_messages import spent_words, wave_words
from services.pool_manager.planner.safety.disruption_budget import (
    Allowance,
    allowance,
    room_at,
    with_begun,
)
from services.pool_manager.planner.safety.fault_waves import fault_signature
from services.pool_manager.planner.sizing import cloud_notices, spares

WAITING_NAMED_MAX: Final = 50
"""Nodes that a breaker event names; their number stands beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Acted:
    """What was begun, who waits, and what of the budget refused the first of them."""

    record: PoolRecord
    left: tuple[NodeRecord, ...]
    allowance: Allowance
    start: dict[str, OpenSaga]
    choices: Mapping[str, Choice]
    """Node -> its remedy."""
    refused: BreakerCause = ""


def repair(world: World, begun: Plan, now: datetime) -> Plan:
    """Begin what budget, breaker and incidents let begin; tell when the others must wait."""
    seen = incidents.observe(begun.record, world.nodes, world.revision, now)
    before = seen.record.breaker
    record = _with(seen.record, breaker.settled(before, now))
    waiting = _waiting(world, record, now) if record.spec.health.auto_replace else ()
    choices = {node.node: remedy_selection.choose(world, node, now) for node in waiting}
    people = remedy_selection.leave_to_people(world, record, choices, waiting, now)
    record, waiting = people.record, people.others
    trouble = _trouble(world, record, remedy_selection.replaced(choices, waiting), now)
    acted = _Acted(
        record=record,
        choices=choices,
        left=tuple(waiting),
        allowance=allowance(record, world.nodes, world.others, now),
        start={},
    )
    acted = _taken(world, acted, trouble, now)
    if trouble is not None:
        acted = _held(world, acted, trouble, now)
    elif acted.record.breaker.state == "open" and acted.left:
        acted = _probed(world, acted, now)
    elif acted.record.breaker.state == "closed":
        acted = _begun(world, acted, now)
    if trouble is None and not acted.left:
        acted = _mended(world, acted, now)
    if trouble is None and not acted.left and not _ramping(acted.record):
        calm = breaker.nothing_waits(acted.record.breaker, now)
        acted = replace(acted, record=_with(acted.record, calm))
    return replace(
        begun,
        record=acted.record,
        start={**begun.start, **acted.start},
        events=(*begun.events, *seen.events, *people.events, *_told(world, before, acted, now)),
        wake_at=earlier(begun.wake_at, _wake_at(world, acted, now)),
    )


def _with(record: PoolRecord, changed: Breaker) -> PoolRecord:
    if changed == record.breaker:
        return record
    return msgspec.structs.replace(record, breaker=changed)


def _waiting(world: World, record: PoolRecord, now: datetime) -> Sequence[NodeRecord]:
    """The sick nodes that may be acted on and no saga is about; those first that fell ill first."""
    taken = busy(record)
    return sorted(
        (
            node
            for node in world.nodes.needs_attention
            if node.node not in taken
            and sick(node, record, now)
            and not eligibility.kept(node, record, now)
        ),
        key=lambda node: (
            not cloud_notices.urgent(node, record.spec, now),
            node.health_at or node.lost_at or now,
            node.node,
        ),
    )


def _trouble(
    world: World, record: PoolRecord, waiting: Sequence[NodeRecord], now: datetime
) -> breaker.Trouble | None:
    """What forbids to act on any node, whatever the budget says."""
    if not record.spec.health.auto_replace:
        return None
    held = incidents.holding(record, now)
    if held:
        return breaker.Trouble("wave", wave_words(record, held))
    uncovered = len(waiting) - len(spares.covered(record, world.nodes, list(waiting), now))
    if uncovered and _launches_fail(record, now):
        # A node terminated now would leave a gap, unless a spare is ready to take its place. Sick
        # nodes wait in theirs.
        reason = f"new nodes do not come up: launches fail ({record.failures} in a row)"
        return breaker.Trouble("launches-fail", reason)
    return None


def _launches_fail(record: PoolRecord, now: datetime) -> bool:
    """Whether the last launch failed, for more than a spend_cap, and no later one has succeeded."""
    if not record.failures or record.over_spend_cap:
        return False
    trying = any(each.kind == "scale-up" for each in record.open.values())
    return trying or (record.retry_at is not None and now < record.retry_at)


def _ramping(record: PoolRecord) -> bool:
    """Whether repairs that were begun slowly are still under way."""
    return any(breaker.in_ramp(record.breaker, each) for each in record.open.values())


# --- acting --------------------------------------------------------------------------------------


def _counted(world: World, acted: _Acted, before: int, now: datetime) -> _Acted:
    """Note in the record what was begun after the first `before`, for the rates."""
    kinds = [each.kind for each in islice(acted.start.values(), before, None)]
    if not kinds:
        return acted
    window = float(world.others.spec.window) if world.others is not None else 0.0
    return replace(acted, record=with_begun(acted.record, window, now, kinds))


def _refusal(acted: _Acted, node: NodeRecord) -> BreakerCause:
    """What of the budget forbids the node's remedy."""
    resets = remedy_selection.is_in_place(acted.choices[node.node].remedy)
    return acted.allowance.refusal(cordoned=node.cordoned, resets=resets)


def _begin(world: World, acted: _Acted, node: NodeRecord, now: datetime) -> tuple[str, _Acted]:
    choice = acted.choices[node.node]
    saga, opened, record = remedy_selection.begun(world, acted.record, node, choice, now)
    return saga, replace(
        acted,
        record=record,
        start={**acted.start, saga: opened},
        allowance=acted.allowance.took(
            cordoned=node.cordoned, resets=remedy_selection.is_in_place(choice.remedy)
        ),
    )


def _taken(world: World, acted: _Acted, trouble: breaker.Trouble | None, now: datetime) -> _Acted:
    """Act on the nodes that the cloud takes, whatever breaker and budget say: it does not ask.

    Where launches fail one try is made to be ahead of it. A person's word holds these too.
    """
    spec = acted.record.spec
    failing = trouble is not None and trouble.cause == "launches-fail"
    left: list[NodeRecord] = []
    before = len(acted.start)
    for node in acted.left:
        ahead = not (failing and node.cordoned) and not acted.record.breaker.forced
        if ahead and cloud_notices.urgent(node, spec, now):
            _, acted = _begin(world, acted, node, now)
        else:
            left.append(node)
    acted = _counted(world, acted, before, now)
    return replace(acted, left=tuple(left))


def _held(world: World, acted: _Acted, trouble: breaker.Trouble, now: datetime) -> _Acted:
    """Open the breaker for what forbids to act; where launches fail, the spares are used first."""
    state = acted.record.breaker.state
    if trouble.cause == "launches-fail" and state == "closed":
        replaced = remedy_selection.replaced(acted.choices, acted.left)
        covered = spares.covered(acted.record, world.nodes, replaced, now)
        others = tuple(node for node in replaced if node not in covered)
        free = tuple(node for node in acted.left if node not in others)
        acted = _begun(world, replace(acted, left=free), now)
        acted = replace(acted, left=(*acted.left, *others))
    if state == "half-open" and trouble.cause != "wave":
        return acted
    shut = breaker.opened(acted.record.breaker, trouble, now)
    return replace(acted, record=_with(acted.record, shut))


def _mended(world: World, acted: _Acted, now: datetime) -> _Acted:
    """Mend degraded nodes with what the sick have left of the budget; these can wait for it."""
    if not acted.record.spec.health.auto_replace or acted.record.breaker.state != "closed":
        return acted
    before = len(acted.start)
    ramp = breaker.ramp_room(acted.record)
    for node, choice in remedy_selection.mendable(world, acted.record, now):
        acted = replace(acted, choices={**acted.choices, node.node: choice})
        if _refusal(acted, node) or (ramp is not None and len(acted.start) - before >= ramp):
            break
        _, acted = _begin(world, acted, node, now)
    return _counted(world, acted, before, now)


def _probed(world: World, acted: _Acted, now: datetime) -> _Acted:
    """Half-open it with one repair, where it may; else note what keeps it open."""
    shut = acted.record.breaker
    if shut.forced or shut.probe in acted.record.open:
        return acted
    if shut.probe_at is not None and now < shut.probe_at:
        return acted
    refused: BreakerCause = ""
    for node in acted.left:
        if incidents.room(acted.record, fault_signature(node), now) == 0:
            continue
        why = _refusal(acted, node)
        if why:
            refused = refused or why
            continue
        before = len(acted.start)
        saga, acted = _begin(world, acted, node, now)
        acted = _counted(world, acted, before, now)
        left = tuple(each for each in acted.left if each is not node)
        half = breaker.half_opened(acted.record.breaker, saga, now)
        return replace(acted, record=_with(acted.record, half), left=left)
    if refused:
        trouble = breaker.Trouble(refused, spent_words(acted.record, acted.allowance, refused, now))
        acted = replace(acted, record=_with(acted.record, breaker.opened(shut, trouble, now)))
    return replace(acted, refused=refused)


def _begun(world: World, acted: _Acted, now: datetime) -> _Acted:
    """Begin what the budget and the ramp let begin; open the breaker where the budget is spent."""
    ramp = breaker.ramp_room(acted.record)
    before = len(acted.start)
    left: list[NodeRecord] = []
    refused: list[BreakerCause] = []
    for node in acted.left:
        if incidents.room(acted.record, fault_signature(node), now) == 0:
            left.append(node)
        elif why := _refusal(acted, node):
            left.append(node)
            refused.append(why)
        elif ramp is not None and len(acted.start) - before >= ramp:
            left.append(node)
        else:
            _, acted = _begin(world, acted, node, now)
    acted = _counted(world, acted, before, now)
    # While the ramp stands, a spent level is what it is meant to lead to, and was told before.
    quiet = ("level", "fleet-level") if ramp is not None else ()
    cause: BreakerCause = next((each for each in refused if each not in quiet), "")
    record = acted.record
    if cause:
        trouble = breaker.Trouble(cause, spent_words(record, acted.allowance, cause, now))
        record = _with(record, breaker.opened(record.breaker, trouble, now))
    return replace(acted, record=record, left=tuple(left), refused=cause)


# --- telling -------------------------------------------------------------------------------------


def _wake_at(world: World, acted: _Acted, now: datetime) -> datetime | None:
    """When to look again though nothing happens."""
    record = acted.record
    at = earlier(_next_loss(world, record, now), incidents.next_end(record, now))
    at = earlier(at, cloud_notices.next_moment(record, world.nodes.needs_attention, now))
    if not acted.left:
        return at
    if record.breaker.cause == "launches-fail":
        # While the next launch is under way its moment has passed, and its end is what tells.
        at = earlier(at, to_come(record.retry_at, now))
    at = earlier(at, to_come(record.breaker.probe_at, now))
    if acted.refused in ("rate", "reset-rate"):
        slots = record.disruptions if acted.refused == "rate" else record.resets
        due = room_at(slots, float(record.spec.budget.window), now)
        at = earlier(at, to_come(due, now))
    return at


def _next_loss(world: World, record: PoolRecord, now: datetime) -> datetime | None:
    """When the next silent node becomes a lost one."""
    soonest: datetime | None = None
    for node in world.nodes.needs_attention:
        if node.lost and node.lost_at is not None and not sick(node, record, now):
            due = node.lost_at + timedelta(seconds=patience_seconds(node, record))
            soonest = earlier(soonest, to_come(due, now))
    return soonest


def _told(world: World, before: Breaker, acted: _Acted, now: datetime) -> tuple[PoolEvent, ...]:
    """The one change of the breaker's state, if there was any."""
    after, name = acted.record.breaker, acted.record.name
    if after.state == before.state:
        return ()
    allowed, count = acted.allowance, len(acted.left)
    match after.state:
        case "open":
            waits = f"{count} sick wait: " if count else ""
            return (
                BreakerOpened(
                    id=f"breaker-opened-{name}-{world.revision}",
                    time=now,
                    pool=name,
                    unavailable=allowed.unavailable,
                    limit=allowed.level,
                    waiting=tuple(node.node for node in acted.left[:WAITING_NAMED_MAX]),
                    reason=f"{waits}{after.reason}",
                    breaker_cause=after.cause,
                    disruptions=allowed.disruptions,
                    disruptions_limit=-1 if allowed.rate is None else allowed.rate,
                ),
            )
        case "half-open":
            return (
                BreakerHalfOpened(
                    id=f"breaker-half-opened-{name}-{world.revision}",
                    time=now,
                    pool=name,
                    saga=after.probe,
                    node=acted.record.open[after.probe].node,
                    breaker_cause=after.cause,
                    reason="what opened it is over; if this repair succeeds, others follow",
                ),
            )
        case "closed":
            return (
                BreakerClosed(
                    id=f"breaker-closed-{name}-{world.revision}",
                    time=now,
                    pool=name,
                    unavailable=allowed.unavailable,
                    limit=allowed.level,
                    breaker_cause=after.cause,
                    reason=after.reason,
                ),
            )
