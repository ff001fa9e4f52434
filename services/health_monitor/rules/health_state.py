"""A node's working state, as `HealthRecord.detail` holds it, and events not published yet.

Pure values and what time and cancelling do to them; `core` decides what follows.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

import msgspec

from schemas.enums import Action, DrillReach, FaultKind
from schemas.health_records import HealthRecord
from schemas.messages import encode
from schemas.node_events import Fault, Lost, Returned, node_codec
from services.health_monitor.rules.health_policy import Judgement

CONDITIONS_MAX: Final = 64
STREAK_SECONDS: Final = 86_400.0
"""Unhealthy results further apart than this are not consecutive."""

HELD_UNTIL: Final = 4_102_444_800.0
"""What holds does not wear off."""
BOOT_CHECK: Final = "boot-check"
"""`system` of the faults that failed boot checks are."""
TELEMETRY_SOURCE: Final = "telemetry"
"""`source` of the faults that report levels in telemetry."""

T = TypeVar("T")
WatchEvent = Lost | Returned | Fault
WatchDecision = tuple[HealthRecord, WatchEvent | None]
"""The record as it becomes, and the event to publish of it."""


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A condition is one reason, of perhaps many, why a node is degraded."""

    action: Action
    rule: str
    reason: str
    fault: str
    kind: FaultKind | Literal[""] = ""
    code: int = 0
    gpu_index: int
    cordon: bool = False
    """The GPU gets no new work. Like what is unhealthy it lasts until a repair or an uncordon."""
    boot: str = ""
    job: str = ""
    held: str = ""
    """The condition of the agent, and its GPU, that must end before this does."""
    until: float
    """Epoch seconds at which it wears off."""
    drill: DrillReach = ""


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """A delay says how long a condition is held before it counts, by the rule that was in force."""

    since: float
    """Epoch seconds from which it is held."""
    until: float
    """Epoch seconds at which it counts; 0: it counts."""


class Streak(msgspec.Struct, frozen=True, kw_only=True):
    """Unhealthy results that were not enough yet."""

    count: int
    last: float


class Clearing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last uncordon: which of the faults stored before it count still, as the event says."""

    stored: datetime
    since: datetime | None = None
    boot_id: str = ""
    cleared_at: datetime | None = None


class Working(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Holds a node's working state, which `HealthRecord.detail` stores."""

    instance: str = ""
    boot: str = ""
    registered: str = ""
    """Id of the last registration."""
    refused: tuple[str, ...] = ()
    """Boots of other machines that use the node's ID: what they report does not count."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the machine's GPUs, as it has registered."""
    sequences: tuple[int, ...] = ()
    """Stream sequences of the last messages applied."""
    conditions: dict[str, Condition] = {}
    streaks: dict[str, Streak] = {}
    windows: dict[str, tuple[float, ...]] = {}
    review: float = 0.0
    """Epoch seconds of the timer that is set; 0: none."""
    begins: dict[str, tuple[float, ...]] = {}
    """Condition and GPU -> when it began within the last hour."""
    delays: dict[str, Delay] = {}
    """Condition and GPU -> its delay, of the conditions that have one."""
    levels: dict[str, float] = {}
    """Level and GPU -> since when, of the levels in telemetry that were reported and last."""
    silence: int = 0
    """Epoch milliseconds at which the last silence began: its end is named after it."""
    restarts: int = 0
    """How often the node's health began again: what lasts is then reported again."""
    clearing: Clearing | None = None
    outbox: tuple[dict[str, Any], ...] = ()
    """Events decided with this record that may not have been published yet."""


def working_of(record: HealthRecord) -> Working:
    """Read a record's working state; what this release cannot read is discarded."""
    try:
        return msgspec.convert(record.detail, Working)
    except msgspec.ValidationError:
        return Working()


def with_working(record: HealthRecord, work: Working) -> HealthRecord:
    """Return a record that keeps this working state."""
    return msgspec.structs.replace(record, detail=msgspec.to_builtins(work))


def aged(work: Working, now: float) -> Working:
    """Drop what has worn off."""
    conditions = {k: each for k, each in work.conditions.items() if each.until > now}
    streaks = {k: each for k, each in work.streaks.items() if each.last > now - STREAK_SECONDS}
    return msgspec.structs.replace(work, conditions=conditions, streaks=streaks)


def next_review(work: Working) -> float:
    """Return when something wears off or begins to count, in epoch seconds; 0: nothing does."""
    ends = [each.until for each in work.conditions.values() if not (each.cordon or each.held)]
    ends += [each.until for each in work.delays.values() if each.until]
    return min(ends, default=0.0)


def subject_of(fault: Fault) -> str:
    """Return what a fault is about: each kind, code and GPU has its own time; so has each level.

    Failed boot checks have theirs as well, because they are over once a boot passes them.
    """
    level = f":{fault.subcode}" if fault.source == TELEMETRY_SOURCE else ""
    level = f":{BOOT_CHECK}" if fault.system == BOOT_CHECK else level
    level = f":{fault.condition}" if fault.condition else level
    return f"{fault.kind}:{fault.code}:{fault.gpu_index}{level}"


def held_key(condition: str, gpu_index: int) -> str:
    """Return the name of one condition of one GPU."""
    return f"{condition}/{gpu_index}"


def restarted(work: Working) -> Working:
    """A node was cleared or booted: nothing earlier counts; what lasts is reported again."""
    return msgspec.structs.replace(
        work, conditions={}, streaks={}, windows={}, levels={}, restarts=work.restarts + 1
    )


def cancelled(work: Working, fault: Fault, judged: Judgement) -> Working:
    """Drop what the rule says is over, on the same GPU (or on all, for a fault of the node)."""
    if not judged.cancels:
        return work

    def over(subject: str) -> bool:
        kind, code, gpu, *_ = subject.split(":")
        same_gpu = fault.gpu_index in (-1, int(gpu))
        return same_gpu and (
            kind in judged.cancels or (kind == fault.kind and int(code) in judged.cancels)
        )

    return msgspec.structs.replace(
        work,
        conditions={k: c for k, c in work.conditions.items() if c.cordon or c.held or not over(k)},
        streaks={k: each for k, each in work.streaks.items() if not over(k)},
    )


def newest(entries: dict[str, T], age: Callable[[T], float]) -> dict[str, T]:
    """Keep the newest, within the bound."""
    if len(entries) <= CONDITIONS_MAX:
        return entries
    kept = sorted(entries, key=lambda each: age(entries[each]))[-CONDITIONS_MAX:]
    return {key: entries[key] for key in kept}


def keep(record: HealthRecord) -> WatchDecision:
    """Decide nothing new: only what waits in the outbox is published."""
    return record, None


def with_event(record: HealthRecord, event: WatchEvent) -> HealthRecord:
    """The record with one more event to publish.

    Heartbeats and samples are not delivered again as messages are: a marker is overwritten by the
    next heartbeat. So what a watch decides on them is saved with the record first and published
    then; after a crash in between the next holder of the lease publishes it.
    """
    raw = msgspec.json.decode(encode(event))
    return _with_outbox(record, (*working_of(record).outbox, raw))


def without_events(record: HealthRecord) -> HealthRecord:
    """The record once its events are published."""
    return _with_outbox(record, ())


def unpublished(record: HealthRecord) -> tuple[WatchEvent, ...]:
    """The events to publish, in order; those that this release does not know are skipped."""
    found = (node_codec.decode(msgspec.json.encode(raw)) for raw in working_of(record).outbox)
    return tuple(each for each in found if isinstance(each, WatchEvent))


def _with_outbox(record: HealthRecord, outbox: tuple[dict[str, object], ...]) -> HealthRecord:
    return with_working(record, msgspec.structs.replace(working_of(record), outbox=outbox))
