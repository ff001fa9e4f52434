"""A scheduled failure on a machine, and whether the health policy makes it fatal. Pure.

The policy judges the fault that the machine's agent, or a telemetry level, would report: so a
failure that is fatal here is fatal to the services too.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

from schemas.node_events import Fault, node_codec
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.health_state import TELEMETRY_SOURCE
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.hardware_failures import HardwareFailure
from services.simulator.engine.simulated_machine import (
    SimulatedMachine,
    report_failure,
    reporter_of,
)
from services.simulator.inputs.stress.failure_schedule import ScheduledFailure
from services.simulator.inputs.stress.stress_format import FailureType

REMEDIES_OF_ACTIONS: Final = {
    "RESTART_BM": "reboot",
    "RESTART_VM": "reboot",
    "CHECK_MECHANICALS": "replace",
    "CONTACT_SUPPORT": "replace",
}
"""NVIDIA's action for an XID -> the mildest remedy that fixes it; a reset fixes all others."""
REMEDIES_OF_TYPES: Final[dict[str, str]] = {
    "backend_error": "reboot",
    "boot_failure": "replace",
    "memory_error": "reset_gpu",
    "network": "replace",
    "nvlink_error": "reset_gpu",
    "temperature": "replace",
}
PROBED_AT: Final = datetime(2030, 1, 1, tzinfo=UTC)


def remedies(actions: Mapping[int, str]) -> dict[int, str]:
    """XID -> the mildest remedy that fixes it; `actions`: XID -> NVIDIA's action."""
    return {code: REMEDIES_OF_ACTIONS.get(action, "reset_gpu") for code, action in actions.items()}


def hardware_failure(
    failure: ScheduledFailure,
    gpu: int,
    at: float,
    began: datetime,
    remedies: Mapping[int, str],
    celsius: int,
) -> HardwareFailure:
    """The failure of the machine that it hits; `celsius`: of a hot GPU."""
    return HardwareFailure(
        kind=failure.type,
        number=failure.number,
        at=at,
        began=began,
        xid_code=failure.xid,
        gpu_index=gpu,
        temperature=celsius,
        fixed_by=REMEDIES_OF_TYPES.get(failure.type) or remedies.get(failure.xid, "reset_gpu"),
        lasting=failure.lasting,
    )


def is_fatal(policy: Policy, type_: FailureType, xid: int, celsius: int) -> bool:
    """Return whether this policy takes a node out of service for one such failure."""
    if type_ == "temperature":
        faults = _level_faults(policy, celsius)
    else:
        planned = ScheduledFailure(number=1, at=0.0, slot=0, type=type_, xid=xid)
        faults = _reported_faults(hardware_failure(planned, 0, 0.0, PROBED_AT, {}, celsius))
    return any(policy.judge(each, {}, PROBED_AT).result == "unhealthy" for each in faults)


def _reported_faults(failure: HardwareFailure) -> list[Fault]:
    """The faults that an agent reports."""
    no_process: Any = None
    clock: Any = SimpleNamespace(now=lambda: PROBED_AT, monotonic=lambda: 0.0)
    instance = Instance(name="probe", provider_id="probe", pool="probe")
    machine = SimulatedMachine(instance, no_process, ready=1.0)
    report_failure(reporter_of(machine, clock), machine, failure)
    faults = []
    while not machine.outbox.empty():
        message = node_codec.decode(machine.outbox.get_nowait().data)
        faults += [message] if isinstance(message, Fault) else []
    return faults


def _level_faults(policy: Policy, celsius: int) -> list[Fault]:
    """The faults of a GPU that stays as hot as a failure makes it."""
    return [
        Fault(
            id="probe",
            time=PROBED_AT,
            pool="probe",
            node="probe",
            kind=level.kind,
            subcode=level.name,
            gpu_index=0,
            metrics={level.reading: celsius, "temperature": celsius},
            source=TELEMETRY_SOURCE,
        )
        for level in policy.levels
        if level.reading == "temperature_celsius" and level.begins()(celsius)
    ]
