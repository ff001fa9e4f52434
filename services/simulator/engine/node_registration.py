"""What a simulated agent publishes at its start, and again where its node's record lacks it."""

from typing import Any

from agent.delivery.spool import OutgoingEvent
from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import BootChecked, CheckResult, Registered
from services.simulator.engine.simulated_machine import SimulatedMachine, gpus_of


def registered(machine: SimulatedMachine, about: dict[str, Any]) -> OutgoingEvent:
    """The registration of this boot; `about`: its time, pool and node."""
    event = Registered(
        id=_numbered(f"{machine.boot_id}.registered", machine),
        instance=machine.name,
        hostname=machine.name,
        boot_id=machine.boot_id,
        gpus=gpus_of(machine),
        rack=machine.kind.rack,
        nvlink_domain=machine.kind.nvlink_domain,
        driver_version="580.65.06",
        **about,
    )
    return OutgoingEvent(event_subject(event), encode(event), event.id)


def boot_checked(machine: SimulatedMachine, about: dict[str, Any]) -> OutgoingEvent:
    """The boot checks of this boot."""
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
