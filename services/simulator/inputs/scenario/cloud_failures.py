"""What goes wrong at a stage's cloud, as a scenario orders it, and how that is over again."""

from typing import Final

from schemas.enums import ProviderErrorKind
from schemas.launch_offers import Offering
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.simulated_cloud import (
    Call,
    CallFailure,
    CloudInstance,
    How,
    SimulatedCloud,
)
from services.simulator.inputs.scenario import scenario_format as f

ORDERS: Final[dict[str, tuple[Call, ProviderErrorKind]]] = {
    "no_capacity": ("provision", "CAPACITY"),
    "no_quota": ("provision", "QUOTA"),
    "launch_error": ("provision", "TRANSIENT"),
    "lost_answer": ("provision", "TRANSIENT"),
    "terminate_error": ("terminate", "TRANSIENT"),
    "list_error": ("list", "TRANSIENT"),
}
"""Failure -> the call that fails, and of what."""
LASTING: Final = frozenset({"no_capacity", "no_quota"})
"""These stay until they are recovered, where nothing else is said; others are so many calls."""


def order(cloud: SimulatedCloud, machines: AgentMachines, params: f.FailureParams) -> None:
    """Have calls fail, or the machines that are made next."""
    kind = params.failure_type
    if kind == "stillborn":
        machines.stillborn += params.count
    elif kind == "boot_failure":
        machines.faulty += params.count
    elif kind == "old_hardware":
        machines.known += params.count
    else:
        call, error = ORDERS[kind]
        lasts = f.TIME_SECONDS_MAX if kind in LASTING else 0.0
        seconds = lasts if params.duration is None else float(params.duration)
        how: How = "after" if kind == "lost_answer" else "before"
        for _ in range(1 if seconds else params.count):
            cloud.order(CallFailure(call, error, how, place=params.place), seconds)


def over(cloud: SimulatedCloud, machines: AgentMachines, kind: str) -> None:
    """A failure is over; empty: all of them."""
    if kind in ("", "stillborn"):
        machines.stillborn = 0
    if kind in ("", "boot_failure"):
        machines.faulty = 0
    if kind in ("", "old_hardware"):
        machines.known = 0
    meant = ORDERS.get(kind)
    cloud.call_failures = [
        each for each in cloud.call_failures if kind and (each.call, each.kind) != meant
    ]


def taken(cloud: SimulatedCloud, params: f.FailureParams) -> list[str]:
    """The nodes whose machines the cloud takes: so many of those that stand there, oldest first."""
    found = [
        each.instance.name
        for each in cloud.machines.values()
        if not each.stopping and params.place.covers(standing_at(each))
    ]
    return found[: params.count]


def standing_at(machine: CloudInstance) -> Offering:
    """Where and what a machine is."""
    instance, asked = machine.instance, machine.offering
    return Offering(
        provider=machine.provider,
        region=instance.region,
        zone=instance.zone,
        instance_type=instance.instance_type,
        market=asked.market if asked is not None else "on-demand",
    )
