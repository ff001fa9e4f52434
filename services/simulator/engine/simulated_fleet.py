"""Runs the real services over a simulated cloud, machines and workload system.

Fuzz campaigns, scenarios and stress runs drive it. The invariants are checked after every step.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.messages import encode
from schemas.operations import ServiceOrder
from schemas.pool_records import FLEET_KEY, FleetRecord, PoolRecord, pool_key
from schemas.settings import Settings
from schemas.sweeps import SweepRequest
from schemas.topology import LEASES, POOLS
from services.bus.protocol.endpoint_replies import reply_data
from services.bus.topology_setup import set_up
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.notifier.workload.workload_notifier import NodeReference
from services.pool_manager.service import build as build_pool_manager
from services.primitives.errors import AnswerError, BusError, NavarchError
from services.provisioner.provider_client.provider import Instance
from services.provisioner.removal.sweep_endpoints import NOW as SWEEP_NOW
from services.provisioner.removal.sweep_endpoints import SECONDS_MAX as SWEEP_SECONDS_MAX
from services.provisioner.service import build as build_provisioner
from services.runtime.process import Build
from services.simulator.engine.agent_machines import BOOT_SECONDS, AgentMachines
from services.simulator.engine.budget_invariants import BudgetInvariants, SlowWaveInvariants
from services.simulator.engine.demand_invariants import DemandInvariants
from services.simulator.engine.fault_injector import FaultInjector
from services.simulator.engine.fleet_at_rest import FleetAtRest
from services.simulator.engine.gang_invariants import (
    GangInvariants,
    PlacementInvariants,
    RackInvariants,
)
from services.simulator.engine.gap_invariants import GapInvariants
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.invariants import Invariants, ViolationError
from services.simulator.engine.market_invariants import (
    AdoptionInvariants,
    InterruptionInvariants,
    MarketInvariants,
)
from services.simulator.engine.order_invariants import OrderInvariants
from services.simulator.engine.quarantine_invariants import QuarantineInvariants
from services.simulator.engine.renewal_invariants import IdleInvariants, RenewalInvariants
from services.simulator.engine.restart_invariants import RestartInvariants, WorkloadInvariants
from services.simulator.engine.silence_invariants import SilenceInvariants
from services.simulator.engine.simulated_alerts import QuietTime, RefusedWrites, SimulatedOperators
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_gangs import SimulatedGangs
from services.simulator.engine.simulated_group import GroupSpec, SimulatedGroup, SimulatedRacks
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    FLEET,
    SimulatedProcess,
    SimulationContext,
    StoredRecords,
)
from services.simulator.engine.size_invariants import SizeInvariants
from services.simulator.engine.stop_invariants import StopInvariants
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.engine.write_invariants import WriteInvariants

BUILDS: Final[dict[str, Build]] = {
    "health-monitor": build_health_monitor,
    "pool-manager": build_pool_manager,
    "provisioner": build_provisioner,
    "notifier": build_notifier,
}
FIRST_BOOT_SECONDS: Final = (0.5, 2.0)
"""Of the named nodes: a scenario's times assume that they are in service quickly."""
TAIL_LINES: Final = 60
ORDER_TRIES_MAX: Final = 20
ORDER_AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSetup:
    """Describes what a fleet starts with."""

    settings: Settings
    spec_of: Callable[[Instance], MachineSpec] = lambda _: MachineSpec()
    records: tuple[PoolRecord, ...] = ()
    """Of pools that begin with named nodes."""
    nodes: frozenset[str] = frozenset()
    """The named nodes."""
    replicas: int = 1
    """Of each service."""
    idempotent: bool = True
    """Whether the cloud knows idempotency tokens."""
    list_lag_seconds: float = 0.0
    reboots: bool = False
    """Whether the cloud can reboot a machine whose agent is gone."""
    restarts_cold: bool = False
    """Whether the cloud can switch machines off and on."""
    skew_seconds: float = 0.0
    """How wrong the clocks of services and machines can be, either way."""
    group: GroupSpec | None = None
    """Makes the machines, which Navarch adopts; None: Navarch launches them."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that did not hold: when, what, and the history of the nodes it names."""

    at: float
    text: str
    history: tuple[str, ...] = ()


class SimulatedFleet:
    """Runs the services and everything around them. Used inside a virtual loop."""

    def __init__(
        self,
        simulation: SimulationContext,
        setup: FleetSetup,
        *,
        machines: AgentMachines | None = None,
        workload: SimulatedWorkload | None = None,
    ) -> None:
        self.setup = setup
        self.simulation = simulation
        simulation.skew_seconds = setup.skew_seconds
        CURRENT_SIMULATION.set(simulation)
        self.cloud = SimulatedCloud(simulation, setup.idempotent, setup.list_lag_seconds)
        self.workload = workload or SimulatedWorkload(simulation)
        self.records = StoredRecords(simulation.server)
        self._racks = SimulatedRacks(setup.spec_of, setup.settings.pools, self.records)
        self.cloud.place_elsewhere = self._racks.place_elsewhere
        self.machines = machines or AgentMachines(simulation, self._racks.spec_of)
        self.operators = SimulatedOperators()
        simulation.parts |= {
            "cloud": self.cloud,
            "workload": self.workload,
            "operators": self.operators,
        }
        self.invariants = Invariants(simulation, self.cloud, self.workload, self.machines)
        self.budget = BudgetInvariants(simulation, self.cloud, self.invariants)
        PlacementInvariants(simulation, self.invariants)
        self.rack_invariants = RackInvariants(simulation, self.invariants)
        WorkloadInvariants(simulation, self.workload, self.invariants)
        QuarantineInvariants(simulation, self.machines, self.invariants)
        for each in (GapInvariants, SizeInvariants, SlowWaveInvariants, RenewalInvariants):
            each(simulation, self.invariants)
        MarketInvariants(simulation, self.cloud, self.invariants)
        InterruptionInvariants(simulation, self.invariants)
        RestartInvariants(simulation, self.cloud, self.invariants)
        WriteInvariants(simulation, self.invariants, adopts=lambda: self.cloud.adopts)
        self.stops = StopInvariants(simulation, self.invariants, setup.skew_seconds)
        self.at_rest = FleetAtRest(
            *(simulation, self.cloud, self.workload, self.machines, self.operators), self.invariants
        )
        self.services = [
            SupervisedService(
                simulation, name if number == 1 else f"{name}/{number}", build, setup.settings
            )
            for name, build in BUILDS.items()
            for number in range(1, setup.replicas + 1)
        ]
        RefusedWrites(simulation, self.operators, self.services, self.invariants)
        self.demand = self._queues_and_silence()
        self._endings = self._ending_rules()
        self._resets: list[Callable[[str], None]] = []
        """What must hold when Navarch resets a machine."""
        self.gangs = self._gangs()
        self.faults = FaultInjector(
            *(simulation, self.cloud, self.workload, self.machines),
            *(self.invariants, self.services, setup.nodes),
        )
        self._boots = simulation.chance("fleet")
        if setup.nodes:
            self.machines.booting = self._boot_seconds
        self.cloud.place = self._place
        self.cloud.on_made = self._on_made
        self.cloud.on_ending = self._on_ending
        self.cloud.on_gone = self._on_gone
        self.cloud.restarts_cold = setup.restarts_cold
        self.machines.on_reset = self._on_reset
        if setup.reboots or setup.restarts_cold:
            self.cloud.on_rebooted = self.machines.reboot
        self.group = self._adopt_from(setup.group) if setup.group is not None else None
        self.started = self._adopts = False

    # --- start and end ----------------------------------------------------------------------------

    async def open(self) -> None:
        """Set up the bus."""
        self.operator = SimulatedProcess(self.simulation, "operator")
        await set_up(self.operator.bus, self.simulation.clock, replicas=1)
        # The pool-manager would draw a random ID: this one is the same in every run.
        await self.operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))

    async def start(self) -> None:
        """Start the services; a second call boots the machines that are powered off."""
        if self.started:
            for node in list(self.machines.nodes.values()):
                if node.powered_off:
                    self.machines.recover(node, "power_off")
                    if node.powered_off:
                        self.machines.restart(node)
            return
        self.started = True
        for record in self.setup.records:
            await self.operator.bus.create(POOLS, pool_key(record.name), encode(record))
        for each in self.services:
            each.start()
        if self.group is not None:
            self.group.start()
        if isinstance(self.workload, SimulatedGangs):
            self.workload.begin(self.machines)

    def power_off(self) -> None:
        """Switch off every machine; their instances still exist."""
        for node in list(self.machines.nodes.values()):
            self.machines.power_off(node)

    async def run(self, work: Awaitable[None]) -> Violation | None:
        """Run an input until it ends or an invariant is violated."""
        violated = self.invariants.violated = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(work)
        await asyncio.wait({task, violated}, return_when=asyncio.FIRST_COMPLETED)
        at, found = self.simulation.now(), self.invariants.violation
        if found is None:
            try:
                await task
            except ViolationError as error:
                found = error
        task.cancel()
        self.simulation.server.close()
        if found is None:
            return None
        tail = self.simulation.history.tail(TAIL_LINES, found.about)
        return Violation(round(at, 3), str(found), tuple(tail))

    # --- parts that not every fleet has -----------------------------------------------------------

    def _queues_and_silence(self) -> DemandInvariants:
        """Check growth for jobs that wait, and that silent nodes are tried."""
        self.budget.has_no_work = self._has_no_work
        quiet, known = QuietTime(self.simulation, self.services), self.invariants
        SilenceInvariants(self.simulation, known, quiet, lambda: self.stops.in_force)
        return DemandInvariants(self.simulation, self.workload, self.machines, known)

    def _gangs(self) -> GangInvariants | None:
        """What must hold of jobs of several nodes, where the workload system has them."""
        workload = self.workload
        if not isinstance(workload, SimulatedGangs):
            return None
        quiet = QuietTime(self.simulation, self.services)
        gangs = GangInvariants(
            *(self.simulation, workload, quiet, self.invariants), lambda: self.stops.in_force
        )
        IdleInvariants(self.simulation, workload, self.invariants)
        self.budget.share_job = gangs.share_job
        self._resets.append(gangs.on_reset)
        return gangs

    def _adopt_from(self, spec: GroupSpec) -> SimulatedGroup:
        """Have others make the machines."""
        adoption = AdoptionInvariants(
            *(self.simulation, self.workload, self.machines, self.invariants),
            observes=self.setup.settings.pools[spec.pool].mode == "observe",
        )
        self.cloud.adopts = True
        self.cloud.on_made = adoption.on_launched
        self._endings.append(adoption.on_ending)
        self._resets.append(adoption.on_reset)
        self.workload.is_another = self._is_another
        return SimulatedGroup(self.simulation, self.cloud, spec, self._on_joined)

    def _has_no_work(self, node: str) -> bool:
        """Return whether a node's GPUs rest, and nothing runs there."""
        machine = self.machines.machine_of(node)
        rests = machine is not None and machine.gpu_use is not None and not machine.gpu_use.busy
        return rests and not self.workload.work_on(node).running

    def _is_another(self, node: NodeReference) -> bool:
        """As a workload system compares them: without an identity the name alone counts."""
        machine = self.machines.machine_of(node.node)
        if machine is None or not node.provider_id:
            return False
        return machine.instance.provider_id != node.provider_id

    def _on_joined(self, instance: Instance) -> None:
        """Others have made a machine."""
        self.invariants.forget(instance.name)
        self.workload.join(instance.name)
        self.machines.appear(instance)
        self.faults.on_made(instance.name)

    # --- machines ---------------------------------------------------------------------------------

    def _boot_seconds(self, instance: Instance) -> float:
        machine = self.machines.machine_of(instance.name)
        first = machine is None or machine.boots == 1
        named = instance.name in self.setup.nodes
        return self._boots.uniform(*(FIRST_BOOT_SECONDS if named and first else BOOT_SECONDS))

    def _place(self, instance: Instance) -> Instance:
        """Place a machine where the launch asks, else where its spec says."""
        spec, named = self.machines.spec_of(instance), instance.name in self.setup.nodes
        asked = instance.region or instance.zone
        return msgspec.structs.replace(
            instance,
            region=instance.region or ("" if asked else spec.region),
            zone=instance.zone or ("" if asked else spec.zone),
            instance_type=(spec.instance_type if named else "") or instance.instance_type,
        )

    def _on_made(self, instance: Instance) -> None:
        self.invariants.on_made(instance)
        self.machines.appear(instance)
        self.faults.on_made(instance.name)

    def _ending_rules(self) -> list[Callable[[Instance], None]]:
        orders = OrderInvariants(self.simulation, self.machines, self.invariants)
        return [self.invariants.on_ending, orders.on_ending]

    def _on_ending(self, instance: Instance) -> None:
        for each in self._endings:
            each(instance)
        self.machines.vanish(instance)
        self.workload.leave(instance.name)

    def _on_gone(self, instance: Instance) -> None:
        self._racks.gone(instance)
        self.machines.vanish(instance)

    def _on_reset(self, node: str, by_cloud: bool) -> None:
        """The cloud waits for no drain: the invariants are about what Navarch resets."""
        for each in self._resets if not by_cloud else ():
            each(node)
        if self.gangs is not None:
            self.workload.interrupt(node)

    # --- operators --------------------------------------------------------------------------------

    def request(self, pool: str, verb: str, body: dict[str, Any]) -> None:
        """Publish an operator's request."""
        self.simulation.note(f"the operator requests {verb} of {pool}: {body}")
        data = msgspec.json.encode({"by": "operator", **body})
        self._publish(subjects.pool_request(pool, verb), data)

    def replay(self) -> None:
        """Run the commands of the alerts about messages that were set aside."""
        for command in self.operators.commands():
            self.simulation.note(f"the operator runs {' '.join(command)}")
            match command:
                case ["nats", "pub", subject, data]:
                    self._publish(subject, data.encode())
                case ["nats", "kv", "del", _, key]:
                    self.operator.spawn(self.operator.bus.delete(LEASES, key))

    def _publish(self, subject: str, data: bytes) -> None:
        async def publish() -> None:
            try:
                await self.operator.bus.publish(subject, data)
            except BusError as error:
                self.simulation.note(f"what the operator publishes on {subject} is lost: {error}")

        self.operator.spawn(publish())

    def order(self, order: ServiceOrder[Any], body: msgspec.Struct) -> None:
        """Give a service an order; the operator repeats it while no service answers."""
        self.simulation.note(f"the operator orders {order.name}: {body}")

        async def give() -> None:
            for _ in range(ORDER_TRIES_MAX):
                try:
                    reply = await self.operator.bus.request(
                        subjects.order(order.name, "operator"),
                        encode(body),
                        timeout_seconds=order.seconds_max,
                    )
                    reply_data(reply)
                except AnswerError as error:
                    self.simulation.note(f"{order.name} is refused: {error}")
                    return
                except BusError as error:
                    self.simulation.note(f"{order.name} is not answered: {error}")
                    await asyncio.sleep(ORDER_AGAIN_SECONDS)
                else:
                    return

        self.operator.spawn(give())

    def resolve(self, orphans: Sequence[str], held: Sequence[str]) -> None:
        """Run `navarch sweep` that adopts orphans, and removes what is held; one at a time."""
        if self._adopts or not (orphans or held):
            return
        self._adopts = True
        self.simulation.note(f"the operator adopts {orphans}, and removes {held}")
        data = encode(SweepRequest(adopt=tuple(orphans), terminate=tuple(held)))

        async def sweep() -> None:
            subject = subjects.order(SWEEP_NOW, "operator")
            try:
                reply = await self.operator.bus.request(
                    subject, data, timeout_seconds=SWEEP_SECONDS_MAX
                )
                reply_data(reply)
            except NavarchError as error:
                self.simulation.note(f"the sweep failed: {error}")
            self._adopts = False

        self.operator.spawn(sweep())

    @property
    def defects(self) -> list[str]:
        """Return why services ended by themselves."""
        return [
            f"{each.name} ended by itself: {text}"
            for each in self.services
            for text in each.defects
        ]
