"""Opens or closes a pool's breaker at an operator's request. Pure."""

from dataclasses import dataclass
from datetime import datetime

import msgspec

from schemas.operator_requests import BreakerRequest
from schemas.pool_events import BreakerClosed, BreakerOpened, PoolEvent
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety import incidents
from services.pool_manager.planner.safety.breaker import closed_by_hand, forced_open
from services.pool_manager.planner.safety.breaker_messages import spent_words


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerChange:
    """The pool's record with the breaker changed, the event, and what follows, in a sentence."""

    record: PoolRecord | None
    """None: this very request has been carried out before."""
    event: PoolEvent
    note: str


def change_breaker(
    payload: BreakerRequest, snapshot: PoolSnapshot, now: datetime, request: str, *, close: bool
) -> BreakerChange:
    """Open or close it; a repeated request returns the same event and changes nothing.

    Closing releases every open incident, so that the same wave does not open it again. It does not
    lift the budget.
    """
    record, was = snapshot.record, snapshot.record.breaker
    allowed = allowance(record, snapshot.nodes, snapshot.others, now)
    by = payload.by or "an operator"
    if close:
        event: PoolEvent = BreakerClosed(
            id=f"breaker-close-{request}",
            time=now,
            cause=request,
            pool=record.name,
            request=payload.request,
            unavailable=allowed.unavailable,
            limit=allowed.level,
            reason=payload.reason,
            by=by,
            breaker_cause=was.cause,
        )
        changed = closed_by_hand(was, payload.reason, by, request, now)
        record = incidents.released(record)
        spent = allowed.refusal(cordoned=True)
        note = "unhealthy nodes are repaired one, two, four … at once, within the budget"
        note += f"; yet {spent_words(record, allowed, spent, now)}" if spent else ""
    else:
        event = BreakerOpened(
            id=f"breaker-open-{request}",
            time=now,
            cause=request,
            pool=record.name,
            request=payload.request,
            unavailable=allowed.unavailable,
            limit=allowed.level,
            reason=payload.reason,
            by=by,
            breaker_cause="operator",
        )
        changed = forced_open(was, payload.reason, by, request, now)
        note = (
            "no unhealthy node is acted on until an operator closes it; what is under way goes on"
        )
    if was.request == request:
        return BreakerChange(record=None, event=event, note=note)
    return BreakerChange(
        record=msgspec.structs.replace(record, breaker=changed), event=event, note=note
    )
