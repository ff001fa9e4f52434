"""Passes a failure to a simulated machine's agent as its sources would show it.

An XID is a line of the kernel log, a memory error a counter that has grown. The agent's own
reporter makes the fault of it, with its ID, merged and deduplicated as on a real host.
"""

from types import SimpleNamespace
from typing import Any, Final

import msgspec

from agent.fault_reporter import FaultReporter, ReporterInputs
from agent.faults.fault_builder import GpuMap, NodeIdentity
from agent.faults.sample_changes import SampleChange, changes
from agent.observations import CheckFinding, KernelLogLine
from schemas.gpu_samples import GpuSample
from services.primitives.clock import Clock
from services.simulator.engine.hardware_failures import HardwareFailure, kernel_line
from services.simulator.engine.simulated_machine import (
    SimulatedMachine,
    gpus_of,
    notice_of,
    pci_of,
)

UNKNOWN_ERROR: Final = 999
"""NVML_ERROR_UNKNOWN."""


def reporter_of(machine: SimulatedMachine, clock: Clock) -> FaultReporter:
    """The agent's reporter of the machine's current boot."""
    who = NodeIdentity(machine.instance.pool, machine.name, machine.boot_id)
    gpus = GpuMap(gpus_of(machine))
    outbox: Any = SimpleNamespace(put=machine.outbox.put_nowait, take_dropped=lambda: 0)
    sources = ReporterInputs(gpus=lambda: gpus, lines=lambda: True, job=lambda *_: machine.job)
    return FaultReporter(who, outbox, clock, sources)


def report_failure(
    report: FaultReporter, machine: SimulatedMachine, failure: HardwareFailure
) -> None:
    """Pass a failure to the reporter, unless it shows only in samples or as silence."""
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
