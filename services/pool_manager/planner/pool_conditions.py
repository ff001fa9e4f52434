"""Finds what of a pool a person should know, and publishes its beginning and its end. Pure.

A condition is one function of the pool's snapshot in the table below. Each is published once it has
held for its time, and once it holds no more; `navarch why POOL` and the alerts show the same words.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from schemas.pool_events import PoolCondition
from schemas.pool_records import OpenCondition, PoolRecord
from services.pool_manager.planner.pool_snapshot import PoolSnapshot, earlier, to_come
from services.pool_manager.planner.sizing import (
    ending_capacity,
    failed_launches,
    minimum_size,
    unserved_jobs,
)
from services.pool_manager.planner.sizing.found_condition import FoundCondition

Rule = Callable[[PoolSnapshot, PoolRecord, datetime], FoundCondition | None]

CONDITIONS: Final[Mapping[str, Rule]] = {
    "below-minimum": minimum_size.below_minimum,
    "removal-pending": failed_launches.removal_pending,
    "capacity-ends": ending_capacity.capacity_ends,
    "growth-without-effect": unserved_jobs.growth_without_effect,
}
"""Condition -> what finds it in a pool."""


def reported(
    snapshot: PoolSnapshot, record: PoolRecord, now: datetime
) -> tuple[PoolRecord, tuple[PoolCondition, ...], datetime | None]:
    """Return the record with what holds, what is published of it, and when to look again."""
    open_now: dict[str, OpenCondition] = {}
    events: list[PoolCondition] = []
    wake_at: datetime | None = None
    for name, rule in CONDITIONS.items():
        known = record.conditions.get(name, OpenCondition(since=now))
        found = None if record.removing else rule(snapshot, record, now)
        if found is None:
            if known.reported:
                events.append(
                    _event(snapshot, name, "closed", f"it is over: {known.reason}", "", now)
                )
            continue
        at = max(known.since + timedelta(seconds=found.after_seconds), found.until or known.since)
        if not known.reported and at <= now:
            events.append(_event(snapshot, name, "opened", found.reason, found.remedy, now))
            known = msgspec.structs.replace(known, reported=True, reason=found.reason)
        open_now[name] = known
        wake_at = wake_at if known.reported else earlier(wake_at, to_come(at, now))
    if open_now != record.conditions:
        record = msgspec.structs.replace(record, conditions=open_now)
    return record, tuple(events), wake_at


def _event(
    snapshot: PoolSnapshot,
    name: str,
    status: Literal["opened", "closed"],
    reason: str,
    remedy: str,
    now: datetime,
) -> PoolCondition:
    return PoolCondition(
        id=f"{name}-{snapshot.record.name}-{status}-{snapshot.revision}",
        time=now,
        pool=snapshot.record.name,
        condition=name,
        status=status,
        reason=reason,
        remedy=remedy,
    )
