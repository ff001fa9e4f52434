"""What comes of a person's wish to open or close a pool's breaker. Pure."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from schemas.operator_requests import BreakerRequest
from schemas.pool_events import BreakerClosed, BreakerOpened, PoolEvent
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.pool_snapshot import World
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.safety.breaker import closed_by_hand, forced_open
from services.pool_manager.planner.safety.breaker_messages import spent_words
from services.pool_manager.planner.safety.disruption_budget import allowance


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaking:
    """The pool's record with the breaker so, the fact, and what follows, in words."""

    record: PoolRecord | None
    """None: this very request has been carried out before."""
    fact: PoolEvent
    note: str


def breaking(
    payload: BreakerRequest, world: World, now: datetime, names: dict[str, Any], *, close: bool
) -> Breaking:
    """Open or close it; a repeated request tells the same again and changes nothing.

    Closing lets every open incident go, so that the same wave does not open it again. It does not
    lift the budget.
    """
    record, was = world.record, world.record.breaker
    allowed = allowance(record, world.nodes, world.others, now)
    by, request = payload.by or "somebody", str(names["cause"])
    about = {
        **names,
        "unavailable": allowed.unavailable,
        "limit": allowed.level,
        "reason": payload.reason,
        "by": by,
    }
    if close:
        fact: PoolEvent = BreakerClosed(**about, breaker_cause=was.cause)
        fresh = closed_by_hand(was, payload.reason, by, request, now)
        record = incidents.released(record)
        spent = allowed.refusal(cordoned=True)
        note = "sick nodes are repaired one, two, four … at once, within the budget"
        note += f"; yet {spent_words(record, allowed, spent, now)}" if spent else ""
    else:
        fact = BreakerOpened(**about, breaker_cause="operator")
        fresh = forced_open(was, payload.reason, by, request, now)
        note = "no sick node is acted on until somebody closes it; what is under way goes on"
    if was.request == request:
        return Breaking(record=None, fact=fact, note=note)
    return Breaking(record=msgspec.structs.replace(record, breaker=fresh), fact=fact, note=note)
