"""A pool's plan under a stop: what it would begin waits, and what it records goes on. Pure."""

from dataclasses import replace
from datetime import datetime

from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot, earlier, to_come
from services.pool_manager.planner.remediation.observe_mode import without_starts
from services.pool_manager.planner.safety import stop_gate
from services.pool_manager.planner.sizing.open_sagas import with_open


def stopped(snapshot: PoolSnapshot, decided: PoolPlan, now: datetime) -> PoolPlan:
    """Return the plan without what a stop holds; as it is where none is in force."""
    stops, record = snapshot.stops, snapshot.record
    passing = {
        saga: opened
        for saga, opened in decided.start.items()
        if not stop_gate.holds(stops, record.name, record.spec, opened.kind, opened, now)
    }
    whole = stop_gate.stop_of(stops, record.name, now)
    if record.spec.mode == "observe" or (whole is None and len(passing) == len(decided.start)):
        return decided
    held = without_starts(snapshot, decided)
    kept = held.record
    for saga, opened in passing.items():
        kept = with_open(kept, saga, opened)
    ends = None
    for each in stops.at(now).values():
        ends = earlier(ends, to_come(each.until, now))
    return replace(held, record=kept, start=passing, wake_at=earlier(held.wake_at, ends))
