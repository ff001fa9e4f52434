"""What a node's health remembers of a fault, and how its reason reads. Pure."""

from typing import Any, Final

from schemas.node_events import Fault, Uncordoned
from schemas.records import FaultNote, HealthRecord, is_after
from services.health_monitor.policy import Judgement

RECENT_MAX: Final = 32
NOTE_CHARS_MAX: Final = 300


def noted(record: HealthRecord, fault: Fault, judged: Judgement) -> tuple[FaultNote, ...]:
    """The faults that a record remembers, with this one."""
    note = FaultNote(
        id=fault.id,
        time=fault.time,
        kind=fault.kind,
        code=fault.code,
        gpu_index=fault.gpu_index,
        message=fault.message[:NOTE_CHARS_MAX],
        metrics=fault.metrics,
        result=judged.result,
        action=judged.action,
        rule=judged.rule,
        boot_id=fault.boot_id,
    )
    return (*record.recent, note)[-RECENT_MAX:]


def reason_of(fault: Fault, judged: Judgement) -> str:
    """One sentence for people: `XID 79: the GPU fell off the bus (GPU 3)`."""
    name = {"xid": "XID", "sxid": "SXID"}.get(fault.kind, fault.kind.replace("_", " "))
    head = f"{name} {fault.code}" if fault.code else name
    what = judged.description or fault.message[:NOTE_CHARS_MAX] or judged.rule
    where = f" (GPU {fault.gpu_index})" if fault.gpu_index >= 0 else ""
    times = f", {judged.counted} times" if judged.counted > 1 else ""
    return f"{head}: {what}{where}{times}"


def again_after(record: HealthRecord, event: Uncordoned) -> dict[str, Any] | None:
    """What a node that was mended has reported since, as its health says it; None: nothing."""
    for note in reversed(record.recent):
        if note.result == "unhealthy" and is_after(note, event.since, event.boot_id):
            name = f"{note.kind} {note.code}" if note.code else note.kind
            return {
                "action": note.action,
                "rule": note.rule,
                "reason": f"{name} again after it was mended: {note.message}",
                "fault": note.id,
                "kind": note.kind,
                "code": note.code,
                "gpu_index": note.gpu_index,
            }
    return None
