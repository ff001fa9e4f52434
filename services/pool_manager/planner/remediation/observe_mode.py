"""`mode: observe`: what would have begun is published and recorded, and nothing begins. Pure.

Each decision is published once per cause, however often it is repeated; the pool's record holds
what would be under way, so that people can ask for it at any time.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.breaker_state import ObservedAction
from schemas.pool_events import Incident, OperatorNeeded, PoolCondition, WouldStart
from schemas.pool_records import OpenSaga
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.saga.definitions import DEFINITIONS

WOULD_MAX: Final = 200
"""Decisions kept in a record; the rest is neither kept nor published."""

PUBLISHED: Final = (Incident, OperatorNeeded, PoolCondition)
"""Events of a decision that people hear of although nothing of it is performed."""


def apply_mode(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> PoolPlan:
    """The plan of a pool that only observes, from the one it would have had; any other as it is."""
    record = decided.record
    if record.spec.mode != "observe":
        return _forgetting(decided)
    would: dict[str, ObservedAction] = {}
    fresh: list[WouldStart] = []
    for key, action in list(_observed_actions(decided, now).items())[:WOULD_MAX]:
        known = snapshot.record.observed_actions.get(key)
        if known is not None and known.cause == action.cause:
            would[key] = known
            continue
        would[key] = action
        fresh.append(_event(snapshot, action, now))
    seen = without_starts(snapshot, decided)
    kept = msgspec.structs.replace(seen.record, observed_actions=would)
    return replace(seen, record=kept, events=(*seen.events, *fresh))


def without_starts(snapshot: PoolSnapshot, decided: PoolPlan) -> PoolPlan:
    """Return what a plan only records and reports: nothing of it begins.

    Incidents and the nodes that others made are counted, and operators are notified; all else in
    the decided record belongs to what is not begun.
    """
    record = decided.record
    kept = msgspec.structs.replace(
        snapshot.record,
        incidents=record.incidents,
        operator_notified=record.operator_notified,
        desired=record.desired if record.spec.nodes != "launched" else snapshot.record.desired,
        awaited=record.awaited,
        conditions=record.conditions,
    )
    seen = tuple(each for each in decided.events if isinstance(each, PUBLISHED))
    return replace(decided, record=kept, start={}, events=seen)


def _forgetting(decided: PoolPlan) -> PoolPlan:
    if not decided.record.observed_actions:
        return decided
    return replace(decided, record=msgspec.structs.replace(decided.record, observed_actions={}))


def _observed_actions(decided: PoolPlan, now: datetime) -> dict[str, ObservedAction]:
    counted: dict[str, list[OpenSaga]] = {}
    actions: dict[str, ObservedAction] = {}
    for each in decided.start.values():
        if DEFINITIONS[each.kind].resizes:
            counted.setdefault(each.kind, []).append(each)
            continue
        actions[f"{each.kind} {each.node}"] = ObservedAction(
            kind=each.kind,
            node=each.node,
            cause=each.fault_signature or each.fault,
            reason=each.reason,
            since=now,
        )
    for kind, all_of_it in counted.items():
        actions[kind] = ObservedAction(
            kind=all_of_it[0].kind,
            nodes=len(all_of_it),
            cause=" ".join([str(len(all_of_it)), *sorted(one.node for one in all_of_it)]).strip(),
            reason=all_of_it[0].reason,
            since=now,
        )
    return actions


def _event(snapshot: PoolSnapshot, action: ObservedAction, now: datetime) -> WouldStart:
    name = snapshot.record.name
    about = f"-{action.node}" if action.node else ""
    return WouldStart(
        id=f"would-{name}-{action.kind}{about}-{snapshot.revision}",
        time=now,
        pool=name,
        kind=action.kind,
        node=action.node,
        nodes=action.nodes,
        reason=action.reason,
    )
