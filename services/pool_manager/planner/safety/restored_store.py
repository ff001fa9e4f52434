"""Finds what a store restored from a backup has forgotten while the fleet went on. Pure.

Agents repeat in their heartbeats what they last read in their nodes' records; that a backup cannot
set back.
"""

from datetime import datetime

import msgspec

from schemas.names import saga_number
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.pool_events import BreakerOpened
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.disruption_budget import (
    Allowance,
    Rate,
    allowance,
    with_begun,
)
from services.pool_manager.planner.event_outbox import pending_events
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.breaker import restored

REASON = (
    "the store was restored from a backup, so verdicts may be outdated and what began since is not "
    "counted. Compare `navarch list` with the nodes, adopt orphans (`navarch leaked`), uncordon "
    "what was repaired since, then: navarch breaker close {pool} --reason TEXT"
)


def is_behind(record: NodeRecord | None, beat: HeartbeatRecord) -> bool:
    """Return whether a node's agent has read more in the node's record than it has now."""
    if beat.admitted_at is None or (record is not None and record.state == "terminated"):
        return False
    if record is None or record.admitted_at is None:
        return True
    return record.admitted_at == beat.admitted_at and record.sagas < beat.sagas


def has_ended_since(saga: str, record: NodeRecord | None, beat: HeartbeatRecord | None) -> bool:
    """Return whether a node's agent has read that a saga ended whose log has it open."""
    if record is None or beat is None or record.admitted_at != beat.admitted_at:
        return False
    return 0 < saga_number(saga) <= beat.sagas


def held(snapshot: PoolSnapshot, now: datetime) -> PoolRecord:
    """Open the breaker until an operator closes it, and use up what may begin within the window."""
    record = snapshot.record
    if record.breaker.state == "open" and record.breaker.cause == "restored":
        return record
    allowed = allowance(record, snapshot.nodes, snapshot.others, now)
    reason = REASON.format(pool=record.name)
    event = BreakerOpened(
        id=f"breaker-{record.name}-restored-{now.timestamp():.0f}",
        time=now,
        pool=record.name,
        unavailable=allowed.unavailable,
        limit=allowed.level,
        reason=reason,
        breaker_cause="restored",
    )
    opened = msgspec.structs.replace(record, breaker=restored(record.breaker, reason, now))
    return pending_events(_used_up(opened, allowed, snapshot.fleet_window, now), [event])


def _used_up(
    record: PoolRecord, allowed: Allowance, fleet_window: float, now: datetime
) -> PoolRecord:
    """As many sagas begun as may be: those that began since the backup are not known."""
    begun: dict[Rate, tuple[int | None, int]] = {
        "disruptions": (allowed.rate, allowed.disruptions),
        "resets": (allowed.reset_rate, allowed.resets),
        "voluntary": (allowed.voluntary_rate, allowed.voluntary),
    }
    for name, (most, known) in begun.items():
        if most is not None:
            record = with_begun(record, fleet_window, now, (name,) * max(most - known, 0))
    return record
