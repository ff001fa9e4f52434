"""Whether a recommendation is followed: within the bounds, and apart by the cooldown. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from schemas.pool_events import Scaled
from schemas.records import PoolRecord
from services.pool_manager.autoscaling.autoscaler import Recommendation


@dataclass(frozen=True, slots=True)
class Change:
    """The record with its new size, and the fact that tells of it."""

    record: PoolRecord
    event: Scaled


def decide(
    record: PoolRecord, revision: int, recommended: Recommendation, kind: str, now: datetime
) -> Change | None:
    """Follow a recommendation of the autoscaler `kind`; None: nothing changes now."""
    spec = record.spec
    target = min(max(recommended.target_nodes, spec.min_nodes), spec.max_nodes)
    if target == record.desired or spec.mode == "observe" or resting(record, now):
        return None
    bound = ""
    if target != recommended.target_nodes:
        bound = f" (it asks for {recommended.target_nodes}; {spec.min_nodes} to {spec.max_nodes})"
    event = Scaled(
        # Of the decisions on one revision one at most is written, and only that one is told.
        id=f"autoscaled-{record.name}-{revision}",
        time=now,
        pool=record.name,
        was=record.desired,
        nodes=target,
        reason=f"autoscaler {kind}: {recommended.reason}{bound}",
    )
    return Change(msgspec.structs.replace(record, desired=target, scaled_at=now), event)


def resting(record: PoolRecord, now: datetime) -> bool:
    """Whether the last change of size is too recent, whoever made it."""
    since = record.scaled_at
    return since is not None and now - since < timedelta(seconds=record.spec.cooldown)
