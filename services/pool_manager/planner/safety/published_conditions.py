"""Restores what a pool's events say is still open, for a record lost or rolled back. Pure.

Breaker, incidents and caps are in the pool's record alone. Without them an order of an operator to
leave unhealthy nodes alone would be forgotten, and no event would end the alerts about them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from schemas.breaker_state import Breaker, OpenIncident
from schemas.pool_events import (
    BreakerClosed,
    BreakerHalfOpened,
    BreakerOpened,
    Incident,
    OnDemandShort,
    PoolCondition,
    PoolEvent,
    PoolRemoved,
    QuarantineFull,
)
from schemas.pool_records import OpenCondition, PoolRecord
from services.pool_manager.planner.safety import breaker, rack_faults

CONDITION_EVENTS: Final[tuple[type[PoolEvent], ...]] = (
    *(BreakerOpened, BreakerHalfOpened, BreakerClosed),
    *(QuarantineFull, OnDemandShort, PoolCondition, Incident, PoolRemoved),
)


@dataclass(slots=True)
class _Conditions:
    breaker: BreakerOpened | BreakerHalfOpened | None = None
    """None: closed."""
    quarantine_full: bool = False
    on_demand_short: bool = False
    incidents: dict[str, OpenIncident] = field(default_factory=dict)
    conditions: dict[str, OpenCondition] = field(default_factory=dict)


def with_published(record: PoolRecord, events: Iterable[PoolEvent]) -> PoolRecord:
    """The record with what these events opened and did not close; in the order of their storage.

    What the record has open already stays as it is: what is over is noticed, and published again.
    """
    found = _folded(events)
    later = {
        what: each
        for what, each in found.incidents.items()
        if what not in record.incidents or record.incidents[what].since < each.since
    }
    return msgspec.structs.replace(
        record,
        breaker=_breaker(record.breaker, found.breaker),
        quarantine_full=record.quarantine_full or found.quarantine_full,
        on_demand_short=record.on_demand_short or found.on_demand_short,
        incidents={**record.incidents, **later},
        conditions={**found.conditions, **record.conditions},
    )


def _folded(events: Iterable[PoolEvent]) -> _Conditions:
    found = _Conditions()
    for event in events:
        match event:
            case PoolRemoved():
                found = _Conditions()  # the next pool of this name is another
            case BreakerOpened() | BreakerHalfOpened():
                found.breaker = event
            case BreakerClosed(by=by):
                found.breaker = None
                if by:
                    found.incidents = {k: _released(each) for k, each in found.incidents.items()}
            case QuarantineFull(status=status):
                found.quarantine_full = status == "opened"
            case OnDemandShort(status=status):
                found.on_demand_short = status == "opened"
            case PoolCondition():
                _note_condition(found.conditions, event)
            case Incident(incident=incident, status=status):
                what = incident.rpartition("-")[0]
                found.incidents.pop(what, None)
                if status == "opened":
                    found.incidents[what] = _incident(what, event)
            case _:
                pass
    return found


def _note_condition(conditions: dict[str, OpenCondition], event: PoolCondition) -> None:
    conditions.pop(event.condition, None)
    if event.status == "opened":
        conditions[event.condition] = OpenCondition(
            since=event.time, reported=True, reason=event.reason
        )


def _breaker(known: Breaker, event: BreakerOpened | BreakerHalfOpened | None) -> Breaker:
    """The breaker as it was opened last, unless the record has that or what came after it."""
    if event is None or known.forced or (known.since is not None and known.since >= event.time):
        return known
    match event:
        case BreakerOpened(by=by, reason=reason) if by:
            return breaker.forced_open(known, reason, by, event.cause, event.time)
        case BreakerOpened(breaker_cause="restored", reason=reason):
            return breaker.restored(known, reason, event.time)
    if known.state != "closed":
        return known
    obstacle = breaker.BreakerReason(event.breaker_cause or "level", event.reason)
    return breaker.opened(known, obstacle, event.time)


def _released(incident: OpenIncident) -> OpenIncident:
    return msgspec.structs.replace(incident, released=not incident.as_unit)


def _incident(what: str, event: Incident) -> OpenIncident:
    return OpenIncident(
        kind=event.kind,
        code=event.code,
        nodes=event.nodes,
        since=event.first,
        last=event.last,
        fault=event.cause,
        scope=event.scope,
        within=event.within,
        as_unit=event.scope == "rack" and what == rack_faults.incident_key(event.within),
    )
