"""Decides which unhealthy nodes are remediated now, within the budget, and which wait. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

import msgspec

from schemas.breaker_state import Breaker
from schemas.enums import BreakerCause
from schemas.node_records import NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner import cloud_notices, retirements
from services.pool_manager.planner.disruption_budget import (
    Allowance,
    allowance,
    room_at,
    with_counted,
)
from services.pool_manager.planner.gates import gate_table
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.idle_nodes import has_no_work
from services.pool_manager.planner.node_counts import (
    Nodes,
    busy,
    cordon_just_refused,
    cordons_wait,
    is_down,
    is_gone,
    is_out,
    takes_out_no_more,
)
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation import (
    gangs,
    obstacles,
    quarantine,
    rack_repair,
    remedy_selection,
    renewals,
)
from services.pool_manager.planner.remediator import RemedyChoice
from services.pool_manager.planner.safety import breaker, incidents, slow_waves
from services.pool_manager.planner.safety.breaker_events import breaker_events
from services.pool_manager.planner.safety.breaker_messages import spent_words
from services.pool_manager.planner.sizing import open_sagas, spares
from services.pool_manager.planner.unhealthy_nodes import remediation_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class _Actions:
    """What was begun, who waits, and what of the budget refused the first of them."""

    record: PoolRecord
    nodes: Nodes
    left: tuple[NodeRecord, ...]
    allowance: Allowance
    start: dict[str, OpenSaga]
    units: int
    """Of the record's open sagas: counted once, since a wave begins thousands."""
    choices: Mapping[str, RemedyChoice]
    """Node -> its remedy."""
    without_work: frozenset[str]
    """Nodes that have no work to lose; unknown is not empty."""
    refused: BreakerCause = ""


def repair(snapshot: PoolSnapshot, begun: PoolPlan, now: datetime) -> PoolPlan:
    """Begin what budget, breaker and incidents allow; publish when the others must wait."""
    seen = incidents.observe(begun.record, snapshot.nodes, snapshot.health, snapshot.revision, now)
    before = seen.record.breaker
    record = _with_breaker(seen.record, breaker.settled(before, now))
    waiting = _waiting(snapshot, record, now)
    choices = {node.node: remedy_selection.choose(snapshot, node, now) for node in waiting}
    waiting, choices = rack_repair.by_rack(snapshot, record, waiting, choices, now)
    people = remedy_selection.notify_operators(snapshot, record, choices, waiting, now)
    record, put_off = people.record, obstacles.put_off(snapshot, people.record, people.others, now)
    waiting = [node for node in people.others if node.node not in put_off]
    obstacle = obstacles.find_obstacle(snapshot, record, waiting, choices, now)
    actions = _Actions(
        record=record,
        nodes=snapshot.nodes,
        choices=choices,
        left=tuple(waiting),
        allowance=allowance(record, snapshot.nodes, snapshot.others, now),
        start={},
        units=open_sagas.open_units(record),
        without_work=frozenset(
            each.node for each in waiting if has_no_work(each, snapshot.use, now)
        ),
    )
    actions = _begin_urgent(snapshot, actions, obstacle, now)
    actions = _replace_gone(snapshot, actions, obstacle, now)
    if obstacle is None or obstacle.cause != "launches-fail":
        actions = _replace_down(snapshot, actions, now)
    if obstacle is None and gangs.may_join(actions.record.breaker):
        actions = _begin_with_gang(snapshot, actions, now)
    if obstacle is not None:
        if obstacle.cause == "wave":
            actions = _begin_confirmed(snapshot, actions, now)
        actions = _hold_back(snapshot, actions, obstacle, now)
    elif actions.record.breaker.state == "open" and actions.left:
        actions = _begin_probe(snapshot, actions, now)
    elif actions.record.breaker.state == "closed":
        actions = _begin_allowed(snapshot, actions, now)
    # A node whose quarantine is under way waits for its repair all the same.
    calm = not (obstacle or actions.left or put_off or quarantine.under_way(actions.record))
    if calm:
        actions = _remediate_degraded(snapshot, actions, now)
        actions = _renew(snapshot, actions, now)
    if calm and not actions.left and not breaker.is_ramping(actions.record):
        closed = breaker.nothing_waits(actions.record.breaker, now)
        actions = replace(actions, record=_with_breaker(actions.record, closed))
    return replace(
        begun,
        record=actions.record,
        start={**begun.start, **actions.start},
        events=(
            *begun.events,
            *seen.events,
            *people.events,
            *breaker_events(
                before,
                actions.record,
                actions.allowance,
                actions.left,
                snapshot.revision,
                now,
            ),
        ),
        wake_at=earlier(begun.wake_at, _wake_at(snapshot, actions, now)),
    )


def _with_breaker(record: PoolRecord, changed: Breaker) -> PoolRecord:
    if changed == record.breaker:
        return record
    return msgspec.structs.replace(record, breaker=changed)


def _waiting(snapshot: PoolSnapshot, record: PoolRecord, now: datetime) -> Sequence[NodeRecord]:
    """The unhealthy nodes that may be disrupted and have no open saga; the oldest first."""
    taken, nodes = busy(record), snapshot.nodes.needs_attention
    times = retirements.retired_at(nodes)
    return sorted(
        (
            node
            for node in nodes
            if node.node not in taken
            and remediation_reason(node, record, now)
            and gate_table.first(Proposal("repair", record, now, node, snapshot.use, times)) is None
            # Others have removed it: their maker decides whether there is another.
            and not (record.spec.nodes != "launched" and is_gone(node))
        ),
        key=lambda node: (
            not cloud_notices.urgent(node, record.spec, now),
            *cloud_notices.urgency(node, node.health_at or node.lost_at or now),
        ),
    )


# --- acting --------------------------------------------------------------------------------------


def _count_begun(snapshot: PoolSnapshot, actions: _Actions, before: int, now: datetime) -> _Actions:
    """Note in the record what was begun after the first `before`, for the rates."""
    begun = dict(islice(actions.start.items(), before, None))
    if not begun:
        return actions
    record = with_counted(actions.record, snapshot.fleet_window, now, begun)
    start = {**actions.start, **{saga: record.open[saga] for saga in begun}}
    return replace(actions, record=record, start=start)


def _rack(actions: _Actions, node: NodeRecord) -> str:
    """The rack that is replaced when this node is; empty: none."""
    choice = actions.choices[node.node]
    return rack_repair.rack_of(actions.nodes, actions.record, node, choice)


def _refusal(actions: _Actions, node: NodeRecord) -> BreakerCause:
    """What of the budget forbids the node's remedy."""
    resets = remedy_selection.is_in_place(actions.choices[node.node].remedy)
    out, allowed = takes_out_no_more(actions.record, actions.nodes, node), actions.allowance
    allowed = allowed.for_no_fault() if cloud_notices.is_only_taken(node) else allowed
    free = node.node in actions.without_work
    return allowed.refusal(cordoned=out, resets=resets, no_work=free)


def _begin(
    snapshot: PoolSnapshot, actions: _Actions, node: NodeRecord, now: datetime
) -> tuple[str, _Actions]:
    choice = actions.choices[node.node]
    out = takes_out_no_more(actions.record, actions.nodes, node)
    started, record = rack_repair.start(snapshot, actions.record, node, choice, now)
    record = slow_waves.with_remediated(record, node, snapshot.health.get(node.node), now)
    saga, opened = next(iter(started.items()))
    return saga, replace(
        actions,
        record=record,
        start={**actions.start, **started},
        units=actions.units + sum(map(open_sagas.units_of, started.values())),
        allowance=actions.allowance.after(opened, cordoned=out),
    )


def _begin_one(
    snapshot: PoolSnapshot, actions: _Actions, node: NodeRecord, now: datetime
) -> tuple[str, _Actions]:
    """Begin one of the waiting nodes, counted in the rates."""
    saga, begun = _begin(snapshot, actions, node, now)
    left = tuple(each for each in actions.left if each is not node)
    return saga, replace(_count_begun(snapshot, begun, len(actions.start), now), left=left)


def _begin_where(
    snapshot: PoolSnapshot,
    actions: _Actions,
    wanted: Callable[[_Actions, NodeRecord], bool],
    now: datetime,
) -> _Actions:
    """Begin the waiting nodes that are wanted, given what was begun before each of them."""
    left: list[NodeRecord] = []
    for node in actions.left:
        if wanted(actions, node):
            _, actions = _begin(snapshot, actions, node, now)
        else:
            left.append(node)
    return replace(actions, left=tuple(left))


def _begin_urgent(
    snapshot: PoolSnapshot, actions: _Actions, obstacle: breaker.BreakerReason | None, now: datetime
) -> _Actions:
    """Act on the nodes that the cloud takes, whatever breaker and budget say: it does not ask.

    Where launches fail one try is made to be ahead of it. A person's word holds these too.
    """
    if actions.record.breaker.forced or cordon_just_refused(actions.record, now):
        return actions
    failing = obstacle is not None and obstacle.cause == "launches-fail"
    spec = actions.record.spec

    def taken(_: _Actions, node: NodeRecord) -> bool:
        return not (failing and is_out(node)) and cloud_notices.urgent(node, spec, now)

    begun = _begin_where(snapshot, actions, taken, now)
    return _count_begun(snapshot, begun, len(actions.start), now)


def _replace_gone(
    snapshot: PoolSnapshot, actions: _Actions, obstacle: breaker.BreakerReason | None, now: datetime
) -> _Actions:
    """Replace the nodes whose instances are gone: that disturbs nothing, so no budget binds it."""
    if obstacles.gaps_wait(actions.record, obstacle):
        return actions

    def gone(so_far: _Actions, node: NodeRecord) -> bool:
        replaced = so_far.choices[node.node].remedy == "replace" and not _rack(so_far, node)
        return replaced and is_gone(node) and open_sagas.another_fits(so_far.units)

    begun = _begin_where(snapshot, actions, gone, now)
    return replace(begun, allowance=actions.allowance)


def _replace_down(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """Act on the nodes whose instances do not run, as many as the budget allows.

    Their provider has confirmed it, and no workload system need be asked.
    """
    if actions.record.breaker.forced:
        return actions

    def down(so_far: _Actions, node: NodeRecord) -> bool:
        return (
            is_down(node) and open_sagas.another_fits(so_far.units) and not _refusal(so_far, node)
        )

    begun = _begin_where(snapshot, actions, down, now)
    return _count_begun(snapshot, begun, len(actions.start), now)


def _begin_with_gang(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """Act on nodes that share a job with one that is being taken out, beyond the budget's level."""
    interrupts = gangs.interrupted(actions.record, snapshot.nodes)
    left: list[NodeRecord] = []
    begun = actions
    for node in actions.left:
        choice = begun.choices[node.node]
        # What is only inspected keeps its work.
        alone = choice.remedy == "inspect" or _rack(begun, node)
        shared = "" if alone else gangs.shared_reason(node, interrupts)
        beyond = replace(begun, allowance=gangs.widened(begun.allowance))
        if not shared or not open_sagas.another_fits(begun.units) or _refusal(beyond, node):
            left.append(node)
            continue
        joined = replace(choice, reason="; ".join(filter(None, (choice.reason, shared))))
        begun = replace(begun, choices={**begun.choices, node.node: joined})
        _, begun = _begin(snapshot, begun, node, now)
    begun = _count_begun(snapshot, begun, len(actions.start), now)
    return replace(begun, left=tuple(left))


def _begin_confirmed(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """During a wave, one node at a time that is not of it, or whose own evidence confirms it."""
    if cordons_wait(actions.record, now):
        return actions
    if actions.record.breaker.forced or obstacles.is_repairing(actions.record, now):
        return actions
    for node in actions.left:
        health = snapshot.health.get(node.node)
        free = incidents.may_begin(actions.record, node, health, now)
        if not free or _refusal(actions, node):
            continue
        actions = replace(actions, record=incidents.probed(actions.record, node, health, now))
        return _begin_one(snapshot, actions, node, now)[1]
    return actions


def _hold_back(
    snapshot: PoolSnapshot, actions: _Actions, obstacle: breaker.BreakerReason, now: datetime
) -> _Actions:
    """Open the breaker for what forbids to act; where launches fail, the spares are used first."""
    state = actions.record.breaker.state
    if obstacle.cause == "launches-fail" and state == "closed":
        replaced = remedy_selection.to_be_replaced(actions.choices, actions.left)
        covered = spares.covered(actions.record, snapshot.nodes, replaced, now)
        others = tuple(node for node in replaced if node not in covered)
        free = tuple(node for node in actions.left if node not in others)
        actions = _begin_allowed(snapshot, replace(actions, left=free), now)
        actions = replace(actions, left=(*actions.left, *others))
    if state == "half-open" and obstacle.cause != "wave":
        return actions
    shut = breaker.opened(actions.record.breaker, obstacle, now)
    return replace(actions, record=_with_breaker(actions.record, shut))


def _remediate_degraded(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """Remediate degraded nodes with what unhealthy ones have left of the budget."""
    before, ramp = len(actions.start), breaker.ramp_room(actions.record)
    for node, choice in remedy_selection.degraded_candidates(snapshot, actions.record, now):
        actions = replace(actions, choices={**actions.choices, node.node: choice})
        if _refusal(actions, node) or not open_sagas.another_fits(actions.units):
            break
        if ramp is not None and len(actions.start) - before >= ramp:
            break
        _, actions = _begin(snapshot, actions, node, now)
    return _count_begun(snapshot, actions, before, now)


def _renew(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """Replace healthy nodes that are due, after degraded ones, within a budget of their own."""
    if not renewals.may_begin(actions.record, now):
        return actions
    before, whole = len(actions.start), actions.allowance
    record, found = renewals.with_room(snapshot, actions.record, now)
    actions = replace(actions, allowance=whole.for_no_fault(), record=record)
    for node, choice, what in found:
        if renewals.rack_waits(actions.record, actions.nodes, node, actions.allowance):
            continue
        actions = replace(actions, choices={**actions.choices, node.node: choice})
        if _refusal(actions, node) or not open_sagas.another_fits(actions.units):
            break
        if node.node in busy(actions.record):
            continue  # a spare that takes the place of the one before
        saga, actions = _begin(snapshot, actions, node, now)
        opened = renewals.opening(*(actions.start[saga], node, actions.record, choice.reason, what))
        record = open_sagas.with_open(actions.record, saga, opened)
        start, units = {**actions.start, saga: opened}, open_sagas.open_units(record)
        actions = replace(actions, record=record, start=start, units=units)
    return _count_begun(snapshot, replace(actions, allowance=whole), before, now)


def _begin_probe(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """Half-open it with one repair, where it may; else note what keeps it open."""
    shut = actions.record.breaker
    if shut.forced or shut.probe in actions.record.open:
        return actions
    if shut.probe_at is not None and now < shut.probe_at:
        return actions
    refused: BreakerCause = ""
    for node in actions.left:
        if why := _refusal(actions, node):
            refused = refused or why
            continue
        saga, actions = _begin_one(snapshot, actions, node, now)
        half = breaker.half_opened(actions.record.breaker, saga, now)
        return replace(actions, record=_with_breaker(actions.record, half))
    if refused:
        obstacle = breaker.BreakerReason(
            refused, spent_words(actions.record, actions.allowance, refused, now)
        )
        actions = replace(
            actions, record=_with_breaker(actions.record, breaker.opened(shut, obstacle, now))
        )
    return replace(actions, refused=refused)


def _begin_allowed(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> _Actions:
    """Begin what the budget and the ramp let begin; open the breaker where the budget is spent."""
    ramp = breaker.ramp_room(actions.record)
    before = len(actions.start)
    left: list[NodeRecord] = []
    refused: list[BreakerCause] = []
    for at, node in enumerate(actions.left):
        if not open_sagas.another_fits(actions.units):
            left.extend(actions.left[at:])
            break
        if why := _refusal(actions, node):
            left.append(node)
            refused += [] if cloud_notices.is_only_taken(node) else [why]
        elif ramp is not None and len(actions.start) - before >= ramp:
            left.append(node)
        else:
            _, actions = _begin(snapshot, actions, node, now)
    actions = _count_begun(snapshot, actions, before, now)
    # During the ramp a spent level is expected, and was published before.
    quiet = ("level", "fleet-level") if ramp is not None else ()
    cause: BreakerCause = next((each for each in refused if each not in quiet), "")
    record = actions.record
    if cause:
        obstacle = breaker.BreakerReason(cause, spent_words(record, actions.allowance, cause, now))
        record = _with_breaker(record, breaker.opened(record.breaker, obstacle, now))
    return replace(actions, record=record, left=tuple(left), refused=cause)


# --- timers --------------------------------------------------------------------------------------


def _wake_at(snapshot: PoolSnapshot, actions: _Actions, now: datetime) -> datetime | None:
    """When to look again though nothing happens."""
    record, nodes = actions.record, snapshot.nodes.needs_attention
    times = retirements.retired_at(nodes)
    at = gate_table.opens_at(
        Proposal("repair", record, now, node, retiring=times) for node in nodes
    )
    at = earlier(at, incidents.next_end(record, now))
    at = earlier(at, cloud_notices.next_moment(record, nodes, now))
    at = earlier(at, renewals.next_moment(snapshot, record, now))
    at = earlier(at, rack_repair.next_moment(record, snapshot.nodes, now))
    if not actions.left:
        return at
    for block in gate_table.every(Proposal("repair", record, now)):
        at = earlier(at, block.until)
    if actions.refused in ("rate", "reset-rate"):
        slots = record.disruptions if actions.refused == "rate" else record.resets
        at = earlier(at, to_come(room_at(slots, float(record.spec.budget.window), now), now))
    return at
