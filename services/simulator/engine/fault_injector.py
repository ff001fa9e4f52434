"""Injects faults into a simulated fleet, and recovers it from them."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.cloud_faults import CloudFaults, CloudRestarts
from services.simulator.engine.fault_kinds import (
    ALL,
    ANNOUNCED,
    BROKER,
    CLOUD,
    FAULTS_OF,
    HALF,
    STORE_LOSSES,
    WHOLE_STORE,
    WORKLOAD,
    InjectedFault,
)
from services.simulator.engine.hardware_failures import HARMLESS_XIDS, RECLAIMS, HardwareFailure
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.network_faults import EVERY_CONNECTION
from services.simulator.engine.rogue_agents import flood, second_machine
from services.simulator.engine.simulated_cloud import (
    SimulatedCloud,
    offering_of,
)
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulated_workload import UNTIL, SimulatedWorkload
from services.simulator.engine.simulation_context import Freeze, SimulationContext
from services.simulator.engine.store_destroyer import StoreDestroyer
from services.simulator.engine.supervised_service import SupervisedService

RESTART_SECONDS: Final = 1.0
"""Until a crashed service is restarted, unless the fault says otherwise."""
STALL_SECONDS: Final = 30.0
"""How long a service stalls, unless the fault says otherwise."""
NOTICE_SECONDS: Final = 120.0
FLOOD_SECONDS: Final = 60.0
EXPIRY_SECONDS: Final = 30.0
"""Until credentials expire: heartbeats say so before."""
FLAP_SECONDS: Final = 25.0
FLAP_PAUSE_SECONDS: Final = 10.0
"""Enough for several heartbeats."""
SHOWS_AGAIN_SECONDS: Final = 10.0


class FaultInjector:
    """Injects faults into one fleet."""

    def __init__(
        self,
        simulation: SimulationContext,
        cloud: SimulatedCloud,
        workload: SimulatedWorkload,
        machines: AgentMachines,
        invariants: Invariants,
        services: Sequence[SupervisedService],
        expected: frozenset[str],
    ) -> None:
        """Inject into these; `expected` nodes may get faults before they exist."""
        self._simulation = simulation
        self._cloud = cloud
        self._workload = workload
        self._machines = machines
        self._invariants = invariants
        self._services = services
        self._expected = expected
        self._pending: dict[str, list[InjectedFault]] = {}
        """Expected node -> its faults, injected when its machine is made."""
        self._restarts = CloudRestarts(simulation, machines)
        self._chance = simulation.chance("targets")
        self._timers: set[asyncio.TimerHandle] = set()
        self._cloud_faults = CloudFaults(simulation, cloud, machines, self._in)
        cut_all, lost = partial(self._cut, EVERY_CONNECTION), invariants.on_lost
        self._destroyer = StoreDestroyer(simulation, cut_all, lost, self._restart_all)
        workload.on_uncordoned = lambda node: self._in(
            SHOWS_AGAIN_SECONDS, partial(machines.show_again, node)
        )
        cloud.on_cut_off = self._cut

    def inject(self, fault: InjectedFault) -> str:
        """Inject a fault; returns why part of it has no effect, or nothing."""
        if fault.target == CLOUD and fault.kind == "preemption":
            return self._preempt_some(fault)
        if fault.target not in FAULTS_OF:
            return self._inject_nodes(fault)
        self._simulation.note(f"injected: {fault}")
        match fault.target:
            case "cloud":
                self._cloud_faults.inject(fault)
            case "workload":
                until = float("inf") if fault.seconds is None else self._after(fault.seconds)
                setattr(self._workload, UNTIL[fault.kind], until)
            case _ if fault.kind in STORE_LOSSES | WHOLE_STORE:
                self._destroyer.inject(fault)
            case _ if fault.kind == "crash":
                self._crash(fault)
            case _ if fault.kind in ("stall", "freeze"):
                self._stall(fault)
            case _ if fault.kind == "fatal_message":
                armed = self._simulation.fatal_messages.armed
                armed[fault.target] = armed.get(fault.target, 0) + fault.count
            case _:
                self._degrade(fault)
        return ""

    def recover(self, target: str, kind: str = "") -> None:
        """End one kind of fault of a target; empty: all of them."""
        if target == CLOUD and kind == "preemption":
            target = ALL
        if target in FAULTS_OF:
            self._simulation.note(f"{target} recovers")
            self._recover_part(target, kind)
        else:
            names = self._machines.names() if target == ALL else [target]
            for machine in filter(None, map(self._machines.machine_of, names)):
                self._restarts.withdraw(machine, kind)
                self._machines.recover(machine, kind)

    def end_all(self) -> None:
        """End every fault except those of machines."""
        self._simulation.note("no further fault is injected")
        self._destroyer.end()
        self._simulation.fatal_messages.end()
        self._simulation.network.clear()
        self._simulation.server.refusing.clear()
        self._update_connections()
        self._cloud_faults.recover("")
        self._workload.recover()
        for each in self._services:
            if each.process is not None:
                each.process.dies_after = each.process.stalls_after = None
                each.process.freezes_after = None
            each.start()

    def on_made(self, name: str) -> None:
        """Inject the faults that were waiting for a node's machine."""
        self._expected -= {name}
        for fault in self._pending.pop(name, ()):
            self._inject_node(name, fault)

    def _in(self, seconds: float, action: Callable[[], Any]) -> None:
        self._timers.add(asyncio.get_running_loop().call_later(seconds, action))

    def _after(self, seconds: float) -> float:
        return self._simulation.now() + seconds

    # --- machines -------------------------------------------------------------------------------

    def _inject_nodes(self, fault: InjectedFault) -> str:
        names = [fault.target]
        if fault.target in (ALL, HALF):
            names = [*dict.fromkeys((*self._machines.names(), *sorted(self._expected)))]
        if fault.target == HALF:
            names = names[::2]
        gone = []
        for name in names:
            if self._machines.machine_of(name) is None and name in self._expected:
                self._pending.setdefault(name, []).append(fault)
            elif not self._inject_node(name, fault):
                gone.append(name)
        return f"no fault was injected: {', '.join(gone)} no longer exists" if gone else ""

    def _inject_node(self, name: str, fault: InjectedFault) -> bool:
        """Inject into one node; False: it has no machine."""
        machine = self._machines.machine_of(name)
        if machine is None:
            self._simulation.note(f"{name} has no machine: no fault is injected")
            return False
        match fault.kind:
            case "deleted":
                machine.broken = True
                self._cloud.vanish(machine.instance.provider_id)
            case "hang":
                self._machines.hang(machine, math.inf if fault.seconds is None else fault.seconds)
            case "credentials_expired":
                machine.refused_from = self._after(EXPIRY_SECONDS)
                machine.refused_until = machine.refused_from + (fault.seconds or math.inf)
                if fault.seconds is None:
                    self._invariants.broken_nodes.add(machine.name)
            case "flapping":
                for number in range(fault.count):
                    seconds = fault.seconds or FLAP_SECONDS
                    again = partial(self._machines.hang, machine, seconds)
                    self._in(number * (seconds + FLAP_PAUSE_SECONDS), again)
            case "repeated_facts":
                self._machines.repeat(machine, fault.count)
            case "flood" | "second_machine":
                self._misbehave(machine, fault)
            case "false_report":
                failure = self._failure(replace(fault, kind="xid_error"))
                self._invariants.misreported.add(machine.name)
                self._machines.fail(machine, failure)
                machine.failures.pop(failure.name)
                machine.broken = machine.unfit
            case _:
                self._break(machine, fault)
        return True

    def _misbehave(self, machine: SimulatedMachine, fault: InjectedFault) -> None:
        """Have an agent flood the bus, or another machine use the node's ID."""
        if fault.kind == "flood":
            self._invariants.flooding.add(machine.name)
            machine.process.spawn(flood(machine, fault.count, fault.seconds or FLOOD_SECONDS))
        else:
            machine.process.spawn(second_machine(machine, fault.count, fault.xid_code))

    def break_machine(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """Add a failure to a machine, and let the invariants know of it."""
        if failure.kind in RECLAIMS:
            self._invariants.preempted.add(machine.name)
        else:
            self._invariants.broken_nodes.add(machine.name)
        self._machines.fail(machine, failure)

    def _break(self, machine: SimulatedMachine, fault: InjectedFault) -> None:
        """Add a failure to a machine for as long as the fault lasts."""
        if fault.kind in ANNOUNCED:
            self._restarts.announce(machine, fault)
            return
        if fault.kind == "stopped":
            self._cloud.machines[machine.instance.provider_id].stopped = True
            fault = replace(fault, kind="power_off")
        failure = self._failure(fault)
        if fault.momentary and fault.xid_code in HARMLESS_XIDS:
            self._machines.fail(machine, failure)  # no reason to take the node out of service
        else:
            self.break_machine(machine, failure)
        if fault.momentary:
            machine.failures.pop(failure.name)
            machine.broken = machine.unfit
        elif failure.kind in RECLAIMS:
            self._in(failure.seconds, partial(self._take, machine, failure))
        elif fault.seconds is not None:
            self._in(fault.seconds, partial(self._pass, machine, failure))

    def _failure(self, fault: InjectedFault) -> HardwareFailure:
        return HardwareFailure(
            kind=fault.kind,
            at=self._simulation.now(),
            began=self._simulation.clock.now(),
            xid_code=fault.xid_code,
            gpu_index=fault.gpu_index,
            message=fault.message,
            job=fault.job,
            temperature=fault.temperature,
            count=fault.count,
            fixed_by=fault.fixed_by,
            seconds=NOTICE_SECONDS if fault.seconds is None else fault.seconds,
        )

    def _preempt_some(self, fault: InjectedFault) -> str:
        """The cloud announces that it takes its oldest machines of a place."""
        found = [
            each.instance.name
            for each in self._cloud.machines.values()
            if not each.stopping and fault.selector.covers(offering_of(each))
        ][: fault.count]
        for name in found:
            self._inject_node(name, fault)
        short = len(found) < fault.count
        return f"{len(found)} exist there, and {fault.count} were to be taken" if short else ""

    def _take(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """The cloud takes a machine, unless it has withdrawn the notice."""
        if machine.failures.get(failure.name) is failure:
            self._cloud.vanish(machine.instance.provider_id)

    def _pass(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """A failure ends by itself, unless another of its kind has begun since."""
        if machine.failures.get(failure.name) is failure:
            self._machines.recover(machine, failure.name)

    # --- services and connections ---------------------------------------------------------------

    def _replicas(self, target: str) -> list[SupervisedService]:
        return [e for e in self._services if target in (BROKER, e.name, e.name.split("/")[0])]

    def _crash(self, fault: InjectedFault) -> None:
        service = self._chance.choice(self._replicas(fault.target))
        seconds = RESTART_SECONDS if fault.seconds is None else fault.seconds
        if not fault.after_effects:
            service.crash()
            self._in(seconds, service.start)
        elif service.process is not None and not service.process.dead:
            process = service.process
            process.dies_after = process.effects + fault.after_effects
            process.died = lambda: self._in(seconds, service.start)

    def _restart_all(self, seconds: float) -> None:
        for service in self._services:
            service.crash()
            self._in(seconds, service.start)

    def _stall(self, fault: InjectedFault) -> None:
        seconds = STALL_SECONDS if fault.seconds is None else fault.seconds
        if fault.kind == "freeze":
            freeze = Freeze(fault.lease, fault.after_effects, seconds, fault.effect == "after")
        if fault.kind == "freeze" and freeze.answered:  # of whichever gets the lease
            for each in self._replicas(fault.target):
                if each.process is not None:
                    each.process.freezes_after = freeze
            return
        process = self._chance.choice(self._replicas(fault.target)).process
        if process is None or process.dead:
            return
        if fault.kind == "freeze":
            process.freezes_after = freeze
        elif fault.after_effects:
            process.stalls_after = process.effects + fault.after_effects, seconds
        else:
            process.stall(seconds)

    def _degrade(self, fault: InjectedFault) -> None:
        names = [each.name for each in self._replicas(fault.target)]
        if fault.kind == "refused_writes":
            self._refuse_writes(fault.stream, fault.seconds)
            return
        if fault.kind == "restart":
            self._simulation.server.lose_memory()
            self._invariants.heartbeats_lost()
        if fault.kind in ("network", "restart"):
            self._cut(EVERY_CONNECTION if fault.target == BROKER else names[0], fault.seconds)
            return
        table: dict[str, float] = getattr(self._simulation.network, fault.kind)
        for name in names:
            table[name] = fault.share
            if fault.seconds is not None:
                self._in(fault.seconds, partial(table.pop, name, None))

    def _cut(self, key: str, seconds: float | None) -> None:
        cut = self._simulation.network.cut
        cut[key] = cut.get(key, 0) + 1
        self._update_connections()
        if seconds is not None:
            self._in(seconds, partial(self._reconnect, key))

    def _refuse_writes(self, stream: str, seconds: float | None) -> None:
        refusing = self._simulation.server.refusing
        refusing[stream] = refusing.get(stream, 0) + 1
        if seconds is not None:
            self._in(seconds, partial(self._accept_writes, stream))

    def _accept_writes(self, stream: str) -> None:
        refusing = self._simulation.server.refusing
        if stream in refusing:
            refusing[stream] -= 1
            if refusing[stream] <= 0:
                del refusing[stream]
                self._simulation.note(f"{stream} takes messages again")

    def _reconnect(self, key: str) -> None:
        cut = self._simulation.network.cut
        if key in cut:
            cut[key] -= 1
            if cut[key] <= 0:
                del cut[key]
            self._simulation.note(f"connection of {key} is back")
            self._update_connections()

    def _update_connections(self) -> None:
        processes = [each.process for each in self._services if each.process is not None]
        processes += [node.process for node in self._machines.nodes.values()]
        for process in processes:
            if not process.dead:
                process.update_connection()

    # --- the end of faults -----------------------------------------------------------------------

    def _recover_part(self, target: str, kind: str) -> None:
        if target == CLOUD:
            self._cloud_faults.recover(kind)
        elif target == WORKLOAD:
            self._workload.recover()
            self._workload.end_drains()
        else:
            names = [each.name for each in self._replicas(target)]
            if target == BROKER and kind not in ("network", "restart"):
                self._simulation.server.refusing.clear()
            for name in (EVERY_CONNECTION,) if target == BROKER else names:
                self._simulation.network.forget(name)
            self._update_connections()
            for each in self._replicas(target) if target != BROKER else ():
                each.start()
