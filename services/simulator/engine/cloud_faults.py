"""Faults of a simulated cloud, and the restarts and pauses that it announces."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

from agent.observations import Notice
from schemas.enums import NoticeEffect, ProviderErrorKind
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.fault_kinds import InjectedFault
from services.simulator.engine.listed_ids import ANSWERS, SPELLINGS
from services.simulator.engine.simulated_cloud import (
    Call,
    CallFailure,
    SimulatedCloud,
)
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulation_context import SimulationContext

AHEAD_SECONDS: Final = 120.0
LISTED_SECONDS_MAX: Final = 60.0
"""So long after it the cloud lists what it has done."""
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
UNLISTED: Final = "unlisted"
"""Message of a `lying_removal` after which lists lack the machine, too."""
LASTING: Final = frozenset({"no_capacity", "no_quota"})
"""These last until they are recovered; the others fail `count` calls."""


@dataclass(frozen=True, slots=True)
class _Action:
    effect: NoticeEffect
    away_seconds: tuple[float, float]
    """How long the machine is silent, without its boot."""


ACTIONS: Final = {
    "announced_reboot": _Action("reboot", (0.0, 5.0)),
    "announced_redeploy": _Action("redeploy", (20.0, 120.0)),
    "announced_pause": _Action("freeze", (10.0, 120.0)),
}


class CloudRestarts:
    """Announces restarts and pauses, carries them out, and takes them off the list.

    The hardware is sound, and the machine is the same afterwards. The cloud lists what it has
    announced until a while after it, so the agent of the next boot announces it again.
    """

    def __init__(self, simulation: SimulationContext, machines: AgentMachines) -> None:
        self._simulation = simulation
        self._machines = machines
        self._chance = simulation.chance("restarts")
        self._timers: set[asyncio.TimerHandle] = set()

    def announce(self, machine: SimulatedMachine, fault: InjectedFault) -> None:
        """The cloud announces what it does to a machine `seconds` later."""
        seconds = AHEAD_SECONDS if fault.seconds is None else fault.seconds
        notice = Notice(
            "maintenance",
            f"{fault.kind}.{machine.instance.provider_id}.{self._simulation.now():.0f}",
            fault.kind,
            fault.message or f"the cloud announces: {fault.kind}",
            self._simulation.clock.now() + timedelta(seconds=seconds),
            effect=ACTIONS[fault.kind].effect,
        )
        self._simulation.note(f"{machine.name}: {fault.kind} in {seconds:.0f} s")
        machine.announced[notice.digest] = notice
        self._machines.reporter(machine).notice(notice)
        self._in(seconds, partial(self._begin, machine, notice))

    def withdraw(self, machine: SimulatedMachine, kind: str) -> None:
        """The cloud does not do what it announced; empty: nothing of that."""
        for notice in list(machine.announced.values()):
            if kind in ("", notice.subcode):
                self._delist(machine, notice)

    def _begin(self, machine: SimulatedMachine, notice: Notice) -> None:
        if notice.digest not in machine.announced or not self._exists(machine):
            return
        self._simulation.note(f"{machine.name}: {notice.subcode} begins")
        action = ACTIONS[notice.subcode]
        away = self._chance.uniform(*action.away_seconds)
        if action.effect == "freeze":
            self._machines.hang(machine, away)
        else:
            if not machine.process.dead:
                machine.process.crash()
            machine.ready = 0.0
            self._in(away, partial(self._boot, machine, machine.boots))
        listed = away + self._chance.uniform(0.0, LISTED_SECONDS_MAX)
        self._in(listed, partial(self._delist, machine, notice))

    def _boot(self, machine: SimulatedMachine, boots: int) -> None:
        """It comes up, unless it was booted or removed meanwhile."""
        if self._exists(machine) and machine.boots == boots:
            self._machines.reboot(machine.instance, by_cloud=True)

    def _delist(self, machine: SimulatedMachine, notice: Notice) -> None:
        if machine.announced.pop(notice.digest, None) and self._exists(machine):
            self._simulation.note(f"{machine.name}: {notice.subcode} is listed no more")
            self._machines.reporter(machine).notice_over(notice.digest)

    def _exists(self, machine: SimulatedMachine) -> bool:
        return self._machines.machine_of(machine.name) is machine

    def _in(self, seconds: float, action: Callable[[], Any]) -> None:
        self._timers.add(asyncio.get_running_loop().call_later(seconds, action))


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
            case "slow_removal" | "lying_removal":
                self._remove_late(fault)
            case "fixed_capacity":
                self._cloud.machines_max[fault.selector] = fault.count
                if fault.seconds is not None:
                    self._later(fault.seconds, partial(self.recover, fault.kind))
            case "other_rack":
                self._cloud.place_elsewhere(fault.count)
            case "respelled_ids" | "listed_twice" | "empty_list" | "wrong_answer":
                self._answer_wrongly(fault)
            case "reported_quota":
                self._cloud.quotas[fault.selector] = fault.count
                if fault.seconds is not None:
                    self._later(fault.seconds, partial(self.recover, fault.kind))
            case _:
                self._fail_calls(fault)

    def _remove_late(self, fault: InjectedFault) -> None:
        until = float("inf") if fault.seconds is None else self._after(fault.seconds)
        if fault.kind == "slow_removal":
            self._cloud.removing_until = until
        else:
            self._cloud.removals_lie_until = until
            self._cloud.unlists_on_lie = fault.message == UNLISTED

    def _answer_wrongly(self, fault: InjectedFault) -> None:
        ids = self._cloud.ids
        if self._cloud.adopts:
            return  # their lists are the truth about whose name a machine has
        until = float("inf") if fault.seconds is None else self._after(fault.seconds)
        match fault.kind:
            case "respelled_ids":
                known = [each for each in SPELLINGS if each == fault.message] or [SPELLINGS[0]]
                ids.spell(known[0], list(self._cloud.machines), until)
            case "listed_twice":
                ids.twice_until = until
            case "empty_list":
                ids.empty_until = until
            case _:
                wrong = [each for each in ANSWERS if each == fault.message] or [ANSWERS[0]]
                ids.answers += wrong * fault.count

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
        if kind in ("", "lying_removal"):
            self._cloud.end_lies()
        if kind in ("", "fixed_capacity"):
            self._cloud.machines_max.clear()
        if kind in ("", "respelled_ids", "listed_twice", "empty_list", "wrong_answer"):
            self._cloud.ids.end()
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
