"""Follows a recommendation or not: within the bounds, and apart by the cooldown. Pure.

What is not followed is with_advice in the pool's record, where `navarch why` and `status` find it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.autoscaling_advice import AutoscalingAdvice, LimitedBy
from schemas.pool_events import Scaled
from schemas.pool_records import PoolRecord
from services.pool_manager.autoscaling.autoscalers import Recommendation
from services.settings.pool_differences import size_within
from services.settings.provider_choices import whole_racks

DETAIL_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class SizeChange:
    """The new size is in the pool's record and in the event."""

    record: PoolRecord
    event: Scaled


def decide(
    record: PoolRecord, revision: int, recommended: Recommendation, kind: str, now: datetime
) -> SizeChange | None:
    """Follow a recommendation of the autoscaler `kind`; None: nothing changes now."""
    spec = record.spec
    target = size_within(spec, recommended.target_nodes)
    if target == record.desired or spec.mode == "observe" or resting(record, now):
        return None
    bound = ""
    if target != whole_racks(spec, recommended.target_nodes):
        bound = f" (it asks for {recommended.target_nodes}; {spec.min_nodes} to {spec.max_nodes})"
    event = Scaled(
        # Of the decisions on one revision one at most is written, and only that one is published.
        id=f"autoscaled-{record.name}-{revision}",
        time=now,
        pool=record.name,
        previous=record.desired,
        nodes=target,
        reason=f"autoscaler {kind}: {recommended.reason}{bound}",
    )
    gangs = recommended.gangs if spec.placement.required else ()
    changed = msgspec.structs.replace(
        record, desired=target, scaled_at=now, advice=None, gangs=gangs
    )
    return SizeChange(changed, event)


def resting(record: PoolRecord, now: datetime) -> bool:
    """Return whether the last change of size, by an operator or an autoscaler, is too recent."""
    since = record.scaled_at
    return since is not None and now - since < timedelta(seconds=record.spec.cooldown)


def unfollowed(
    record: PoolRecord, recommended: Recommendation, kind: str, now: datetime, again_seconds: float
) -> AutoscalingAdvice | None:
    """Return what keeps a recommendation from being followed; None: the pool has its size."""
    spec, asked = record.spec, whole_racks(record.spec, recommended.target_nodes)
    target = size_within(spec, asked)
    kept: LimitedBy
    if asked == record.desired:
        return None
    if spec.mode == "observe":
        kept = "observe"
    else:
        kept = "limits" if target == record.desired else "cooldown"
    until = None
    if kept == "cooldown" and record.scaled_at is not None:
        until = record.scaled_at + timedelta(seconds=spec.cooldown)
    bound = ""
    if target != asked:
        name, limit = ("max_nodes", spec.max_nodes) if asked > target else ("min_nodes", target)
        bound = f"{name} is {limit}"
    return AutoscalingAdvice(
        autoscaler=kind,
        limited_by=kept,
        since=now,
        nodes=asked,
        reason=recommended.reason[:DETAIL_CHARS_MAX],
        detail=bound,
        until=until,
        again_seconds=again_seconds,
    )


def unanswered(
    kept: LimitedBy, kind: str, problem: str, now: datetime, again_seconds: float
) -> AutoscalingAdvice:
    """Return that the wanted size is unknown: the autoscaler failed, or its source is silent."""
    detail = problem[:DETAIL_CHARS_MAX]
    return AutoscalingAdvice(
        autoscaler=kind, limited_by=kept, since=now, detail=detail, again_seconds=again_seconds
    )


def with_advice(record: PoolRecord, advice: AutoscalingAdvice | None) -> PoolRecord | None:
    """The record with what is not followed; None: it says so already."""
    was = record.advice
    if was is None and advice is None:
        return None
    if was is not None and advice is not None:
        if (was.autoscaler, was.limited_by) == (advice.autoscaler, advice.limited_by):
            advice = msgspec.structs.replace(advice, since=was.since)
        if msgspec.structs.replace(advice, reason=was.reason) == was:
            return None  # its reason may name another figure each time
    return msgspec.structs.replace(record, advice=advice)
