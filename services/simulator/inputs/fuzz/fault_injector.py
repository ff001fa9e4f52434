"""Strikes a simulated fleet with the blows of a campaign: what goes wrong, and what people do.

Nothing is decided here but which node, service or saga a blow hits; that is drawn from the seed.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from schemas import subjects
from schemas.duration import Duration
from schemas.messages import encode
from schemas.operator_requests import (
    BreakerRequest,
    DrainRequest,
    HoldRequest,
    NodeRequest,
    Request,
    SagaRequest,
    ScaleRequest,
)
from services.primitives.errors import BusError
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.hardware_failures import HardwareFailure
from services.simulator.engine.invariants import Invariants
from services.simulator.engine.simulated_cloud import CallFailure, SimulatedCloud
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import SimulationContext
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.inputs.fuzz.fuzz_campaign import EVERYBODY, InjectedFault

OPERATOR: Final = "somebody"
REASON: Final = "simulated"
SHOWS_AGAIN_SECONDS: Final = 10.0


class FaultInjector:
    """Everything that a campaign can do to a fleet."""

    def __init__(
        self,
        simulation: SimulationContext,
        pool: str,
        cloud: SimulatedCloud,
        workload: SimulatedWorkload,
        machines: AgentMachines,
        checks: Invariants,
        services: Sequence[SupervisedService],
    ) -> None:
        """Strike these; `operator` must be set before anybody asks for anything."""
        self._simulation = simulation
        self._pool = pool
        self._cloud = cloud
        self._workload = workload
        self._machines = machines
        self._checks = checks
        self._services = services
        self._chance = simulation.chance("targets")
        workload.on_uncordoned = self._works_again
        cloud.on_cut_off = self._cut
        self._later: set[asyncio.TimerHandle] = set()
        self.operator: SimulatedProcess | None = None

    def strike(self, blow: InjectedFault) -> None:
        """Let one blow fall."""
        self._simulation.note(f"campaign: {blow}")
        match blow.kind:
            case (
                "fault"
                | "mild-fault"
                | "false-fault"
                | "repeats"
                | "power-off"
                | "vanish"
                | "hang"
                | "notice"
            ):
                machine = self._some_machine()
                if machine is not None:
                    self._strike_machine(blow, machine)
            case "kill" | "kill-after-effects":
                self._strike_service(blow)
            case "cut" | "lost-requests" | "lost-answers" | "lost-acks" | "slow":
                self._strike_links(blow)
            case (
                "launch-fails" | "launch-cut-off" | "no-capacity" | "terminate-fails" | "list-fails"
            ):
                self._strike_cloud(blow)
            case "stillborn":
                self._machines.stillborn += 1
            case "faulty":
                self._machines.faulty += 1
            case "workload-away":
                self._workload.away_until = self._simulation.now() + blow.seconds
            case "endless-drain":
                self._workload.endless_until = self._simulation.now() + blow.seconds
            case "scale" | "replace" | "drain" | "cordon" | "hold" | "cancel" | "breaker":
                self._wish(blow)

    def mend(self) -> None:
        """Nothing goes wrong any more, and people put right what they have done."""
        self._simulation.note("nothing goes wrong any more")
        self._simulation.network.clear()
        self._connections()
        self._cloud.call_failures.clear()
        self._machines.stillborn = self._machines.faulty = 0
        self._workload.away_until = self._workload.endless_until = 0.0
        for each in self._services:
            if each.process is not None:
                each.process.dies_after = None
            each.start()
        self.ask("breaker-close", BreakerRequest(reason=REASON, by=OPERATOR))

    # --- machines -------------------------------------------------------------------------------

    def _some_machine(self) -> SimulatedMachine | None:
        serving = self._machines.serving()
        return self._chance.choice(serving) if serving else None

    def _strike_machine(self, blow: InjectedFault, machine: SimulatedMachine) -> None:
        match blow.kind:
            case "vanish":
                self._simulation.note(f"cloud loses {machine.name}")
                machine.broken = True
                self._cloud.vanish(machine.instance.provider_id)
            case "hang":
                self._machines.hang(machine, blow.seconds)
            case "power-off":
                self._checks.struck.add(machine.name)
                self._break(machine, "power_off", fixed_by="reboot")
            case "notice":
                self._announce(machine, blow)
            case "repeats":
                self._machines.repeat(machine, blow.number)
            case "mild-fault" | "false-fault":
                if blow.kind == "false-fault":
                    self._checks.struck.add(machine.name)
                failure = self._break(machine, "xid_error", xid_code=blow.number)
                # It shows once and is no failure of the machine.
                machine.failures.pop(failure.kind)
                machine.broken = machine.unfit
            case _:
                self._checks.struck.add(machine.name)
                self._break(machine, "xid_error", xid_code=blow.number, fixed_by=blow.how)

    def _break(self, machine: SimulatedMachine, kind: str, **about: Any) -> HardwareFailure:
        now = self._simulation.now()
        failure = HardwareFailure(kind=kind, at=now, began=self._simulation.clock.now(), **about)
        self._machines.fail(machine, failure)
        return failure

    def _announce(self, machine: SimulatedMachine, blow: InjectedFault) -> None:
        """The cloud takes a machine in so many seconds, or withdraws its word in half of them.

        By then the machine may have a failure of its own.
        """
        self._checks.announced.add(machine.name)
        failure = self._break(machine, "preemption", seconds=blow.seconds)
        if not blow.how:
            self._in(blow.seconds, partial(self._cloud.vanish, machine.instance.provider_id))
            return
        self._in(blow.seconds / 2, partial(self._withdraw, machine, failure))
        if blow.how == "withdrawn-broken":
            self._in(blow.seconds / 4, partial(self._break_standing, machine, blow))

    def _break_standing(self, machine: SimulatedMachine, blow: InjectedFault) -> None:
        if machine.instance in self._cloud.standing() and not machine.process.dead:
            self._checks.struck.add(machine.name)
            self._break(machine, "xid_error", xid_code=blow.number)

    def _withdraw(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        if machine.failures.get(failure.kind) is failure and not machine.process.dead:
            self._machines.recover(machine, failure.kind)

    # --- services and links ---------------------------------------------------------------------

    def _strike_service(self, blow: InjectedFault) -> None:
        struck = [each for each in self._services if each.name.split("/")[0] == blow.target]
        service = self._chance.choice(struck)
        if blow.kind == "kill":
            service.crash()
            self._in(blow.seconds, service.start)
        elif service.process is not None and not service.process.dead:
            process = service.process
            process.dies_after = process.effects + blow.number
            process.died = lambda: self._in(blow.seconds, service.start)

    def _strike_links(self, blow: InjectedFault) -> None:
        network = self._simulation.network
        names = self._members(blow.target)
        if blow.kind == "cut":
            self._cut(EVERYBODY if blow.target == EVERYBODY else names[0], blow.seconds)
            return
        table = {
            "lost-requests": network.lost_requests,
            "lost-answers": network.lost_answers,
            "lost-acks": network.lost_acks,
            "slow": network.slow,
        }[blow.kind]
        for name in names:
            table[name] = blow.share
            self._in(blow.seconds, partial(table.pop, name, None))

    def _cut(self, key: str, seconds: float) -> None:
        cut = self._simulation.network.cut
        cut[key] = cut.get(key, 0) + 1
        self._connections()
        self._in(seconds, lambda: self._join(key))

    def _members(self, target: str) -> list[str]:
        return [
            each.name
            for each in self._services
            if target in (EVERYBODY, each.name, each.name.split("/")[0])
        ]

    def _join(self, key: str) -> None:
        cut = self._simulation.network.cut
        if key in cut:
            cut[key] -= 1
            if cut[key] <= 0:
                del cut[key]
            self._simulation.note(f"connection of {key} is back")
            self._connections()

    def _connections(self) -> None:
        """Tell every connection whether it stands."""
        processes = [each.process for each in self._services if each.process is not None]
        processes += [node.process for node in self._machines.nodes.values()]
        for process in processes:
            if not process.dead:
                process.connection_changed()

    def _strike_cloud(self, blow: InjectedFault) -> None:
        how: Any = blow.how or "before"
        kind: Any = blow.target or "TRANSIENT"
        match blow.kind:
            case "no-capacity":
                self._cloud.order(CallFailure("provision", "CAPACITY"), blow.seconds)
            case "launch-fails":
                self._cloud.order(CallFailure("provision", kind, how), 0)
            case "launch-cut-off":
                trouble = CallFailure("provision", how="cut-off", seconds=blow.seconds)
                self._cloud.order(trouble, 0)
            case "terminate-fails":
                self._cloud.order(CallFailure("terminate", "TRANSIENT", how), 0)
            case _:
                self._cloud.order(CallFailure("list", "TRANSIENT", how), blow.seconds)

    # --- people ---------------------------------------------------------------------------------

    def _wish(self, blow: InjectedFault) -> None:
        """Ask what a person asks."""
        match blow.kind:
            case "scale":
                self.ask("scale", ScaleRequest(nodes=blow.number, by=OPERATOR))
            case "cancel":
                if self._checks.open:
                    saga = self._chance.choice(list(self._checks.open))
                    self.ask("cancel", SagaRequest(saga=saga, by=OPERATOR))
            case "breaker":
                self.ask("breaker-open", BreakerRequest(reason=REASON, by=OPERATOR))
                closing = BreakerRequest(reason=REASON, by=OPERATOR)
                self._in(blow.seconds, partial(self.ask, "breaker-close", closing))
            case _:
                machine = self._some_machine()
                if machine is not None:
                    self._wish_about(blow, machine.name)

    def _wish_about(self, blow: InjectedFault, node: str) -> None:
        match blow.kind:
            case "replace":
                self.ask("replace", DrainRequest(node=node, by=OPERATOR))
            case "hold":
                held = HoldRequest(
                    node=node, for_=Duration(blow.seconds), reason=REASON, by=OPERATOR
                )
                self.ask("hold", held)
            case "drain":
                self._checks.left_cordoned[node] = None
                self.ask("drain", DrainRequest(node=node, by=OPERATOR))
            case _:
                self._checks.left_cordoned[node] = None
                self.ask("cordon", NodeRequest(node=node, reason=REASON, by=OPERATOR))
                self._in(blow.seconds, partial(self.give_back, node))

    def give_back(self, node: str) -> None:
        """Put a node into service again."""
        self.ask("uncordon", NodeRequest(node=node, by=OPERATOR))

    def _works_again(self, node: str) -> None:
        """What is wrong with a machine shows again under work."""
        self._in(SHOWS_AGAIN_SECONDS, partial(self._machines.show_again, node))

    def ask(self, verb: str, request: Request) -> None:
        """Publish what a person asks of the pool."""
        operator = self.operator
        assert operator is not None

        async def ask() -> None:
            subject = subjects.pool_request(self._pool, verb)
            try:
                await operator.bus.publish(subject, encode(request))
            except BusError as error:
                self._simulation.note(f"nobody hears {verb}: {error}")

        operator.spawn(ask())

    def _in(self, seconds: float, what: Callable[[], Any]) -> None:
        handle = asyncio.get_running_loop().call_later(seconds, what)
        self._later.add(handle)
