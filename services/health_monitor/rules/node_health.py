"""Decides what a node's health is: a record and a fact go in, a record and effects come out.

The second station of every fault's way: after the agent has seen it and the policy has judged it,
before the pool-manager hears the verdict. Unhealthy is sticky: only an uncordon or the end of the
node lifts it. Degraded is made of conditions, one per kind, code and GPU, each of which wears off,
is cancelled or ends with the boot, by itself: no fault touches another's time. Nothing here may
read a clock, the bus or a file; `now` is the stored time of the message that is decided on.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.enums import Action, HealthStatus
from schemas.health_records import HealthRecord
from schemas.held_conditions import ConditionList
from schemas.machine_identity import OTHERS_MAX
from schemas.node_events import (
    Fault,
    MachineRefused,
    Registered,
    Uncordoned,
    Verdict,
)
from services.health_monitor.rules.cordoned_gpus import CORDON_SECONDS, cordon_gpus, is_gpu_cordon
from services.health_monitor.rules.delayed_conditions import delayed, still_listed
from services.health_monitor.rules.fault_history import (
    clearing_of,
    is_cleared,
    noted,
    reason_of,
    since,
    unhealthy_fields,
    unhealthy_gpus,
)
from services.health_monitor.rules.gpu_health import (
    ACTION_RANK,
    rank,
    with_conditions,
    with_unhealthy,
)
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import (
    HELD_UNTIL,
    TELEMETRY_SOURCE,
    Condition,
    Streak,
    Working,
    aged,
    cancelled,
    held_key,
    newest,
    next_review,
    restarted,
    subject_of,
    with_working,
    working_of,
)

SEQUENCES_MAX: Final = 256
"""As many messages of one node as a killed replica may leave to be delivered again."""
WINDOWS_MAX: Final = 128
CAUSE_CHARS_MAX: Final = 400
"""Of a cause's ID in the ID of its verdict, which has a limit of its own."""
LEVEL_SECONDS_MAX: Final = 86_400.0
"""A level whose end was not reported wears off after so long."""


@dataclass(frozen=True, slots=True)
class PublishVerdict:
    """Publish the node's new health."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class ReviewAt:
    """Look at this node again, when its first condition wears off."""

    at: datetime


Effect = PublishVerdict | ReviewAt
Decision = tuple[HealthRecord, tuple[Effect, ...]]


@dataclass(frozen=True, slots=True)
class Trigger:
    """Names the message that is decided on, and when it was stored."""

    id: str
    sequence: int
    """Its place in EVENTS; 0 for what comes from elsewhere, such as a timer."""
    now: datetime


def applied(record: HealthRecord, seen: Trigger) -> bool:
    """Return whether this message has been applied to the record before."""
    return seen.sequence in record.detail.get("sequences", ()) or any(
        note.id == seen.id for note in record.recent
    )


def decide_fault(
    record: HealthRecord,
    fault: Fault,
    judged: Judgement,
    seen: Trigger,
    *,
    unhealthy_after: int = 1,
    cordons_gpus: bool = False,
) -> Decision:
    """Apply one judged fault; `cordons_gpus`: whether single GPUs of the pool are cordoned."""
    if applied(record, seen):
        return record, ()
    now = seen.now.timestamp()
    judged, before = delayed(working_of(record), fault, judged, now)
    known = msgspec.structs.replace(record, recent=noted(record, fault, judged, seen.now))
    if is_cleared(known.recent[-1], before.clearing):
        # A replica that died unsaved may have published a verdict that the uncordon did not see.
        return _close(known, before, seen, _verdict(known, known, before, seen))
    work = cancelled(aged(before, now), fault, judged)
    subject = subject_of(fault)
    streaks = dict(work.streaks)
    result, action = judged.result, judged.action
    reason = reason_of(fault, judged)
    if result == "unhealthy" and not judged.fatal and record.status != "unhealthy":
        earlier = streaks.get(subject, Streak(count=0, last=now))
        streaks[subject] = Streak(count=earlier.count + 1, last=now)
        total = sum(each.count for each in streaks.values())
        if total < unhealthy_after:
            result, action = "degraded", "none"
            reason = f"{reason}; {total} of {unhealthy_after} unhealthy results"
    cordon = cordons_gpus and result == "unhealthy" and is_gpu_cordon(record, work, fault, judged)
    if cordon:
        result, reason = "degraded", f"{reason}; GPU {fault.gpu_index} alone gets no new work"
    conditions = dict(work.conditions)
    lasts = subject in conditions and conditions[subject].cordon
    if fault.condition and result != "degraded" and not lasts:
        # What holds was rated otherwise before.
        conditions.pop(subject, None)
    if result == "degraded" and (cordon or not lasts):
        conditions[subject] = _condition(fault, judged, action, reason, now, cordon=cordon)
    work = msgspec.structs.replace(
        work,
        streaks=newest(streaks, lambda each: each.last),
        conditions=newest(conditions, lambda each: each.until),
        windows=dict(list(judged.windows.items())[-WINDOWS_MAX:]),
    )
    if result == "unhealthy":
        if record.status == "unhealthy" and _decides_less(record, judged, action):
            known = (
                known if judged.drill else with_unhealthy(known, fault, judged, reason, seen.now)
            )
            return _close(known, work, seen, ())
        known = msgspec.structs.replace(known, gpus=()) if record.drill else known
        known = with_unhealthy(known, fault, judged, reason, seen.now)
        changed = msgspec.structs.replace(
            _changed(known, "unhealthy", seen),
            action=action,
            rule=judged.rule,
            policy=judged.policy,
            reason=reason,
            fault=fault.id,
            kind=fault.kind,
            code=fault.code,
            gpu_index=fault.gpu_index,
            job=fault.job,
            drill=judged.drill,
        )
        return _close(changed, work, seen, _verdict(record, changed, work, seen))
    return _settle(known, work, seen, judged.policy)


def decide_over(record: HealthRecord, fault: Fault, seen: Trigger) -> Decision:
    """Apply the end of a level, or of failed boot checks; unhealthy remains."""
    ended = subject_of(fault)
    if applied(record, seen) or ended not in working_of(record).conditions:
        return record, ()
    work = aged(working_of(record), seen.now.timestamp())
    left = {key: each for key, each in work.conditions.items() if key != ended or each.cordon}
    return _settle(record, msgspec.structs.replace(work, conditions=left), seen, record.policy)


def decide_settled(record: HealthRecord, work: Working, seen: Trigger) -> Decision:
    """Apply what has changed among the conditions."""
    work = aged(work, seen.now.timestamp())
    return _settle(record, work, seen, record.policy)


def decide_registered(record: HealthRecord, event: Registered, seen: Trigger) -> Decision:
    """Apply an agent's first word: unknown becomes healthy; unhealthy is not lifted by it."""
    if applied(record, seen):
        return record, ()
    work = aged(working_of(record), seen.now.timestamp())
    if work.boot and event.boot_id != work.boot:
        # What degraded the node was of the old boot; a fault that lasts is reported again.
        # What the new boot's kernel log held before the agent registered stays.
        new = {
            key: each
            for key, each in work.conditions.items()
            if each.cordon or each.boot == event.boot_id
        }
        work = msgspec.structs.replace(restarted(work), conditions=new)
        record = _of_boot(record, event.boot_id)
    work = msgspec.structs.replace(
        work, instance=event.instance, boot=event.boot_id, registered=event.id
    )
    if record.status == "unknown":
        record = msgspec.structs.replace(record, reason="registered")
        if not work.conditions:
            healthy = _changed(record, "healthy", seen)
            return _close(healthy, work, seen, _verdict(record, healthy, work, seen))
    return _settle(record, work, seen, record.policy)


def decide_machine_refused(record: HealthRecord, event: MachineRefused, seen: Trigger) -> Decision:
    """Take the node's own machine for the one to judge: what the refused one reported is over."""
    if applied(record, seen):
        return record, ()
    work, boot = aged(working_of(record), seen.now.timestamp()), event.refused.boot_id
    left = {key: each for key, each in work.conditions.items() if each.boot != boot}
    record = _of_boot(record, event.machine.boot_id)
    refused = (*(each for each in work.refused if each != boot), boot)[-OTHERS_MAX:]
    work = msgspec.structs.replace(
        work,
        refused=refused,
        conditions=left,
        boot=event.machine.boot_id,
        gpus=event.machine.gpus,
    )
    return _settle(record, work, seen, record.policy)


def decide_uncordoned(record: HealthRecord, event: Uncordoned, seen: Trigger) -> Decision:
    """Apply an uncordon: an operator clears the node, so its health starts again.

    Not for what it has reported since: the uncordon takes its time, and where the node was reset or
    rebooted what came after that counts.
    """
    if applied(record, seen):
        return record, ()
    clearing = clearing_of(event, seen.now)
    later = since(record, clearing)
    before = msgspec.structs.replace(working_of(record), clearing=clearing)
    known = {note.id for note in later}
    remaining = {key: each for key, each in before.conditions.items() if each.fault in known}
    work = msgspec.structs.replace(restarted(before), conditions=remaining)
    unhealthy = next((note for note in reversed(later) if note.result == "unhealthy"), None)
    if unhealthy is not None:
        changed = _changed(record, "unhealthy", seen)
        changed = msgspec.structs.replace(
            changed, gpus=unhealthy_gpus(later, seen.now), **unhealthy_fields(unhealthy, event)
        )
        return _close(changed, work, seen, _verdict(record, changed, work, seen))
    if record.status in ("healthy", "unknown"):
        return _close(record, work, seen, ())
    worst = max(remaining.values(), key=rank, default=None)
    if worst is not None:
        changed = _pointing_at(_changed(record, "degraded", seen), worst, record.policy)
    else:
        changed = msgspec.structs.replace(
            _changed(record, "healthy", seen), reason=event.reason or "uncordoned"
        )
    return _close(changed, work, seen, _verdict(record, changed, work, seen))


def _of_boot(record: HealthRecord, boot_id: str) -> HealthRecord:
    """Drop the conditions of another boot."""
    listed = record.conditions
    if listed is None or listed.boot_id == boot_id:
        return record
    empty = ConditionList(boot_id=boot_id, counter=0)
    return msgspec.structs.replace(record, conditions=empty)


def decide_review(record: HealthRecord, seen: Trigger) -> Decision:
    """Apply a timer: what has worn off by now no longer counts."""
    work = msgspec.structs.replace(aged(working_of(record), seen.now.timestamp()), review=0.0)
    return _settle(record, work, seen, record.policy)


def verdict_of(
    health: HealthRecord,
    *,
    identity: str,
    at: datetime,
    cause: str,
    previous: HealthStatus,
    instance: str,
) -> Verdict:
    """The event that says what a record does; `identity`: its ID."""
    return Verdict(
        id=identity,
        time=at,
        cause=cause,
        pool=health.pool,
        node=health.node,
        status=health.status,
        action=health.action,
        rule=health.rule,
        policy=health.policy,
        reason=health.reason,
        gpu_index=health.gpu_index,
        fault=health.fault,
        kind=health.kind,
        code=health.code,
        job=health.job,
        previous=previous,
        instance=instance,
        cordon_gpus=health.cordon_gpus,
        drill=health.drill,
    )


# --- parts ----------------------------------------------------------------------------------------


def _decides_less(record: HealthRecord, judged: Judgement, action: Action) -> bool:
    """Return whether an unhealthy node's verdict stays: a real fault takes a drill's place."""
    if record.drill or judged.drill:
        return bool(judged.drill)
    return ACTION_RANK[action] <= ACTION_RANK[record.action]


def _condition(
    fault: Fault, judged: Judgement, action: Action, reason: str, now: float, *, cordon: bool
) -> Condition:
    """What a fault degrades a node by; a level does until its end is reported."""
    lasts = LEVEL_SECONDS_MAX if fault.source == TELEMETRY_SOURCE else judged.sticky_seconds
    until = HELD_UNTIL if fault.condition else now + lasts
    return Condition(
        action=action,
        rule=judged.rule,
        reason=reason,
        fault=fault.id,
        kind=fault.kind,
        code=fault.code,
        gpu_index=fault.gpu_index,
        cordon=cordon,
        boot=fault.boot_id,
        job=fault.job,
        held=held_key(fault.condition, fault.gpu_index) if fault.condition else "",
        until=now + CORDON_SECONDS if cordon else until,
        drill=judged.drill,
    )


def _settle(record: HealthRecord, work: Working, seen: Trigger, policy: str) -> Decision:
    """Make the status what the conditions say, unless it is unhealthy or unknown."""
    if record.status == "unhealthy" or (record.status == "unknown" and not work.conditions):
        return _close(record, work, seen, ())
    worst = max(work.conditions.values(), key=rank, default=None)
    if worst is None:
        if record.status == "healthy":
            return _close(record, work, seen, ())
        changed = _changed(record, "healthy", seen)
        changed = msgspec.structs.replace(changed, reason="what degraded it is over")
    elif _says_the_same(record, worst, work):
        if all(each.fault != record.fault for each in work.conditions.values()):
            record = _pointing_at(record, worst, policy)
        return _close(record, work, seen, ())
    else:
        changed = _pointing_at(_changed(record, "degraded", seen), worst, policy)
    return _close(changed, work, seen, _verdict(record, changed, work, seen))


def _says_the_same(record: HealthRecord, worst: Condition, work: Working) -> bool:
    """Whether the last verdict still holds of a degraded node."""
    same = record.status == "degraded" and worst.action == record.action
    return same and record.cordon_gpus == cordon_gpus(work)


def _pointing_at(record: HealthRecord, condition: Condition, policy: str) -> HealthRecord:
    return msgspec.structs.replace(
        record,
        action=condition.action,
        rule=condition.rule,
        policy=policy,
        reason=condition.reason,
        fault=condition.fault,
        kind=condition.kind,
        code=condition.code,
        gpu_index=condition.gpu_index,
        job=condition.job,
        drill=condition.drill,
    )


def _changed(record: HealthRecord, status: HealthStatus, seen: Trigger) -> HealthRecord:
    """A new status, with nothing said yet about why."""
    return msgspec.structs.replace(
        record,
        status=status,
        action="none",
        rule="",
        fault="",
        kind="",
        code=0,
        gpu_index=-1,
        job="",
        drill="",
        since=seen.now,
    )


def _verdict(
    before: HealthRecord, after: HealthRecord, work: Working, seen: Trigger
) -> tuple[PublishVerdict]:
    verdict = verdict_of(
        msgspec.structs.replace(after, cordon_gpus=cordon_gpus(work)),
        # Handled again after later messages it may have another outcome: another fact.
        identity=f"verdict-{seen.id[-CAUSE_CHARS_MAX:]}-{after.status}-{after.action}",
        at=seen.now,
        cause=seen.id,
        previous=before.status,
        instance=work.instance or after.node,
    )
    return (PublishVerdict(verdict),)


def _close(
    record: HealthRecord, work: Working, seen: Trigger, effects: tuple[Effect, ...]
) -> Decision:
    """Write the working state back; set the timer of what first wears off or begins to count."""
    record = with_conditions(record, work, seen.now)
    record = msgspec.structs.replace(record, cordon_gpus=cordon_gpus(work))
    work = still_listed(record, work)
    first = next_review(work)
    if first and not 0 < work.review <= first:
        at = seen.now + timedelta(seconds=max(first - seen.now.timestamp(), 0.0))
        effects = (*effects, ReviewAt(at))
        work = msgspec.structs.replace(work, review=first)
    if seen.sequence:
        kept = (*work.sequences, seen.sequence)[-SEQUENCES_MAX:]
        work = msgspec.structs.replace(work, sequences=kept)
    return with_working(record, work), effects
