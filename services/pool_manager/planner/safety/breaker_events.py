"""Publishes that the breaker opened, half-opened or closed. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from schemas.breaker_state import Breaker
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerClosed, BreakerHalfOpened, BreakerOpened, PoolEvent
from schemas.pool_records import PoolRecord
from services.pool_manager.planner.disruption_budget import Allowance

WAITING_NAMED_MAX: Final = 50
"""Nodes that a breaker event names; it has their number as well."""


def breaker_events(
    before: Breaker,
    record: PoolRecord,
    allowed: Allowance,
    waiting: Sequence[NodeRecord],
    revision: int,
    now: datetime,
) -> tuple[PoolEvent, ...]:
    """The one change of the breaker's state since `before`, if there was any.

    `waiting`: the nodes that are not remediated for now; `revision`: of the record that was read.
    """
    after, name = record.breaker, record.name
    if after.state == before.state:
        return ()
    count = len(waiting)
    match after.state:
        case "open":
            waits = f"{count} unhealthy nodes wait: " if count else ""
            return (
                BreakerOpened(
                    id=f"breaker-opened-{name}-{revision}",
                    time=now,
                    pool=name,
                    unavailable=allowed.unavailable,
                    limit=allowed.level,
                    waiting=tuple(node.node for node in waiting[:WAITING_NAMED_MAX]),
                    reason=f"{waits}{after.reason}",
                    breaker_cause=after.cause,
                    disruptions=allowed.disruptions,
                    disruptions_limit=-1 if allowed.rate is None else allowed.rate,
                ),
            )
        case "half-open":
            return (
                BreakerHalfOpened(
                    id=f"breaker-half-opened-{name}-{revision}",
                    time=now,
                    pool=name,
                    saga=after.probe,
                    node=record.open[after.probe].node,
                    breaker_cause=after.cause,
                    reason="what opened it is over; if this repair succeeds, others follow",
                ),
            )
        case "closed":
            return (
                BreakerClosed(
                    id=f"breaker-closed-{name}-{revision}",
                    time=now,
                    pool=name,
                    unavailable=allowed.unavailable,
                    limit=allowed.level,
                    breaker_cause=after.cause,
                    reason=after.reason,
                ),
            )
