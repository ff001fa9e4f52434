"""Faults of a simulated cloud: failing calls, bad machines, slow removals, few machines."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from schemas.enums import ProviderErrorKind
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.fault_kinds import InjectedFault
from services.simulator.engine.simulated_cloud import (
    Call,
    CallFailure,
    SimulatedCloud,
)
from services.simulator.engine.simulation_context import SimulationContext

CALLS: Final[dict[str, tuple[Call, ProviderErrorKind | None]]] = {
    "no_capacity": ("provision", "CAPACITY"),
    "no_quota": ("provision", "QUOTA"),
    "launch_error": ("provision", None),
    "lost_answer": ("provision", None),
    "launch_cut_off": ("provision", None),
    "terminate_error": ("terminate", None),
    "list_error": ("list", None),
}
"""Fault -> the call that fails, and its error; None: as the fault says."""
LASTING: Final = frozenset({"no_capacity", "no_quota"})
"""These last until they are recovered; the others fail `count` calls."""


class CloudFaults:
    """Injects them into one cloud."""

    def __init__(
        self,
        simulation: SimulationContext,
        cloud: SimulatedCloud,
        machines: AgentMachines,
        later: Callable[[float, Callable[[], Any]], None],
    ) -> None:
        """`later` calls back after so many seconds."""
        self._simulation = simulation
        self._cloud = cloud
        self._machines = machines
        self._later = later

    def _after(self, seconds: float) -> float:
        return self._simulation.now() + seconds

    def inject(self, fault: InjectedFault) -> None:
        """Inject a fault of the cloud."""
        match fault.kind:
            case "never_boots":
                self._machines.never_boot += fault.count
            case "boot_failure":
                self._machines.failing_boot_checks += fault.count
            case "old_hardware":
                self._machines.reused += fault.count
            case "slow_removal":
                until = float("inf") if fault.seconds is None else self._after(fault.seconds)
                self._cloud.removing_until = until
            case "fixed_capacity":
                self._cloud.machines_max[fault.selector] = fault.count
                if fault.seconds is not None:
                    self._later(fault.seconds, partial(self.recover, fault.kind))
            case "other_rack":
                self._cloud.place_elsewhere(fault.count)
            case "reported_quota":
                self._cloud.quotas[fault.selector] = fault.count
                if fault.seconds is not None:
                    self._later(fault.seconds, partial(self.recover, fault.kind))
            case _:
                self._fail_calls(fault)

    def _fail_calls(self, fault: InjectedFault) -> None:
        call, error = CALLS[fault.kind]
        effect, seconds = fault.effect, fault.seconds
        if fault.kind == "lost_answer":
            effect = "after"
        if fault.kind == "launch_cut_off":
            effect, lasts = "cut-off", None
        else:
            lasts = float("inf") if seconds is None and fault.kind in LASTING else seconds
        failure = CallFailure(
            call,
            error or fault.error,
            effect,
            seconds=seconds or 0.0,
            until=self._after(lasts) if lasts else 0.0,
            selector=fault.selector,
        )
        self._cloud.call_failures += [failure] * (1 if lasts else fault.count)

    def recover(self, kind: str) -> None:
        """End one kind of fault; empty: all of them."""
        if kind in ("", "never_boots"):
            self._machines.never_boot = 0
        if kind in ("", "boot_failure"):
            self._machines.failing_boot_checks = 0
        if kind in ("", "old_hardware"):
            self._machines.reused = 0
        if kind in ("", "slow_removal"):
            self._cloud.removing_until = 0.0
        if kind in ("", "fixed_capacity"):
            self._cloud.machines_max.clear()
        if kind in ("", "other_rack"):
            self._cloud.place_elsewhere(0)
        if kind in ("", "reported_quota"):
            self._cloud.quotas.clear()
        call, error = CALLS.get(kind, ("", None))
        self._cloud.call_failures = [
            each
            for each in self._cloud.call_failures
            if kind and (each.call != call or error not in (None, each.kind))
        ]
