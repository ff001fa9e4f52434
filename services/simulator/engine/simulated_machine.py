"""One simulated machine: its hardware, its failures, and the state of its agent."""

import asyncio
import hashlib
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from agent.delivery.spool import OutgoingEvent
from agent.fault_reporter import FaultReporter
from agent.observations import Notice
from agent.own_record import Admission
from schemas.gpu_samples import GpuSample
from schemas.node_events import GpuIdentity
from schemas.node_records import GpuUse
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine import virtual_time
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec
from services.simulator.engine.simulated_process import SimulatedProcess

SENT_MAX: Final = 16
"""Facts that an agent can publish again."""


@dataclass(slots=True)
class SimulatedMachine:
    """One machine and its agent."""

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
    last_heartbeat_at: float = 0.0
    """When its last heartbeat was stored."""
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
        """Its node's name."""
        return self.instance.name

    @property
    def boot_id(self) -> str:
        """Identifies this boot; fault IDs start with it."""
        boot = f"{self.instance.provider_id}/{self.boots}"
        return hashlib.sha256(boot.encode()).hexdigest()[:16]

    def silent_seconds(self, now: float) -> float:
        """How long its agent publishes nothing; 0: it does."""
        refused = self.refused_until if self.refused_from <= now else 0.0
        return max(self.hung_until - now, refused - now, 0.0)

    def reported_expiry(self, now: float) -> datetime | None:
        """What its heartbeats say of its credentials; None: they are renewed."""
        return virtual_time.moment(self.refused_from) if now < self.refused_until else None

    @property
    def unfit(self) -> bool:
        """Whether anything is wrong with its hardware now."""
        return bool(self.failures)


def pci_of(index: int) -> str:
    """A GPU's PCI address, as the kernel log writes it."""
    return f"0000:{0x10 + index * 0x0B:02x}:00"


def gpu_uuid(machine: SimulatedMachine, index: int) -> str:
    """A GPU's UUID."""
    return f"GPU-{machine.hardware or machine.instance.provider_id}-{index}"


def gpus_of(machine: SimulatedMachine) -> tuple[GpuIdentity, ...]:
    """The GPUs of a machine."""
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
    """The notice of a preemption, or of a retirement."""
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
