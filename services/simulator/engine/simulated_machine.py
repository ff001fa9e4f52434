"""One simulated machine: its hardware, its failures as sources show them, its agent."""

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from agent.delivery.spool import OutgoingEvent
from agent.fault_reporter import FaultReporter, ReporterInputs
from agent.faults.fault_builder import GpuMap, NodeIdentity
from agent.faults.sample_changes import SampleChange, changes
from agent.observations import CheckFinding, KernelLogLine, Notice
from agent.own_record import Admission
from schemas.event_subjects import event_subject
from schemas.gpu_samples import GpuSample
from schemas.messages import encode
from schemas.node_events import BootChecked, CheckResult, GpuIdentity, Registered
from schemas.node_records import GpuUse
from services.primitives.clock import Clock
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine import virtual_time
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec, kernel_line
from services.simulator.engine.simulation_context import SimulatedProcess

SENT_MAX: Final = 16
"""Facts that an agent can publish again."""
UNKNOWN_ERROR: Final = 999
"""NVML_ERROR_UNKNOWN."""


@dataclass(slots=True)
class SimulatedMachine:
    """Simulates one machine and its agent."""

    instance: Instance
    process: SimulatedProcess
    """Its agent's process."""
    kind: MachineSpec = field(default_factory=MachineSpec)
    ready: float = 0.0
    """When its boot check had passed; 0: not yet."""
    broken: bool = False
    """It has failed, and has not recovered."""
    hung_until: float = 0.0
    """Its agent publishes nothing until then."""
    refused_from: float = 0.0
    refused_until: float = 0.0
    """The bus refuses its credentials in this time: they expired, and are not renewed yet."""
    admission: Admission = field(default_factory=Admission)
    """What its agent has read about its admission."""
    forgotten: bool = False
    """Whether that record lacks its registration or boot checks."""
    registrations: int = 0
    """How often it has registered again in this boot."""
    read_revision: int = 0
    """Of its node's record, as its agent read it last."""
    boots: int = 1
    outbox: "asyncio.Queue[OutgoingEvent]" = field(default_factory=asyncio.Queue)
    failures: dict[str, HardwareFailure] = field(default_factory=dict)
    """Name -> the failure in force."""
    lines: int = 0
    """How many lines the kernel log of this boot has."""
    samples: dict[int, GpuSample] = field(default_factory=dict)
    """GPU -> its counters, where they differ from a new GPU's."""
    hot: dict[int, int] = field(default_factory=dict)
    """GPU -> its temperature, where it is too hot."""
    sampling: bool = False
    """Whether it publishes samples; an idle, healthy machine need not."""
    gpu_use: GpuUse | None = None
    """As its heartbeats have it; None: no load was set."""
    sequence: int = 0
    reporter: FaultReporter | None = None
    sent: deque[OutgoingEvent] = field(default_factory=lambda: deque(maxlen=SENT_MAX))
    """The last facts it published, oldest first."""
    powered_off: bool = False
    """No agent runs: it is off, or never booted."""
    hardware: str = ""
    """Provider ID of the earlier machine whose GPUs it has; empty: new GPUs."""
    announced: dict[str, Notice] = field(default_factory=dict)
    """Digest -> what the cloud announces of it, other than that it takes it."""
    job: str = ""
    """The job whose processes its GPU errors name."""

    @property
    def name(self) -> str:
        """Return the name of the machine's node."""
        return self.instance.name

    @property
    def boot_id(self) -> str:
        """Identifies this boot; fault IDs start with it."""
        boot = f"{self.instance.provider_id}/{self.boots}"
        return hashlib.sha256(boot.encode()).hexdigest()[:16]

    def silent_seconds(self, now: float) -> float:
        """Return how long the agent publishes nothing; 0: it publishes."""
        refused = self.refused_until if self.refused_from <= now else 0.0
        return max(self.hung_until - now, refused - now, 0.0)

    def reported_expiry(self, now: float) -> datetime | None:
        """Return what heartbeats say of the machine's credentials; None: they are renewed."""
        return virtual_time.moment(self.refused_from) if now < self.refused_until else None

    @property
    def unfit(self) -> bool:
        """Return whether anything is wrong with the machine's hardware now."""
        return bool(self.failures)


def pci_of(index: int) -> str:
    """A GPU's PCI address, as the kernel log writes it."""
    return f"0000:{0x10 + index * 0x0B:02x}:00"


def gpu_uuid(machine: SimulatedMachine, index: int) -> str:
    """Return a GPU's UUID."""
    return f"GPU-{machine.hardware or machine.instance.provider_id}-{index}"


def gpus_of(machine: SimulatedMachine) -> tuple[GpuIdentity, ...]:
    """Return the GPUs of a machine."""
    return tuple(
        GpuIdentity(
            index=i,
            uuid=gpu_uuid(machine, i),
            pci=pci_of(i),
            name=machine.kind.gpu_type,
        )
        for i in range(machine.kind.gpu_count)
    )


def notice_of(machine: SimulatedMachine, failure: HardwareFailure) -> Notice:
    """Return the notice of a preemption, or of a retirement."""
    retires = failure.kind == "retirement"
    text = "the cloud retires the instance" if retires else "the cloud takes the instance back"
    return Notice(
        "maintenance" if retires else "preemption",
        f"simulated.{machine.instance.provider_id}.{failure.at:.0f}",
        "terminate",
        failure.message or text,
        failure.began + timedelta(seconds=failure.seconds),
        {"action": "terminate"},
        effect="retire" if retires else "reclaim",
    )


def reporter_of(machine: SimulatedMachine, clock: Clock) -> FaultReporter:
    """Return the agent's reporter of the machine's current boot."""
    who = NodeIdentity(machine.instance.pool, machine.name, machine.boot_id)
    gpus = GpuMap(gpus_of(machine))
    outbox: Any = SimpleNamespace(put=machine.outbox.put_nowait, take_dropped=lambda: 0)
    sources = ReporterInputs(gpus=lambda: gpus, lines=lambda: True, job=lambda *_: machine.job)
    return FaultReporter(who, outbox, clock, sources)


def report_failure(
    report: FaultReporter, machine: SimulatedMachine, failure: HardwareFailure
) -> None:
    """Pass a failure to the reporter, unless it shows only in samples or as silence.

    An XID is a line of the kernel log, a memory error a counter that has grown. The agent's own
    reporter makes the fault of it, with its ID, merged and deduplicated as on a real host.
    """
    index = gpu_of(machine, failure)
    match failure.kind:
        case "xid_error":
            machine.lines += 1
            machine.job = failure.job
            text = kernel_line(pci_of(index), failure)
            report.line(KernelLogLine(text, sequence=machine.lines))
        case "memory_error" | "nvlink_error":
            counter = "ecc_dbe_volatile" if failure.kind == "memory_error" else "nvlink_errors"
            _count(report, machine, index, counter, failure.count)
        case "backend_error":
            text = failure.message or "NVML does not answer: unknown error"
            report.change(
                SampleChange("probe_failed", -1, text, metrics={"nvml_code": UNKNOWN_ERROR})
            )
        case "boot_failure":
            if machine.ready:
                report.finding(CheckFinding("boot", ok=False, detail=failure.message))
        case "preemption" | "retirement":
            report.notice(notice_of(machine, failure))


def gpu_of(machine: SimulatedMachine, failure: HardwareFailure) -> int:
    """The GPU that a failure affects."""
    return min(failure.gpu_index, max(machine.kind.gpu_count - 1, 0))


def _count(
    report: FaultReporter, machine: SimulatedMachine, index: int, counter: str, count: int
) -> None:
    gpu = gpus_of(machine)[index]
    new = GpuSample(index=index, uuid=gpu.uuid, ecc_dbe_volatile=0, nvlink_errors=0)
    was = machine.samples.get(index, new)
    total = (getattr(was, counter) or 0) + count
    now = msgspec.structs.replace(was, **{counter: total})
    machine.samples[index] = now
    for change in changes({gpu.uuid: was}, {gpu.uuid: now}):
        report.change(change)


def registered(machine: SimulatedMachine, about: dict[str, Any]) -> OutgoingEvent:
    """Return the registration of this boot; `about`: its time, pool and node."""
    event = Registered(
        id=_numbered(f"{machine.boot_id}.registered", machine),
        instance=machine.name,
        hostname=machine.name,
        boot_id=machine.boot_id,
        gpus=gpus_of(machine),
        rack=machine.kind.rack,
        nvlink_domain=machine.kind.nvlink_domain,
        driver_version="580.65.06",
        drills=True,
        **about,
    )
    return OutgoingEvent(event_subject(event), encode(event), event.id)


def boot_checked(machine: SimulatedMachine, about: dict[str, Any]) -> OutgoingEvent:
    """Return the boot checks of this boot."""
    bad = next((e for e in machine.failures.values() if e.kind == "boot_failure"), None)
    check = CheckResult(name="boot", ok=bad is None, detail=bad.message if bad else "")
    event = BootChecked(
        id=_numbered(f"{machine.boot_id}.boot-checked", machine),
        ok=check.ok,
        checks=(check,),
        boot_id=machine.boot_id,
        **about,
    )
    return OutgoingEvent(event_subject(event), encode(event), event.id)


def _numbered(event_id: str, machine: SimulatedMachine) -> str:
    return f"{event_id}.{machine.registrations}" if machine.registrations else event_id
