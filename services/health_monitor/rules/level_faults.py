"""Decides what a level that lasted, or is over, changes in a record, and the fault for it. Pure.

Comes after `levels`, which sees the samples, and before the policy, which judges the fault as it
judges an agent's. Each spell is reported once.
"""

from datetime import datetime

import msgspec

from schemas.health_records import HealthRecord
from schemas.node_events import Fault, Metric
from services.health_monitor.rules.health_state import (
    TELEMETRY_SOURCE,
    Working,
    with_working,
    working_of,
)
from services.health_monitor.rules.telemetry_levels import Crossing


def record_crossing(
    record: HealthRecord, crossing: Crossing, now: datetime
) -> tuple[HealthRecord, Fault | None]:
    """Note a crossing in the node's record; return the fault to publish, None where it is known.

    The record lists the reported spells, so that of two replicas that see the same one only
    one reports it; the fault's ID comes from the node and the spell's first moment.
    """
    work = working_of(record)
    since = work.levels.get(crossing.key)
    if crossing.over == (since is None):
        return record, None
    levels = {key: each for key, each in work.levels.items() if key != crossing.key}
    if not crossing.over:
        levels[crossing.key] = since = crossing.since
    assert since is not None
    after = with_working(record, msgspec.structs.replace(work, levels=levels))
    return after, _fault(record, work, crossing, since, now)


def _fault(
    record: HealthRecord, work: Working, crossing: Crossing, since: float, now: datetime
) -> Fault:
    level, begun = crossing.level, _id(record, work, crossing, since)
    metrics: dict[str, Metric] = {level.reading: crossing.value}
    if crossing.temperature is not None:
        metrics["temperature"] = crossing.temperature
    metrics["seconds"] = round(crossing.at - since, 1)
    metrics |= {"over": True} if crossing.over else {}
    what = f"{level.reading} {crossing.value:g}"
    return Fault(
        id=f"{begun}-over" if crossing.over else begun,
        time=now,
        cause=begun if crossing.over else "",
        pool=record.pool,
        node=record.node,
        kind=level.kind,
        subcode=level.name,
        gpu_index=crossing.gpu_index,
        gpu_uuid=crossing.gpu_uuid,
        message=(
            f"{what}: no longer {level.bound()}"
            if crossing.over
            else f"{what} {level.bound()} for {metrics['seconds']:g} s"
        ),
        metrics=metrics,
        source=TELEMETRY_SOURCE,
        boot_id=work.boot,
    )


def _id(record: HealthRecord, work: Working, crossing: Crossing, since: float) -> str:
    """`restarts` counts how often the record forgot: then the same spell is reported once more."""
    return (
        f"level-{record.pool}.{record.node}-{level_token(crossing.level.name)}"
        f"-{crossing.gpu_index}-{since * 1000:.0f}-{work.restarts}"
    )


def level_token(name: str) -> str:
    """Return a level's name in the form that it has as a part of an id."""
    return "".join(char if char.isalnum() or char == "-" else "-" for char in name.lower())


def is_over(fault: Fault) -> bool:
    """Return whether a fault reports the end of a level: it is not judged, it cancels."""
    return fault.source == TELEMETRY_SOURCE and fault.metrics.get("over") is True
