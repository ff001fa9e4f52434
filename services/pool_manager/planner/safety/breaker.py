"""The breaker of a pool: whether unhealthy nodes are acted on at all. Pure.

```
           spent, a wave, launches fail, a person
  closed ────────────────────────────────────────► open ◄──────────────┐
    ▲ ▲                                             │ │                │
    │ └────────── nothing waits, or a person ───────┘ │ it is over     │
    │                                                 ▼                │
    └─────────── the repair succeeded ─────────── half-open ───────────┘
                                             the repair failed, or a wave
```

Open, no disruptive saga is begun; what heals goes on. Half-open, one repair is under way and no
other. After it has closed again, repairs begin 1, 2, 4 … at once, twice as many once one has
succeeded and the stage has lasted `incident.stage` (the ramp), until no unhealthy node waits.
During the ramp a spent level is no news: it was published when the breaker opened. An operator
overrides all of this but the budget.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from schemas.breaker_state import Breaker
from schemas.enums import BreakerCause
from schemas.pool_records import OpenSaga, PoolRecord
from services.pool_manager.planner.node_counts import automatic
from services.saga.definitions import DEFINITIONS

PROBE_HOLD_FIRST_SECONDS: Final = 60.0
PROBE_HOLD_MAX_SECONDS: Final = 3600.0
RAMP_FACTOR: Final = 2
RAMP_MAX: Final = 4096
"""More at once than a pool's record can hold."""

Ended = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class BreakerReason:
    """The reason says why unhealthy nodes are not acted on."""

    cause: BreakerCause
    reason: str


def opened(breaker: Breaker, obstacle: BreakerReason, now: datetime) -> Breaker:
    """Open it, or note what keeps it open now; an operator's order is kept."""
    if breaker.forced:
        return breaker
    if breaker.state == "open":
        # Its figures change with every decision; the record keeps the first.
        if breaker.cause == obstacle.cause != "wave":
            return breaker
        return msgspec.structs.replace(breaker, cause=obstacle.cause, reason=obstacle.reason)
    return Breaker(
        state="open",
        since=now,
        cause=obstacle.cause,
        reason=obstacle.reason,
        request=breaker.request,
        probe=breaker.probe,
        probe_outcome=breaker.probe_outcome,
        probes_failed=breaker.probes_failed,
        probe_at=breaker.probe_at,
    )


def settled(breaker: Breaker, now: datetime) -> Breaker:
    """Take in how the one repair of a half-open breaker has ended."""
    if not breaker.probe_outcome:
        return breaker
    if breaker.state != "half-open":
        # Something else opened it while that repair was under way.
        return msgspec.structs.replace(breaker, probe="", probe_outcome="")
    plain = msgspec.structs.replace(breaker, probe="", probe_outcome="", since=now)
    match breaker.probe_outcome:
        case "done":
            return msgspec.structs.replace(
                plain,
                state="closed",
                reason="one node was repaired, and that went well",
                probes_failed=0,
                probe_at=None,
                ramp=RAMP_FACTOR,
                ramp_since=now,
            )
        case "cancelled":
            wait = PROBE_HOLD_FIRST_SECONDS
            failed = breaker.probes_failed
            reason = f"the repair that was tried ({breaker.probe}) was cancelled"
        case "failed":
            wait = min(PROBE_HOLD_FIRST_SECONDS * 2**breaker.probes_failed, PROBE_HOLD_MAX_SECONDS)
            failed = breaker.probes_failed + 1
            reason = f"the repair that was tried ({breaker.probe}) failed"
    return msgspec.structs.replace(
        plain,
        state="open",
        cause="probe-failed",
        reason=f"{reason}; the next is tried in {wait:.0f} s",
        probes_failed=failed,
        probe_at=now + timedelta(seconds=wait),
        ramp_from=None,
    )


def half_opened(breaker: Breaker, saga: str, now: datetime) -> Breaker:
    """Let one repair begin."""
    assert breaker.state == "open", breaker.state
    assert not breaker.forced
    return msgspec.structs.replace(
        breaker, state="half-open", since=now, probe=saga, probe_outcome="", ramp_from=now
    )


def nothing_waits(breaker: Breaker, now: datetime) -> Breaker:
    """Close an open one, as no unhealthy node waits any more; end the ramp of a closed one."""
    if breaker.state == "open" and not breaker.forced:
        reason = "no unhealthy node waits any more"
        return Breaker(since=now, cause=breaker.cause, reason=reason, request=breaker.request)
    if breaker.state == "closed" and breaker.ramp:
        return msgspec.structs.replace(breaker, ramp=0, ramp_from=None, ramp_since=None)
    return breaker


def ended(record: PoolRecord, saga: str, how: Ended, now: datetime) -> PoolRecord:
    """Note how a repair ended, where the breaker or its ramp depends on that.

    The next decision closes, opens and publishes. A success widens the ramp once its stage has
    lasted long enough: by then it shows whether what was replaced stays well.
    """
    breaker, ended_saga = record.breaker, record.open[saga]
    if saga == breaker.probe:
        breaker = msgspec.structs.replace(breaker, probe_outcome=how)
    elif breaker.ramp and in_ramp(breaker, ended_saga) and how != "cancelled":
        stage = timedelta(seconds=record.spec.health.incident.stage)
        if how == "failed":
            breaker = msgspec.structs.replace(breaker, ramp=1, ramp_since=now)
        elif breaker.ramp_since is None or now - breaker.ramp_since >= stage:
            ramp = min(breaker.ramp * RAMP_FACTOR, RAMP_MAX)
            breaker = msgspec.structs.replace(breaker, ramp=ramp, ramp_since=now)
    return msgspec.structs.replace(record, breaker=breaker)


def in_ramp(breaker: Breaker, opened_: OpenSaga) -> bool:
    """Return whether a saga counts in the ramp: begun by itself since, and not for the cloud."""
    return (
        breaker.ramp_from is not None
        and DEFINITIONS[opened_.kind].disrupts
        and automatic(opened_)
        and not opened_.notice
        and opened_.since >= breaker.ramp_from
    )


def is_ramping(record: PoolRecord) -> bool:
    """Return whether repairs that were begun slowly are still under way."""
    return any(in_ramp(record.breaker, each) for each in record.open.values())


def ramp_room(record: PoolRecord) -> int | None:
    """Return how many more repairs the ramp lets begin; None: it sets no bound."""
    breaker = record.breaker
    if not breaker.ramp:
        return None
    under_way = sum(1 for each in record.open.values() if in_ramp(breaker, each))
    return max(0, breaker.ramp - under_way)


# --- by hand -------------------------------------------------------------------------------------


def forced_open(breaker: Breaker, reason: str, by: str, request: str, now: datetime) -> Breaker:
    """Open it until a person closes it."""
    return Breaker(
        state="open",
        since=breaker.since if breaker.state == "open" else now,
        cause="operator",
        reason=reason,
        by=by,
        forced=True,
        request=request,
    )


def restored(breaker: Breaker, reason: str, now: datetime) -> Breaker:
    """Open it until a person closes it: the store is older than the fleet."""
    since = breaker.since if breaker.state == "open" else now
    return Breaker(
        state="open",
        since=since,
        cause="restored",
        reason=reason,
        forced=True,
        request=breaker.request,
    )


def is_restored(breaker: Breaker) -> bool:
    """Return whether an operator has yet to compare a restored store with the fleet."""
    return breaker.forced and breaker.cause == "restored"


def closed_by_hand(breaker: Breaker, reason: str, by: str, request: str, now: datetime) -> Breaker:
    """Close it; repairs then begin slowly, where there are any."""
    return Breaker(
        since=now,
        cause=breaker.cause,
        reason=reason,
        by=by,
        request=request,
        ramp=1,
        ramp_from=now,
        ramp_since=now,
    )
