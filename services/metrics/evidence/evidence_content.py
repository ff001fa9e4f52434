"""The evidence of an outage, assembled from a node's history within bounds. Pure.

The same history always gives the same bundle, on every replica.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from services.metrics.evidence.outages import Ending, NodeHistory

T = TypeVar("T")
HOUR_SECONDS: Final = 3600.0
KERNEL_LOG: Final = "kmsg"


def capture(
    history: NodeHistory, old: e.EvidenceCapture | None, now: datetime
) -> e.EvidenceCapture:
    """Return what would soon expire, with what an earlier capture has of the same outage."""
    outage = history.open_outage()
    moment = outage.moment if outage else now
    samples = (*(old.samples if old else ()), *history.samples)
    old = _if_near(old, moment)
    return e.EvidenceCapture(
        pool=history.pool,
        node=history.node,
        captured_at=now,
        moment=moment,
        fault_signature=outage.fault_signature if outage else "",
        unhealthy_at=outage.since if outage else None,
        record=history.record or (old.record if old else None),
        health=history.health or (old.health if old else None),
        instance=history.instance or (old.instance if old else None),
        samples=samples_around(moment, samples)[0],
    )


def _if_near(capture: e.EvidenceCapture | None, moment: datetime) -> e.EvidenceCapture | None:
    """The capture, if it is about the outage whose cause was observed at `moment`."""
    near = capture and abs((capture.moment - moment).total_seconds()) <= e.AROUND_SECONDS
    return capture if near else None


def recovered_capture(history: NodeHistory, capture: e.EvidenceCapture) -> e.EvidenceCapture | None:
    """The capture of a node that recovered without a remediation; None if it has not."""
    if capture.outcome != "open" or history.open_outage() is not None:
        return None
    return msgspec.structs.replace(capture, outcome="recovered")


def capture_metadata(capture: e.EvidenceCapture) -> Mapping[str, str]:
    """The metadata that lists show without reading the object."""
    return {
        "pool": capture.pool,
        "node": capture.node,
        "outcome": capture.outcome,
        "fault_signature": capture.fault_signature,
        "unhealthy_at": capture.unhealthy_at.isoformat() if capture.unhealthy_at else "",
    }


def samples_around(
    moment: datetime, samples: Iterable[n.Telemetry]
) -> tuple[tuple[n.Telemetry, ...], int]:
    """The samples nearest to a moment, each once and in order, and how many were omitted."""
    reach = timedelta(seconds=e.AROUND_SECONDS)
    distinct = {sample.id: sample for sample in samples}.values()
    near = sorted(
        (one for one in distinct if moment - reach <= one.time <= moment + reach),
        key=lambda one: (one.time, one.sequence),
    )
    before = [one for one in near if one.time <= moment]
    after = [one for one in near if one.time > moment]
    chosen = (*before[-e.SAMPLES_BEFORE_MAX :], *after[: e.SAMPLES_AFTER_MAX])
    kept, _ = limit_items(chosen, len(chosen), encode)
    return kept, len(near) - len(kept)


def bundle(
    history: NodeHistory, capture: e.EvidenceCapture | None, ending: Ending
) -> e.EvidenceBundle:
    """Return the complete evidence of one outage."""
    old = _if_near(capture, ending.outage.moment)
    record = history.record or (old.record if old else None)
    instance = history.instance or (old.instance if old else None)
    messages = history.messages()
    faults, omitted_faults = _faults(messages, history, old)
    lines, omitted_lines = limit_items(
        _kernel_lines(faults), e.KERNEL_LINES_MAX, msgspec.json.encode
    )
    samples, omitted_samples = samples_around(
        ending.outage.moment, (*(old.samples if old else ()), *history.samples)
    )
    timeline, omitted_entries = limit_items(
        _timeline(history.stored, ending.outage.since), e.TIMELINE_MAX, msgspec.json.encode
    )
    omitted = {
        "faults": omitted_faults,
        "kernel_lines": omitted_lines,
        "samples": omitted_samples,
        "timeline": omitted_entries,
    }
    gpus = _gpus(record, messages, history.node)
    count = _gpu_count(record, instance, gpus)
    seconds = 0.0
    if ending.restored_at is not None:
        seconds = max(0.0, (ending.restored_at - ending.outage.since).total_seconds())
    return e.EvidenceBundle(
        pool=history.pool,
        node=history.node,
        saga=ending.saga,
        outcome=ending.outcome,
        new_node=ending.new_node,
        fault_signature=ending.outage.fault_signature,
        unhealthy_at=ending.outage.since,
        restored_at=ending.restored_at,
        verdict=ending.outage.verdict or ending.outage.degraded,
        gpu_count=count,
        gpus=gpus,
        lost_gpu_hours=round(seconds * count / HOUR_SECONDS, 6),
        faults=faults,
        kernel_lines=lines,
        samples=samples,
        checks=tuple(
            message
            for _, message in messages
            if isinstance(message, n.BootChecked) and message.node == history.node
        ),
        timeline=timeline,
        omitted={part: count for part, count in omitted.items() if count},
        **_identity(record, instance),
    )


def _identity(record: NodeRecord | None, instance: InstanceRecord | None) -> dict[str, Any]:
    """Which machine it is, from the node's and the instance's record."""
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
    """All GPUs that the node ever reported; one that fell off is missing from later reports."""
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
    """The GPUs that the instance type has, even if the node reports fewer."""
    for launch in (record and record.launch, instance and instance.launch):
        if launch and launch.gpu_count:
            return launch.gpu_count
    return len(gpus)


def _faults(
    messages: Sequence[tuple[Stored, Message]],
    history: NodeHistory,
    capture: e.EvidenceCapture | None,
) -> tuple[tuple[e.EvaluatedFault, ...], int]:
    """Every fault that the node reported, with its result under the policy."""
    records = (capture.health if capture else None, history.health)
    recorded = {each.id: each for record in records if record for each in record.recent}
    # The verdict is published before the health record is written, which may therefore lack it.
    verdicts = {m.fault: m for _, m in messages if isinstance(m, n.Verdict) and m.fault}
    found = []
    for stored, fault in messages:
        if not isinstance(fault, n.Fault) or fault.node != history.node:
            continue
        evaluated = e.EvaluatedFault(fault=fault, stored_at=stored.time)
        if record := recorded.get(fault.id):
            evaluated = msgspec.structs.replace(
                evaluated, result=record.result, action=record.action, rule=record.rule
            )
        elif verdict := verdicts.get(fault.id):
            evaluated = msgspec.structs.replace(
                evaluated, result=verdict.status, action=verdict.action, rule=verdict.rule
            )
        found.append(evaluated)
    return limit_items(found, e.FAULTS_MAX, msgspec.json.encode)


def _kernel_lines(faults: Iterable[e.EvaluatedFault]) -> list[e.KernelLine]:
    return [
        e.KernelLine(
            time=each.fault.time,
            boot_id=each.fault.boot_id,
            sequence=each.fault.sequence,
            line=each.fault.message,
        )
        for each in faults
        if each.fault.source == KERNEL_LOG and each.fault.message
    ]


def _timeline(messages: Iterable[Stored], unhealthy_at: datetime) -> list[e.TimelineEntry]:
    """Every stored message in order, unreadable ones included."""
    return [
        e.TimelineEntry(
            time=each.time,
            since_ms=round((each.time - unhealthy_at).total_seconds() * 1000, 3),
            stream=SAGAS.name if subjects.parse_saga(each.subject) else EVENTS.name,
            subject=each.subject,
            sequence=each.sequence,
            message=_plain(each.data),
        )
        for each in sorted(messages, key=lambda one: one.time)
    ]


def _plain(data: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {"unreadable": data[:200].decode("utf-8", "replace")}
    return found


def limit_items(
    items: Sequence[T], count_max: int, encode_item: Callable[[T], bytes]
) -> tuple[tuple[T, ...], int]:
    """The first and last items within both limits, and how many were omitted.

    Encoded, all items together have at most PART_BYTES_MAX bytes.
    """
    kept = list(items)
    if len(kept) > count_max:
        half = count_max // 2
        kept = [*kept[:half], *kept[len(kept) - (count_max - half) :]]
    sizes = [len(encode_item(each)) for each in kept]
    total = sum(sizes)
    while total > e.PART_BYTES_MAX:
        middle = len(kept) // 2
        total -= sizes.pop(middle)
        kept.pop(middle)
    return tuple(kept), len(items) - len(kept)


def bundle_metadata(bundle: e.EvidenceBundle) -> Mapping[str, str]:
    """The metadata that lists show without reading the object."""
    return {
        "pool": bundle.pool,
        "node": bundle.node,
        "saga": bundle.saga,
        "outcome": bundle.outcome,
        "new_node": bundle.new_node,
        "fault_signature": bundle.fault_signature,
        "unhealthy_at": bundle.unhealthy_at.isoformat(),
        "restored_at": bundle.restored_at.isoformat() if bundle.restored_at else "",
        "provider_id": bundle.provider_id,
        "gpus": str(bundle.gpu_count),
        "lost_gpu_hours": f"{bundle.lost_gpu_hours:.6f}",
        "rule": bundle.verdict.rule if bundle.verdict else "",
    }
