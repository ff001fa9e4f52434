"""What of a node's story belongs into its evidence, and within which bounds. Pure.

The same story gives the same bundle, whoever puts it together and however often.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from schemas import evidence_bundles as e
from schemas import node_events as n
from schemas import subjects
from schemas.instance_records import InstanceRecord
from schemas.messages import Message, encode
from schemas.node_records import NodeRecord
from schemas.topology import EVENTS, SAGAS
from services.bus.port import Stored
from services.metrics.evidence.node_history import Known, in_order, last_outage
from services.metrics.evidence.outage_endings import Ending

T = TypeVar("T")
HOUR_SECONDS: Final = 3600.0
KERNEL: Final = "kmsg"


# --- the capture ---------------------------------------------------------------------------------


def capture(known: Known, old: e.EvidenceCapture | None, now: datetime) -> e.EvidenceCapture:
    """What is to be kept before it is gone, together with what was kept of the same trouble."""
    current = last_outage(known, open_only=True)
    moment = current.moment if current else now
    kept = old.samples if old else ()
    same = old is not None and abs((old.moment - moment).total_seconds()) <= e.AROUND_SECONDS
    return e.EvidenceCapture(
        pool=known.pool,
        node=known.node,
        captured_at=now,
        moment=moment,
        fault_signature=current.fault_signature if current else "",
        unhealthy_at=current.since if current else None,
        record=known.record or (old.record if old and same else None),
        health=known.health or (old.health if old and same else None),
        instance=known.instance or (old.instance if old and same else None),
        samples=around(moment, (*kept, *known.samples))[0],
    )


def recovered(known: Known, kept: e.EvidenceCapture) -> e.EvidenceCapture | None:
    """The capture of a node that is well again by itself; None: it is not."""
    if kept.outcome != "open" or last_outage(known, open_only=True) is not None:
        return None
    return msgspec.structs.replace(kept, outcome="recovered")


def capture_labels(made: e.EvidenceCapture) -> Mapping[str, str]:
    """What a list shows of a capture without opening it."""
    return {
        "pool": made.pool,
        "node": made.node,
        "outcome": made.outcome,
        "fault_signature": made.fault_signature,
        "unhealthy_at": made.unhealthy_at.isoformat() if made.unhealthy_at else "",
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


# --- the bundle ----------------------------------------------------------------------------------


def bundle(known: Known, kept: e.EvidenceCapture | None, found: Ending) -> e.EvidenceBundle:
    """Put the whole story of one fault signature together."""
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
    omitted = {
        "faults": lost_faults,
        "kernel_lines": lost_lines,
        "samples": lost_samples,
        "timeline": lost_entries,
    }
    gpus = _gpus(record, messages, known.node)
    count = _gpu_count(record, instance, gpus)
    seconds = 0.0
    if found.restored_at is not None:
        seconds = max(0.0, (found.restored_at - found.outage.since).total_seconds())
    return e.EvidenceBundle(
        pool=known.pool,
        node=known.node,
        saga=found.saga,
        outcome=found.outcome,
        new_node=found.new_node,
        fault_signature=found.outage.fault_signature,
        unhealthy_at=found.outage.since,
        restored_at=found.restored_at,
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
        omitted={part: count for part, count in omitted.items() if count},
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
) -> tuple[tuple[e.EvaluatedFault, ...], int]:
    """Every fault that the node told of, with what was made of it."""
    records = (old.health if old else None, known.health)
    notes = {note.id: note for record in records if record for note in record.recent}
    # It is told before the record with the notes is written, so it may be all there is.
    verdicts = {m.fault: m for _, m in messages if isinstance(m, n.Verdict) and m.fault}
    found = []
    for stored, fault in messages:
        if not isinstance(fault, n.Fault) or fault.node != known.node:
            continue
        judged = e.EvaluatedFault(fault=fault, stored_at=stored.time)
        if note := notes.get(fault.id):
            judged = msgspec.structs.replace(
                judged, result=note.result, action=note.action, rule=note.rule
            )
        elif verdict := verdicts.get(fault.id):
            judged = msgspec.structs.replace(
                judged, result=verdict.status, action=verdict.action, rule=verdict.rule
            )
        found.append(judged)
    return bounded(found, e.FAULTS_MAX, msgspec.json.encode)


def _kernel_lines(faults: Iterable[e.EvaluatedFault]) -> list[e.KernelLine]:
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


def _timeline(story: Iterable[Stored], unhealthy_at: datetime) -> list[e.TimelineEntry]:
    """Every stored message, those that cannot be read included."""
    return [
        e.TimelineEntry(
            time=each.time,
            since_ms=round((each.time - unhealthy_at).total_seconds() * 1000, 3),
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
        "fault_signature": found.fault_signature,
        "unhealthy_at": found.unhealthy_at.isoformat(),
        "restored_at": found.restored_at.isoformat() if found.restored_at else "",
        "provider_id": found.provider_id,
        "gpus": str(found.gpu_count),
        "lost_gpu_hours": f"{found.lost_gpu_hours:.6f}",
        "rule": found.verdict.rule if found.verdict else "",
    }
