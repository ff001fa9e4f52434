"""Applies what a node's agent says of conditions to its health. Pure.

A begin and an end are events, and every sample lists what holds; whichever is heard first decides,
and what is older than what is known changes nothing. A condition degrades its node until it ends,
and no timer ends it, but for one that began often within the hour: it counts until that is over.
"""

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList, HeldCondition, begin_id
from schemas.node_events import ConditionEnded, Fault
from services.health_monitor.rules.delayed_conditions import due
from services.health_monitor.rules.health_policy import STICKY_SECONDS
from services.health_monitor.rules.health_state import held_key, with_working, working_of
from services.health_monitor.rules.node_health import (
    CAUSE_CHARS_MAX,
    Decision,
    Effect,
    Trigger,
    applied,
    decide_review,
    decide_settled,
)

FLAPS: Final = 3
"""Begins within FLAP_SECONDS after which a condition counts as held."""
FLAP_SECONDS: Final = 3600.0
AFTER: Final = timedelta(milliseconds=1)
"""What is judged again because of a message comes after it."""

Judge = Callable[[HealthRecord, Fault, Trigger], Decision]
"""Judges a fault of a node by the policy, and applies it."""


def decide_begun(record: HealthRecord, fault: Fault, seen: Trigger, judge: Judge) -> Decision:
    """Apply the begin of a condition, unless more is known by now."""
    known = record.conditions
    if known is not None and fault.counter <= known.counter:
        return record, ()
    same = known is not None and known.boot_id == fault.boot_id
    record = record if same else _without_other_boots(record, fault.boot_id)
    others = _without(known.held if known and same else (), fault.condition, fault.gpu_index)
    listed = ConditionList(
        boot_id=fault.boot_id, counter=fault.counter, held=(*others, _held_of(fault))
    )
    return judge(_begun(_with(record, listed), fault, seen), fault, seen)


def decide_ended(record: HealthRecord, event: ConditionEnded, seen: Trigger) -> Decision:
    """Apply the end of a condition: what it degraded is over at once; unhealthy remains."""
    known = record.conditions
    if known is None or event.counter <= known.counter or event.boot_id != known.boot_id:
        return record, ()
    held = _without(known.held, event.condition, event.gpu_index)
    listed = msgspec.structs.replace(known, counter=event.counter, held=held)
    keys = {held_key(event.condition, event.gpu_index)}
    return _ended(_with(record, listed), keys, seen)


def decide_listed(
    record: HealthRecord, listed: ConditionList | None, seen: Trigger, judge: Judge
) -> Decision | None:
    """Apply the list of a sample; None: it is of another boot, or older than what is known."""
    known = record.conditions
    if listed is None:
        return _unlisted(record, seen)
    work = working_of(record)
    if listed.boot_id in work.refused or (work.boot and listed.boot_id != work.boot):
        return None
    if known is not None and listed.counter < known.counter:
        return None
    before = {_key(each): each for each in _holding(known)}
    now = {_key(each): each for each in _holding(listed)}
    record = _with(record, listed)
    effects: tuple[Effect, ...] = ()
    if not listed.left_out and (over := before.keys() - now.keys()):
        record, effects = _ended(record, over, seen)
    for key in now.keys() - before.keys():
        fault = fault_of(record, listed.boot_id, now[key], seen, "")
        if known is None and applied(record, _of_fault(fault, seen)):
            # An agent of an earlier release ran meanwhile: what it had a timer for is held again.
            fault = fault_of(record, listed.boot_id, now[key], seen, seen.id)
        record, more = judge(_begun(record, fault, seen), fault, _of_fault(fault, seen))
        effects = (*effects, *more)
    return record, effects


def decide_again(
    record: HealthRecord, seen: Trigger, judge: Judge, only: Collection[str] | None = None
) -> Decision:
    """Judge what holds again: the node was uncordoned, or the policy is another.

    `only`: these conditions.
    """
    effects: tuple[Effect, ...] = ()
    for held in _holding(record.conditions):
        if only is not None and _key(held) not in only:
            continue
        assert record.conditions is not None
        fault = fault_of(record, record.conditions.boot_id, held, seen, seen.id)
        record, more = judge(record, fault, _of_fault(fault, seen))
        effects = (*effects, *more)
    return record, effects


def decide_reviewed(record: HealthRecord, seen: Trigger, judge: Judge) -> Decision:
    """Apply a timer: what has been held for its delay counts, and what has worn off does not."""
    only = due(working_of(record), seen.now.timestamp())
    record, effects = decide_again(record, seen, judge, only)
    record, more = decide_review(record, seen)
    return record, (*effects, *more)


def fault_of(
    record: HealthRecord, boot_id: str, held: HeldCondition, seen: Trigger, again: str
) -> Fault:
    """Return the fault of a condition's begin; `again`: why it is judged once more."""
    begun = begin_id(record.pool, record.node, boot_id, held)
    return Fault(
        id=f"{begun}.{again}"[:CAUSE_CHARS_MAX] if again else begun,
        time=seen.now,
        cause=begun if again else "",
        pool=record.pool,
        node=record.node,
        kind=held.kind,
        code=held.code,
        subcode=held.subcode,
        gpu_index=held.gpu,
        message=held.message,
        metrics=held.metrics,
        source="nvml",
        boot_id=boot_id,
        condition=held.name,
        counter=held.counter,
        since=datetime.fromtimestamp(held.since, UTC),
    )


def _of_fault(fault: Fault, seen: Trigger) -> Trigger:
    return Trigger(fault.id, 0, seen.now + AFTER)


def _held_of(fault: Fault) -> HeldCondition:
    since = fault.since or fault.time
    return HeldCondition(
        name=fault.condition,
        gpu=fault.gpu_index,
        since=since.timestamp(),
        counter=fault.counter,
        kind=fault.kind,
        code=fault.code,
        subcode=fault.subcode,
        message=fault.message,
        metrics=fault.metrics,
    )


def _holding(listed: ConditionList | None) -> tuple[HeldCondition, ...]:
    return tuple(each for each in listed.held if not each.unknown) if listed is not None else ()


def _key(held: HeldCondition) -> str:
    return held_key(held.name, held.gpu)


def _without(held: tuple[HeldCondition, ...], name: str, gpu: int) -> tuple[HeldCondition, ...]:
    return tuple(each for each in held if (each.name, each.gpu) != (name, gpu))


def _with(record: HealthRecord, listed: ConditionList | None) -> HealthRecord:
    return msgspec.structs.replace(record, conditions=listed)


def _begun(record: HealthRecord, fault: Fault, seen: Trigger) -> HealthRecord:
    """Count a begin."""
    work, key = working_of(record), held_key(fault.condition, fault.gpu_index)
    now = seen.now.timestamp()
    times = (*(at for at in work.begins.get(key, ()) if at > now - FLAP_SECONDS), now)[-FLAPS:]
    begins = {k: each for k, each in work.begins.items() if each[-1] > now - FLAP_SECONDS}
    return with_working(record, msgspec.structs.replace(work, begins=begins | {key: times}))


def _without_other_boots(record: HealthRecord, boot_id: str) -> HealthRecord:
    """Drop what conditions of other boots degraded: a begin may come after its boot has ended."""
    work = working_of(record)
    left = {
        subject: each
        for subject, each in work.conditions.items()
        if each.cordon or not each.held or each.boot == boot_id
    }
    return with_working(record, msgspec.structs.replace(work, conditions=left))


def _ended(record: HealthRecord, keys: set[str], seen: Trigger) -> Decision:
    """End what conditions degraded; what has begun too often stays for the rest of its hour."""
    work, left = working_of(record), {}
    now = seen.now.timestamp()
    for subject, each in work.conditions.items():
        if each.held not in keys or each.cordon:
            left[subject] = each
            continue
        times = work.begins.get(each.held, ())
        if len(times) >= FLAPS and times[0] > now - FLAP_SECONDS:
            left[subject] = msgspec.structs.replace(each, until=times[0] + FLAP_SECONDS, held="")
    work = msgspec.structs.replace(work, conditions=left)
    return decide_settled(record, work, seen)


def _unlisted(record: HealthRecord, seen: Trigger) -> Decision:
    """Apply a sample of an agent of an earlier release: what held wears off, as its faults do."""
    if record.conditions is None:
        return record, ()
    work, until = working_of(record), seen.now.timestamp() + STICKY_SECONDS
    conditions = {
        subject: msgspec.structs.replace(each, until=until, held="") if each.held else each
        for subject, each in work.conditions.items()
    }
    work = msgspec.structs.replace(work, conditions=conditions)
    return decide_settled(_with(record, None), work, seen)
