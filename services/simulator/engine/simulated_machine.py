"""One simulated machine: what it is like, what is wrong with it, how its GPUs are called."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from agent.delivery.spool import OutgoingEvent
from agent.fault_reporter import FaultReporter
from agent.observations import Notice
from schemas.node_events import GpuIdentity, GpuSample
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec
from services.simulator.engine.simulated_process import SimulatedProcess

SENT_MAX: Final = 16
"""Facts that an agent can publish again."""


@dataclass(slots=True)
class SimulatedMachine:
    """One machine: its agent, what it is like, and what is wrong with it."""

    instance: Instance
    process: SimulatedProcess
    """Its agent's process."""
    kind: MachineSpec = field(default_factory=MachineSpec)
    ready: float = 0.0
    """When its boot check had passed; 0: not yet."""
    broken: bool = False
    """It has a failure that cannot stay."""
    hung_until: float = 0.0
    """Its agent says nothing until then."""
    last_heartbeat_at: float = 0.0
    """When a beat of it was stored last."""
    boots: int = 1
    outbox: "asyncio.Queue[OutgoingEvent]" = field(default_factory=asyncio.Queue)
    failures: dict[str, HardwareFailure] = field(default_factory=dict)
    """Name -> the failure in force."""
    lines: int = 0
    """Of the kernel log of this boot."""
    samples: dict[int, GpuSample] = field(default_factory=dict)
    """GPU -> its counters, where they are no longer those of a new one."""
    hot: dict[int, int] = field(default_factory=dict)
    """GPU -> its temperature, where it is too hot."""
    sampling: bool = False
    """Whether it publishes samples: those of an idle, healthy machine serve nothing."""
    sequence: int = 0
    reporter: FaultReporter | None = None
    sent: deque[OutgoingEvent] = field(default_factory=lambda: deque(maxlen=SENT_MAX))
    """What it has published last, oldest first."""
    powered_off: bool = False
    """No agent runs: it is off, or never booted."""
    hardware: str = ""
    """Of which machine that was given back its GPUs are; empty: they are new."""
    job: str = ""
    """Whose processes its GPUs' errors name."""

    @property
    def name(self) -> str:
        """Its node's name."""
        return self.instance.name

    @property
    def boot_id(self) -> str:
        """Of this boot; ids of faults hold its beginning, so that tells boots apart."""
        boot = f"{self.instance.provider_id}/{self.boots}"
        return hashlib.sha256(boot.encode()).hexdigest()[:16]

    @property
    def unfit(self) -> bool:
        """Whether anything is wrong with its hardware now."""
        return bool(self.failures)


class ReporterOutbox:
    """Where the agent's reporter puts what is to be published."""

    def __init__(self, put: Callable[[OutgoingEvent], None]) -> None:
        """Hand everything on to `put`."""
        self.put = put

    def take_dropped(self) -> int:
        """Nothing ever is."""
        return 0


def pci_of(index: int) -> str:
    """Where a GPU is, as the kernel log writes it."""
    return f"0000:{0x10 + index * 0x0B:02x}:00"


def gpus_of(machine: SimulatedMachine) -> tuple[GpuIdentity, ...]:
    """The GPUs of a machine."""
    return tuple(
        GpuIdentity(
            index=i,
            uuid=f"GPU-{machine.hardware or machine.instance.provider_id}-{i}",
            pci=pci_of(i),
            name=machine.kind.gpu_type,
        )
        for i in range(machine.kind.gpu_count)
    )


def notice_of(machine: SimulatedMachine, failure: HardwareFailure) -> Notice:
    """What the cloud announces."""
    return Notice(
        "preemption",
        f"simulated.{machine.instance.provider_id}.{failure.at:.0f}",
        "terminate",
        failure.message or "the cloud takes the instance back",
        failure.began + timedelta(seconds=failure.seconds),
        {"action": "terminate"},
        takes=True,
    )
