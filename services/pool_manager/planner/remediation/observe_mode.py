"""`mode: observe`: what would have been begun is told and recorded, and nothing is begun. Pure.

Each decision is told once for its cause, however often it is taken again; the pool's record holds
what would be under way, so that people can ask for it at any time.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

import msgspec

from schemas.breaker_state import ObservedAction
from schemas.pool_events import Incident, OperatorNeeded, WouldStart
from schemas.pool_records import OpenSaga
from services.pool_manager.planner.pool_snapshot import Plan, World
from services.pool_manager.sagas import DEFINITIONS

WOULD_MAX: Final = 200
"""Decisions kept in a record; what is beyond them is neither kept nor told."""


def observed(world: World, decided: Plan, now: datetime) -> Plan:
    """The plan of a pool that only observes, from the one it would have had; any other as it is."""
    record = decided.record
    if record.spec.mode != "observe":
        return _forgetting(decided)
    would: dict[str, ObservedAction] = {}
    fresh: list[WouldStart] = []
    for key, wish in list(_wishes(decided, now).items())[:WOULD_MAX]:
        known = world.record.observed_actions.get(key)
        if known is not None and known.cause == wish.cause:
            would[key] = known
            continue
        would[key] = wish
        fresh.append(_event(world, wish, now))
    # Incidents are seen and people are told; all else in the decided record belongs to what was
    # not begun.
    kept = msgspec.structs.replace(
        world.record,
        observed_actions=would,
        incidents=record.incidents,
        operator_notified=record.operator_notified,
    )
    seen = tuple(each for each in decided.events if isinstance(each, Incident | OperatorNeeded))
    return replace(decided, record=kept, start={}, events=(*seen, *fresh))


def _forgetting(decided: Plan) -> Plan:
    if not decided.record.observed_actions:
        return decided
    return replace(decided, record=msgspec.structs.replace(decided.record, observed_actions={}))


def _wishes(decided: Plan, now: datetime) -> dict[str, ObservedAction]:
    counted: dict[str, list[OpenSaga]] = {}
    wishes: dict[str, ObservedAction] = {}
    for each in decided.start.values():
        if DEFINITIONS[each.kind].resizes:
            counted.setdefault(each.kind, []).append(each)
            continue
        wishes[f"{each.kind} {each.node}"] = ObservedAction(
            kind=each.kind,
            node=each.node,
            cause=each.fault_signature or each.fault,
            reason=each.reason,
            since=now,
        )
    for kind, all_of_it in counted.items():
        wishes[kind] = ObservedAction(
            kind=all_of_it[0].kind,
            nodes=len(all_of_it),
            cause=" ".join([str(len(all_of_it)), *sorted(one.node for one in all_of_it)]).strip(),
            reason=all_of_it[0].reason,
            since=now,
        )
    return wishes


def _event(world: World, wish: ObservedAction, now: datetime) -> WouldStart:
    name = world.record.name
    about = f"-{wish.node}" if wish.node else ""
    return WouldStart(
        id=f"would-{name}-{wish.kind}{about}-{world.revision}",
        time=now,
        pool=name,
        kind=wish.kind,
        node=wish.node,
        nodes=wish.nodes,
        reason=wish.reason,
    )
