"""Builds fault events, with their IDs, trace and GPU, from observations.

Everything is derived from the arguments, so that a repeated observation (restart, redelivery)
builds the same message with the same ID, which the stream stores once. Pure.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from agent.conditions.engine import ConditionChange, held_of
from agent.faults.sample_changes import SampleChange
from agent.faults.xid_patterns import RecognisedFault
from agent.observations import CheckFinding, Notice, XidEvent
from schemas.enums import FaultKind
from schemas.held_conditions import begin_id
from schemas.node_events import ConditionEnded, Fault, GpuIdentity, Metric, ProviderNotice

PCIE: Final = "DCGM_HEALTH_WATCH_PCIE"
NVLINK: Final = "DCGM_HEALTH_WATCH_NVLINK"
MEMORY: Final = "DCGM_HEALTH_WATCH_MEM"
DRIVER: Final = "DCGM_HEALTH_WATCH_DRIVER"
THERMAL: Final = "DCGM_HEALTH_WATCH_THERMAL"
POWER: Final = "DCGM_HEALTH_WATCH_POWER"
SWITCH: Final = "DCGM_HEALTH_WATCH_NVSWITCH_FATAL"
SWITCH_MINOR: Final = "DCGM_HEALTH_WATCH_NVSWITCH_NONFATAL"
SM: Final = "DCGM_HEALTH_WATCH_SM"

_KIND_SYSTEM: Final[dict[FaultKind, str]] = {
    "fallen_off_bus": PCIE,
    "gpu_lost": PCIE,
    "pcie": PCIE,
    "ecc_dbe": MEMORY,
    "ecc_sbe": MEMORY,
    "row_remap": MEMORY,
    "page_retirement": MEMORY,
    "thermal": THERMAL,
    "power": POWER,
    "nvlink": NVLINK,
    "fabric": NVLINK,
    "probe_failed": DRIVER,
    "probe_hung": DRIVER,
    "gpu_count": PCIE,
}
_XID_SYSTEM: Final[dict[int, str]] = (
    dict.fromkeys((38, 79, 116, 117, 142), PCIE)
    | dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 160, 161, 171, 172), MEMORY)
    | dict.fromkeys((74, 137, *range(144, 151), 155), NVLINK)
    | dict.fromkeys((54, 56, 57), POWER)
    | dict.fromkeys((13, 31, 43, 45, 8, 68, 69), SM)
)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identifies the reporting node and its boot."""

    pool: str
    node: str
    boot_id: str

    @property
    def prefix(self) -> str:
        """Return the prefix of every ID of this boot of this node."""
        return f"{self.pool}.{self.node}.{self.boot_id.replace('-', '')[:8]}"


class GpuMap:
    """Finds a GPU by PCI address, index or UUID."""

    def __init__(self, gpus: Sequence[GpuIdentity] = (), gone: Sequence[GpuIdentity] = ()) -> None:
        self.gpus = tuple(gpus)
        self.gone = tuple(gone)
        known = (*self.gone, *self.gpus)
        self._by_pci = {gpu.pci: gpu for gpu in known if gpu.pci}
        self._by_index = {gpu.index: gpu for gpu in known}
        self._by_uuid = {gpu.uuid: gpu for gpu in known}

    def by_pci(self, pci: str) -> GpuIdentity | None:
        """The GPU at a PCI address, if it is one of this node's."""
        return self._by_pci.get(pci)

    def by_index(self, index: int) -> GpuIdentity | None:
        """Return the GPU with an index."""
        return self._by_index.get(index)

    def by_uuid(self, uuid: str) -> GpuIdentity | None:
        """Return the GPU with a UUID."""
        return self._by_uuid.get(uuid)

    def of_change(self, change: SampleChange) -> GpuIdentity | None:
        """The GPU that changed; its index may belong to another GPU now."""
        return self._by_uuid.get(change.uuid) or self._by_index.get(change.index)


def _fault(
    who: NodeIdentity,
    about: str,
    now: datetime,
    source: str,
    kind: FaultKind,
    message: str,
    metrics: dict[str, Metric],
    *,
    gpu: GpuIdentity | None = None,
    gpu_index: int = -1,
    pci: str = "",
    code: int = 0,
    subcode: str = "",
    sequence: int = 0,
    job: str = "",
) -> Fault:
    """Build a fault; `about` makes its ID unique, `gpu` is the GPU if it is identified."""
    return Fault(
        id=f"{who.prefix}.{about}",
        time=now,
        pool=who.pool,
        node=who.node,
        kind=kind,
        system=system_of(kind, code, fatal=subcode == "fatal"),
        gpu_index=gpu.index if gpu and gpu_index < 0 else gpu_index,
        gpu_uuid=gpu.uuid if gpu else "",
        gpu_serial=gpu.serial if gpu else "",
        pci=pci or (gpu.pci if gpu else ""),
        code=code,
        subcode=subcode,
        message=message,
        metrics=metrics,
        source=source,
        boot_id=who.boot_id,
        sequence=sequence,
        job=job,
    )


def _milliseconds(now: datetime) -> int:
    return int(now.timestamp() * 1000)


def from_kernel_log(
    who: NodeIdentity,
    found: RecognisedFault,
    sequence: int,
    gpus: GpuMap,
    now: datetime,
    *,
    job: str = "",
) -> Fault:
    """Build the fault of a kernel log line; the line's sequence is part of its ID."""
    return _fault(
        *(who, f"kmsg.{sequence}", now, "kmsg", found.kind, found.message, found.metrics),
        gpu=gpus.by_pci(found.pci) if found.kind != "sxid" else None,
        pci=found.pci,
        code=found.code,
        subcode=found.subcode,
        sequence=sequence,
        job=job,
    )


def lines_lost(who: NodeIdentity, count: int, sequence: int, now: datetime) -> Fault:
    """Build the fault for kernel log lines that were overwritten before they were read."""
    text = f"{count} kernel log lines before number {sequence} were lost; faults may be too"
    about, metrics = f"kmsg.lost.{sequence}", {"lines_lost": count}
    return _fault(who, about, now, "kmsg", "lines_lost", text, {**metrics}, sequence=sequence)


def reports_lost(who: NodeIdentity, count: int, sequence: int, now: datetime) -> Fault:
    """Build the fault for reports dropped while the bus was away."""
    text = f"{count} reports were dropped while the bus was away"
    about, metrics = f"agent.lost.{_milliseconds(now)}", {"reports_lost": count}
    return _fault(who, about, now, "host", "lines_lost", text, {**metrics}, sequence=sequence)


def from_change(who: NodeIdentity, change: SampleChange, gpus: GpuMap, now: datetime) -> Fault:
    """Build the fault of a change between samples; the sample's time is part of its ID."""
    moment_ms = _milliseconds(now)
    place = str(change.index) if change.index >= 0 else "node"
    about = f"nvml.{change.kind}.{place}.{moment_ms}"
    return _fault(
        *(who, about, now, "nvml", change.kind, change.message, change.metrics),
        gpu=gpus.of_change(change),
        gpu_index=change.index,
        subcode=change.subcode,
        sequence=moment_ms,
    )


def from_condition(
    who: NodeIdentity, change: ConditionChange, gpus: GpuMap, now: datetime
) -> Fault | ConditionEnded:
    """Build the event of a condition that begins, or is over; the counter is part of its ID."""
    held = held_of(change.track)
    begun = begin_id(who.pool, who.node, who.boot_id, held)
    if change.over:
        return ConditionEnded(
            id=f"{begun}.over",
            time=now,
            cause=begun,
            pool=who.pool,
            node=who.node,
            condition=held.name,
            gpu_index=held.gpu,
            boot_id=who.boot_id,
            counter=change.counter,
            message=held.message,
        )
    uuid = held.metrics.get("gpu_uuid", "")
    gpu = gpus.by_uuid(str(uuid)) or gpus.by_index(held.gpu)
    return Fault(
        id=begun,
        time=now,
        pool=who.pool,
        node=who.node,
        kind=held.kind,
        system=system_of(held.kind, held.code),
        gpu_index=held.gpu,
        gpu_uuid=gpu.uuid if gpu else "",
        gpu_serial=gpu.serial if gpu else "",
        pci=gpu.pci if gpu else "",
        code=held.code,
        subcode=held.subcode,
        message=held.message,
        metrics=held.metrics,
        source="nvml" if change.track.declared.reader == "nvml" else "host",
        boot_id=who.boot_id,
        sequence=change.counter,
        condition=held.name,
        counter=change.counter,
        since=datetime.fromtimestamp(held.since, UTC),
    )


def from_event(
    who: NodeIdentity, event: XidEvent, name: str, count: int, gpus: GpuMap, now: datetime
) -> Fault:
    """Build the fault of an XID reported by NVML, the `count`-th of this agent's run.

    `name`: of its code.
    """
    moment_ms = _milliseconds(now)
    metrics: dict[str, Metric] = {"xid_code": event.code}
    if event.gpu_instance >= 0:
        metrics["gpu_instance"] = event.gpu_instance
    text = f"NVML reports XID {event.code} on GPU {event.index}: {name}"
    return _fault(
        *(who, f"nvml.xid.{event.code}.{moment_ms}.{count}", now, "nvml", "xid", text, metrics),
        gpu=gpus.by_pci(event.pci) or gpus.by_index(event.index),
        gpu_index=event.index,
        pci=event.pci,
        code=event.code,
        sequence=moment_ms,
    )


def from_notice(who: NodeIdentity, notice: Notice, now: datetime) -> Fault:
    """Build the fault of a provider's notice; the notice's digest is part of its ID."""
    metrics = dict(notice.metrics)
    if notice.deadline is not None:
        metrics["deadline"] = notice.deadline.astimezone(UTC).isoformat().replace("+00:00", "Z")
        metrics["seconds_left"] = round((notice.deadline - now).total_seconds(), 1)
    about = f"cloud.{notice.kind}.{notice.digest}.{_milliseconds(now)}"
    kind, text, subcode = notice.kind, notice.message, notice.subcode
    return _fault(who, about, now, "cloud", kind, text, metrics, subcode=subcode)


def provider_notice(who: NodeIdentity, notice: Notice, now: datetime) -> ProviderNotice:
    """Build the event of a notice that has an effect on this node."""
    return ProviderNotice(
        id=f"{who.prefix}.notice.{notice.digest}.{_milliseconds(now)}",
        time=now,
        pool=who.pool,
        node=who.node,
        notice=notice.digest,
        kind=notice.kind,
        action=notice.subcode,
        message=notice.message,
        effect=notice.effect or "reclaim",
        deadline=notice.deadline,
        window_end=notice.window_end,
        boot_id=who.boot_id,
    )


def withdrawn_notice(who: NodeIdentity, digest: str, now: datetime) -> ProviderNotice:
    """Build the event of a withdrawn notice."""
    return ProviderNotice(
        id=f"{who.prefix}.withdrawn.{digest}.{_milliseconds(now)}",
        time=now,
        pool=who.pool,
        node=who.node,
        notice=digest,
        message="the cloud withdrew the notice",
        withdrawn=True,
        boot_id=who.boot_id,
    )


def from_finding(who: NodeIdentity, finding: CheckFinding, gpus: GpuMap, now: datetime) -> Fault:
    """Build the fault of a failed diagnostic; its end is part of the ID."""
    moment_ms, name = _milliseconds(now), finding.name
    metrics = {"check": name, **finding.metrics}
    if finding.gpus:
        metrics["gpus"] = ",".join(map(str, finding.gpus))
    about = f"diagnostic.{_token(name)}.{moment_ms}"
    return _fault(
        *(who, about, now, "host", "diagnostic", f"{name}: {finding.detail}", metrics),
        gpu=gpus.by_index(finding.gpus[0]) if len(finding.gpus) == 1 else None,
        subcode=name,
        sequence=moment_ms,
    )


def _token(name: str) -> str:
    """Convert a plugin's name into part of an ID."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in name)[:63]


def system_of(kind: FaultKind, code: int, *, fatal: bool = False) -> str:
    """Return DCGM's name of the subsystem of a fault."""
    if kind == "sxid":
        return SWITCH if fatal else SWITCH_MINOR
    if kind == "xid":
        return _XID_SYSTEM.get(code, DRIVER)
    return _KIND_SYSTEM.get(kind, "")


def traceparent(fault_id: str) -> str:
    """W3C traceparent of a fault and its consequences, derived from its ID."""
    digest = hashlib.sha256(fault_id.encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"
