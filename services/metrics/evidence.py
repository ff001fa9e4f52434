"""What of a node's story belongs into its evidence, and within which bounds. Pure.

The same story gives the same bundle, whoever puts it together and however often.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from schemas import evidence as e
from schemas import node_events as n
from schemas import pool_events as p
from schemas import sagas as s
from schemas import subjects
from schemas.messages import Invalid, Message, UnknownType, encode
from schemas.node_events import node_codec
from schemas.pool_events import pool_codec
from schemas.records import HealthRecord, InstanceRecord, NodeRecord
from schemas.sagas import saga_codec
from schemas.topology import EVENTS, SAGAS
from services.metrics.outages import Outage, outages
from services.runtime.bus import Stored

T = TypeVar("T")
HOUR_SECONDS: Final = 3600.0
KERNEL: Final = "kmsg"
MENDED: Final[Mapping[str, e.Outcome]] = {"reset-gpu": "reset", "reboot": "rebooted"}
"""Kind of saga -> how it ended the sickness of a node that stayed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the buckets and the streams hold of a node now."""

    pool: str
    node: str
    record: NodeRecord | None = None
    health: HealthRecord | None = None
    instance: InstanceRecord | None = None
    samples: tuple[n.Telemetry, ...] = ()
    story: tuple[Stored, ...] = ()
    """Its events, its pool's about it, and the entries of its sagas."""


def read(stored: Stored) -> Message | UnknownType | Invalid:
    """Read an event or a saga's entry, whichever its subject says it is."""
    if subjects.parse_saga(stored.subject):
        return saga_codec.decode(stored.data)
    if subjects.parse_pool_event(stored.subject):
        return pool_codec.decode(stored.data)
    return node_codec.decode(stored.data)


def in_order(story: Iterable[Stored]) -> list[tuple[Stored, Message]]:
    """What can be read of a story, by the moment of storing."""
    found = ((each, read(each)) for each in sorted(story, key=lambda one: one.time))
    return [(each, message) for each, message in found if isinstance(message, Message)]


# --- the capture ---------------------------------------------------------------------------------


def capture(known: Known, old: e.EvidenceCapture | None, now: datetime) -> e.EvidenceCapture:
    """What is to be kept before it is gone, together with what was kept of the same trouble."""
    current = _last_outage(known, open_only=True)
    moment = current.moment if current else now
    kept = old.samples if old else ()
    same = old is not None and abs((old.moment - moment).total_seconds()) <= e.AROUND_SECONDS
    return e.EvidenceCapture(
        pool=known.pool,
        node=known.node,
        captured_at=now,
        moment=moment,
        sickness=current.sickness if current else "",
        sick_at=current.since if current else None,
        record=known.record or (old.record if old and same else None),
        health=known.health or (old.health if old and same else None),
        instance=known.instance or (old.instance if old and same else None),
        samples=around(moment, (*kept, *known.samples))[0],
    )


def recovered(known: Known, kept: e.EvidenceCapture) -> e.EvidenceCapture | None:
    """The capture of a node that is well again by itself; None: it is not."""
    if kept.outcome != "open" or _last_outage(known, open_only=True) is not None:
        return None
    return msgspec.structs.replace(kept, outcome="recovered")


def capture_labels(made: e.EvidenceCapture) -> Mapping[str, str]:
    """What a list shows of a capture without opening it."""
    return {
        "pool": made.pool,
        "node": made.node,
        "outcome": made.outcome,
        "sickness": made.sickness,
        "sick_at": made.sick_at.isoformat() if made.sick_at else "",
    }


def around(moment: datetime, samples: Iterable[n.Telemetry]) -> tuple[tuple[n.Telemetry, ...], int]:
    """The samples nearest to a moment, each once and in order, and how many were left out."""
    reach = timedelta(seconds=e.AROUND_SECONDS)
    each_once = {sample.id: sample for sample in samples}.values()
    near = sorted(
        (one for one in each_once if moment - reach <= one.time <= moment + reach),
        key=lambda one: (one.time, one.sequence),
    )
    before = [one for one in near if one.time <= moment]
    after = [one for one in near if one.time > moment]
    chosen = (*before[-e.SAMPLES_BEFORE_MAX :], *after[: e.SAMPLES_AFTER_MAX])
    kept, _ = bounded(chosen, len(chosen), encode)
    return kept, len(near) - len(kept)


def _outages(known: Known) -> tuple[Outage, ...]:
    return outages(
        (each.time, message)
        for each, message in in_order(known.story)
        if isinstance(message, n.NodeEvent) and message.node == known.node
    )


def _last_outage(known: Known, *, open_only: bool = False) -> Outage | None:
    found = _outages(known)
    if not found or (open_only and found[-1].ended_at is not None):
        return None
    return found[-1]


# --- the bundle ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How a time out of service ended."""

    outage: Outage
    outcome: e.Outcome
    saga: str = ""
    new_node: str = ""
    back_at: datetime | None = None


def ending(known: Known, trigger: Message, at: datetime) -> Ending | None:
    """What a fact, stored at a moment, ended of a node; None: nothing, or not yet all of it."""
    messages = in_order(known.story)
    match trigger:
        case p.NodeReplaced(saga=saga, new_node=new):
            outage = _last_outage(known)
            admitted = [
                each.time
                for each, message in messages
                if isinstance(message, s.StepSucceeded)
                and (message.saga, message.step) == (saga, "admit")
            ]
            back = min(admitted, default=at)
            found = outage or Outage(since=at, moment=at)
            return Ending(found, "replaced", saga, new, max(back, found.since))
        case n.Uncordoned(id=id_, saga=saga):
            closed = _closed_by(known, id_)
            outcome = MENDED.get(_kind(messages, saga), "uncordoned")
            return Ending(closed, outcome, saga, "", at) if closed else None
        case n.Terminated(id=id_, saga=saga):
            closed = _closed_by(known, id_)
            replacing = _kind(messages, saga) == "replace"
            # The replacement is still to come, or fails: either is told by a fact of its own.
            return Ending(closed, "removed", saga, "", at) if closed and not replacing else None
        case p.SagaFailed(saga=saga) | p.SagaCancelled(saga=saga):
            gone = f"terminated-{saga}"
            closed = _closed_by(known, gone)
            return Ending(closed, "removed", saga, "", at) if closed else None
        case _:
            return None


def _kind(messages: Iterable[tuple[Stored, Message]], saga: str) -> str:
    """What kind of saga it is; empty: its log is not there."""
    started = (message for _, message in messages if isinstance(message, s.SagaStarted))
    return next((each.kind for each in started if each.saga == saga), "")


def _closed_by(known: Known, event: str) -> Outage | None:
    return next((each for each in _outages(known) if each.end == event), None)


def still_open(known: Known) -> Ending | None:
    """A sickness that has not ended: what is known of it up to now; None: there is none."""
    outage = _last_outage(known, open_only=True)
    return Ending(outage, "open") if outage else None


def by_itself(kept: e.EvidenceCapture) -> Ending:
    """A sickness that went away before anything was done."""
    return Ending(Outage(since=kept.sick_at or kept.moment, moment=kept.moment), "recovered")


def keeps(found: Ending) -> bool:
    """Whether evidence is kept: not of what somebody only cordoned and uncordoned by hand."""
    return found.outcome == "replaced" or found.outage.sickness != e.BY_HAND


def bundle(known: Known, kept: e.EvidenceCapture | None, found: Ending) -> e.EvidenceBundle:
    """Put the whole story of one sickness together."""
    near = kept is not None and (
        abs((kept.moment - found.outage.moment).total_seconds()) <= e.AROUND_SECONDS
    )
    old = kept if near else None
    record = known.record or (old.record if old else None)
    instance = known.instance or (old.instance if old else None)
    messages = in_order(known.story)
    faults, lost_faults = _faults(messages, known, old)
    lines, lost_lines = bounded(_kernel_lines(faults), e.KERNEL_LINES_MAX, msgspec.json.encode)
    both = (*(old.samples if old else ()), *known.samples)
    samples, lost_samples = around(found.outage.moment, both)
    entries = _timeline(known.story, found.outage.since)
    timeline, lost_entries = bounded(entries, e.TIMELINE_MAX, msgspec.json.encode)
    left_out = {
        "faults": lost_faults,
        "kernel_lines": lost_lines,
        "samples": lost_samples,
        "timeline": lost_entries,
    }
    gpus = _gpus(record, messages, known.node)
    count = _gpu_count(record, instance, gpus)
    seconds = 0.0
    if found.back_at is not None:
        seconds = max(0.0, (found.back_at - found.outage.since).total_seconds())
    return e.EvidenceBundle(
        pool=known.pool,
        node=known.node,
        saga=found.saga,
        outcome=found.outcome,
        new_node=found.new_node,
        sickness=found.outage.sickness,
        sick_at=found.outage.since,
        back_at=found.back_at,
        verdict=found.outage.verdict or found.outage.suspicion,
        gpu_count=count,
        gpus=gpus,
        lost_gpu_hours=round(seconds * count / HOUR_SECONDS, 6),
        faults=faults,
        kernel_lines=lines,
        samples=samples,
        checks=tuple(
            message
            for _, message in messages
            if isinstance(message, n.BootChecked) and message.node == known.node
        ),
        timeline=timeline,
        left_out={part: count for part, count in left_out.items() if count},
        **_identity(record, instance),
    )


def _identity(record: NodeRecord | None, instance: InstanceRecord | None) -> dict[str, Any]:
    """Which machine it is, as far as anybody said."""
    found: dict[str, Any] = {}
    if record is not None:
        names = ("hostname", "address", "region", "zone", "boot_id", "driver_version")
        found |= {name: getattr(record, name) for name in (*names, "agent_version")}
        if record.launch is not None:
            found |= {"provider": record.launch.provider}
            found |= {"instance_type": record.launch.instance_type}
    if instance is not None:
        found |= {
            "provider": instance.provider,
            "provider_id": instance.provider_id,
            "instance_type": instance.launch.instance_type,
            "running_at": instance.running_at,
            "terminated_at": instance.terminated_at,
            "dollars_per_hour": instance.dollars_per_hour,
        }
        for name in ("region", "zone", "address"):
            found[name] = found.get(name) or getattr(instance, name)
    return found


def _gpus(
    record: NodeRecord | None, messages: Sequence[tuple[Stored, Message]], node: str
) -> tuple[n.GpuIdentity, ...]:
    """All GPUs that the node ever showed: one that fell off is missing from what it shows later."""
    found: dict[str, n.GpuIdentity] = {}
    for _, message in messages:
        if isinstance(message, n.Registered) and message.node == node:
            found |= {gpu.uuid or str(gpu.index): gpu for gpu in message.gpus}
    if not found and record is not None:
        return record.gpus
    return tuple(sorted(found.values(), key=lambda gpu: (gpu.index, gpu.uuid)))


def _gpu_count(
    record: NodeRecord | None, instance: InstanceRecord | None, gpus: Sequence[n.GpuIdentity]
) -> int:
    """What was promised is what is lost, whatever of it was still visible."""
    for launch in (record and record.launch, instance and instance.launch):
        if launch and launch.gpu_count:
            return launch.gpu_count
    return len(gpus)


def _faults(
    messages: Sequence[tuple[Stored, Message]], known: Known, old: e.EvidenceCapture | None
) -> tuple[tuple[e.JudgedFault, ...], int]:
    """Every fault that the node told of, with what was made of it."""
    records = (old.health if old else None, known.health)
    notes = {note.id: note for record in records if record for note in record.recent}
    found = []
    for stored, fault in messages:
        if not isinstance(fault, n.Fault) or fault.node != known.node:
            continue
        judged = e.JudgedFault(fault=fault, stored_at=stored.time)
        if note := notes.get(fault.id):
            judged = msgspec.structs.replace(
                judged, result=note.result, action=note.action, rule=note.rule
            )
        found.append(judged)
    return bounded(found, e.FAULTS_MAX, msgspec.json.encode)


def _kernel_lines(faults: Iterable[e.JudgedFault]) -> list[e.KernelLine]:
    """The driver's own words, as the faults carry them."""
    return [
        e.KernelLine(
            time=each.fault.time,
            boot_id=each.fault.boot_id,
            sequence=each.fault.sequence,
            line=each.fault.message,
        )
        for each in faults
        if each.fault.source == KERNEL and each.fault.message
    ]


def _timeline(story: Iterable[Stored], sick_at: datetime) -> list[e.TimelineEntry]:
    """Every stored message, those that cannot be read included."""
    return [
        e.TimelineEntry(
            time=each.time,
            since_ms=round((each.time - sick_at).total_seconds() * 1000, 3),
            stream=SAGAS.name if subjects.parse_saga(each.subject) else EVENTS.name,
            subject=each.subject,
            sequence=each.sequence,
            message=_plain(each.data),
        )
        for each in sorted(story, key=lambda one: one.time)
    ]


def _plain(data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"unreadable": data[:200].decode("utf-8", "replace")}
    return found


def bounded(items: Sequence[T], count_max: int, size: Any) -> tuple[tuple[T, ...], int]:
    """The first and the last of a list within both bounds, and how many that leaves out.

    `size` writes one item; all of them together may have PART_BYTES_MAX bytes.
    """
    kept = list(items)
    if len(kept) > count_max:
        half = count_max // 2
        kept = [*kept[:half], *kept[len(kept) - (count_max - half) :]]
    sizes = [len(size(each)) for each in kept]
    total = sum(sizes)
    while total > e.PART_BYTES_MAX:
        middle = len(kept) // 2
        total -= sizes.pop(middle)
        kept.pop(middle)
    return tuple(kept), len(items) - len(kept)


def labels(found: e.EvidenceBundle) -> Mapping[str, str]:
    """What a list of bundles shows without opening them."""
    return {
        "pool": found.pool,
        "node": found.node,
        "saga": found.saga,
        "outcome": found.outcome,
        "new_node": found.new_node,
        "sickness": found.sickness,
        "sick_at": found.sick_at.isoformat(),
        "back_at": found.back_at.isoformat() if found.back_at else "",
        "provider_id": found.provider_id,
        "gpus": str(found.gpu_count),
        "lost_gpu_hours": f"{found.lost_gpu_hours:.6f}",
        "rule": found.verdict.rule if found.verdict else "",
    }
