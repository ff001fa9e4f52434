"""Decides which faults a node's health remembers, and of which machine they are. Pure."""

from datetime import datetime
from typing import Any, Final, cast

import msgspec

from schemas.enums import FaultKind
from schemas.health_records import GpuHealth, HealthRecord, RecordedFault, is_after
from schemas.node_events import BootChecked, Fault, Registered, Uncordoned
from services.health_monitor.rules.health_policy import Judgement
from services.health_monitor.rules.health_state import (
    BOOT_CHECK,
    Clearing,
    with_working,
    working_of,
)

GPUS_MAX: Final = 32
"""UUIDs that are remembered of a machine: a list may lack some."""
RECENT_MAX: Final = 32
NOTE_CHARS_MAX: Final = 300


def of_machine(record: HealthRecord, event: Registered, sequence: int) -> HealthRecord:
    """The record with the machine that registers; what an earlier one had does not count for it.

    Others may give a name again before the end of its earlier node is known, and where NODES was
    lost that end is never published. GPUs keep their UUIDs over resets, reboots and repairs, so a
    machine with none of the known ones is another; so is a host all of whose GPUs were exchanged at
    once. One without any names no machine.

    What has been judged of the new boot already is kept, as is a verdict that it led to.
    `sequence`: of the event; one that comes after later ones says nothing new.
    """
    work = working_of(record)
    gpus = tuple(each.uuid for each in event.gpus if each.uuid)
    if not gpus or sequence <= max(work.sequences, default=-1):
        return record
    if not work.gpus or {*gpus} & {*work.gpus}:
        known = tuple(dict.fromkeys((*gpus, *work.gpus)))[:GPUS_MAX]
        if known == work.gpus:
            return record
        return with_working(record, msgspec.structs.replace(work, gpus=known))
    own = tuple(each for each in record.recent if each.boot_id == event.boot_id)
    forgotten = len(own) == len(record.recent) == RECENT_MAX
    if forgotten or any(each.result == "unhealthy" for each in own):
        return record
    conditions = {k: each for k, each in work.conditions.items() if each.boot == event.boot_id}
    work = msgspec.structs.replace(work, gpus=gpus, conditions=conditions)
    blank = HealthRecord(pool=record.pool, node=record.node, lost=record.lost, recent=own)
    return with_working(blank, work)


def noted(
    record: HealthRecord, fault: Fault, judged: Judgement, seen_at: datetime
) -> tuple[RecordedFault, ...]:
    """The faults that a record remembers, with this one."""
    note = RecordedFault(
        id=fault.id,
        time=fault.time,
        seen_at=seen_at,
        kind=fault.kind,
        code=fault.code,
        gpu_index=fault.gpu_index,
        message=fault.message[:NOTE_CHARS_MAX],
        metrics=fault.metrics,
        result=judged.result,
        action=judged.action,
        rule=judged.rule,
        boot_id=fault.boot_id,
        drill=judged.drill,
    )
    return (*record.recent, note)[-RECENT_MAX:]


def reason_of(fault: Fault, judged: Judgement) -> str:
    """Return one sentence for people: `XID 79: the GPU fell off the bus (GPU 3)`."""
    name = {"xid": "XID", "sxid": "SXID"}.get(fault.kind, fault.kind.replace("_", " "))
    head = f"{name} {fault.code}" if fault.code else name
    head = f"drill: {head}" if judged.drill else head
    what = judged.description or fault.message[:NOTE_CHARS_MAX] or judged.rule
    where = f" (GPU {fault.gpu_index})" if fault.gpu_index >= 0 else ""
    times = f", {judged.counted} times" if judged.counted > 1 else ""
    return f"{head}: {what}{where}{times}"


def fault_of_boot(event: BootChecked) -> Fault:
    """Return what failed boot checks are to the policy, or what passed ones end."""
    failed = [f"{check.name}: {check.detail}" for check in event.checks if not check.ok]
    return Fault(
        id=event.id,
        time=event.time,
        cause=event.cause,
        pool=event.pool,
        node=event.node,
        kind="diagnostic",
        system=BOOT_CHECK,
        message="; ".join(failed) or "a boot check failed",
        source="host",
        boot_id=event.boot_id,
    )


def clearing_of(event: Uncordoned, stored: datetime) -> Clearing:
    """Return what an uncordon clears."""
    return Clearing(
        stored=stored, since=event.since, boot_id=event.boot_id, cleared_at=event.cleared_at
    )


def since(record: HealthRecord, clearing: Clearing) -> tuple[RecordedFault, ...]:
    """Return what a node has reported since its repair or an operator's clearing, oldest first."""
    return tuple(note for note in record.recent if _counts(note, clearing))


def is_cleared(note: RecordedFault, clearing: Clearing | None) -> bool:
    """Return whether the last uncordon cleared a fault that is handled, perhaps again, after it."""
    return (
        clearing is not None
        and note.seen_at is not None
        and note.seen_at <= clearing.stored
        and not _counts(note, clearing)
    )


def _counts(note: RecordedFault, clearing: Clearing) -> bool:
    later = clearing.cleared_at and note.seen_at and note.seen_at > clearing.cleared_at
    return bool(later) or is_after(note, clearing.since, clearing.boot_id)


def unhealthy_fields(note: RecordedFault, event: Uncordoned) -> dict[str, Any]:
    """Return the record's fields for a node that a fault since its uncordon makes unhealthy."""
    name = f"{note.kind} {note.code}" if note.code else note.kind
    when = "since its uncordon was requested" if event.cleared_at else "again after it was repaired"
    return {
        "action": note.action,
        "rule": note.rule,
        "reason": f"{'drill: ' if note.drill else ''}{name} {when}: {note.message}",
        "fault": note.id,
        "kind": note.kind,
        "code": note.code,
        "gpu_index": note.gpu_index,
        "drill": note.drill,
    }


def unhealthy_gpus(notes: tuple[RecordedFault, ...], now: datetime) -> tuple[GpuHealth, ...]:
    """Return, for each GPU that these faults make unhealthy, its health by the last such fault."""
    last = {each.gpu_index: each for each in notes if each.result == "unhealthy"}
    return tuple(
        GpuHealth(
            index=index,
            status="unhealthy",
            action=note.action,
            rule=note.rule,
            reason=note.message,
            fault=note.id,
            kind=cast("FaultKind", note.kind),
            code=note.code,
            since=now,
        )
        for index, note in sorted(last.items())
        if index >= 0
    )
