"""Keeps a condition from counting until it has held for its rule's `delay`. Pure.

A node's record remembers since when a delayed condition is held, by the server's clock, until it
ends: neither a restart nor another policy begins its time again.
"""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from schemas.duration import format_duration
from schemas.health_records import HealthRecord
from schemas.node_events import Fault
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import Delay, Working, held_key


def delayed(
    work: Working, fault: Fault, judged: Judgement, now: float
) -> tuple[Judgement, Working]:
    """Return what counts of a judgement now, and the state that remembers what counts later."""
    if not fault.condition:
        return judged, work
    key = held_key(fault.condition, fault.gpu_index)
    if not judged.delay_seconds:
        left = {each: delay for each, delay in work.delays.items() if each != key}
        return judged, msgspec.structs.replace(work, delays=left)
    known = work.delays.get(key)
    since = known.since if known else now - held_seconds(fault)
    until = since + judged.delay_seconds
    waits = until > now
    delays = work.delays | {key: Delay(since=since, until=until if waits else 0.0)}
    work = msgspec.structs.replace(work, delays=delays)
    return (waiting(judged, until) if waits else judged), work


def waiting(judged: Judgement, until: float) -> Judgement:
    """Return the judgement of a condition that does not count before `until`, in epoch seconds."""
    at = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    delay = format_duration(judged.delay_seconds)
    return replace(
        judged,
        result="healthy",
        action="none",
        fatal=False,
        cancels=(),
        description=f"{judged.description or judged.rule}; counts from {at} on (delay {delay})",
    )


def held_seconds(fault: Fault) -> float:
    """Return for how long a condition was seen when its fault was made."""
    return 0.0 if fault.since is None else max((fault.time - fault.since).total_seconds(), 0.0)


def still_listed(record: HealthRecord, work: Working) -> Working:
    """Forget the delays of conditions that hold no longer."""
    if not work.delays:
        return work
    listed = record.conditions.held if record.conditions is not None else ()
    holds = {held_key(each.name, each.gpu) for each in listed if not each.unknown}
    left = {key: each for key, each in work.delays.items() if key in holds}
    return msgspec.structs.replace(work, delays=left)


def due(work: Working, now: float) -> frozenset[str]:
    """Return the conditions whose delay is over and that are to be judged again."""
    return frozenset(key for key, each in work.delays.items() if 0 < each.until <= now)
