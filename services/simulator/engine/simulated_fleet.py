"""A stage: the real services over a simulated world, and everything that can be done to it.

Scenarios, the interactive mode and stress runs play on it. It decides nothing about what happens;
it makes it happen, and says how things stand.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.launch_offers import Offering
from schemas.messages import Message, decoder, encode
from schemas.node_events import node_codec
from schemas.node_records import NodeRecord
from schemas.pool_events import pool_codec
from schemas.pool_records import FLEET_KEY, FleetRecord, PoolRecord, pool_key
from schemas.saga_log_entries import SagaStarted, saga_codec
from schemas.topology import EVENTS, POOLS, SAGAS
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.pool_manager.autoscaling.metrics_sources import Load
from services.pool_manager.planner.sizing.open_sagas import open_for
from services.pool_manager.service import build as build_pool_manager
from services.primitives.errors import BusError
from services.provisioner.provider_client.provider import Instance
from services.provisioner.service import build as build_provisioner
from services.runtime.process import Build
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec
from services.simulator.engine.scripted_agents import BOOT_SECONDS
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    FLEET,
    SimulationContext,
)
from services.simulator.engine.stored_records import StoredRecords
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.inputs.scenario import cloud_failures
from services.simulator.inputs.scenario import scenario_format as f
from services.simulator.inputs.scenario.initial_fleet import InitialFleet

BUILDS: Final[dict[str, Build]] = {
    "health-monitor": build_health_monitor,
    "pool-manager": build_pool_manager,
    "provisioner": build_provisioner,
    "notifier": build_notifier,
}
STORY_MAX: Final = 50_000
EVERYBODY: Final = "*"
FLEET_BOOT_SECONDS: Final = (0.5, 2.0)
"""Of a node that the scenario names, the first time: its file counts from then on."""
CRASH_SECONDS: Final = 1.0
"""Until a service that was killed is started again."""
NOTICE_SECONDS: Final = 120.0

_pools = decoder(PoolRecord)


class SimulatedFleet:
    """One fleet and its surroundings. To be used inside a virtual loop."""

    def __init__(self, seed: str, beginning: InitialFleet, *, tells: bool = True) -> None:
        """Put it together; nothing runs yet. `tells`: whether it keeps the story."""
        self._beginning = beginning
        self._tells = tells
        self.simulation = SimulationContext(seed)
        CURRENT_SIMULATION.set(self.simulation)
        self._records = StoredRecords(self.simulation.server)
        self.cloud = SimulatedCloud(self.simulation, idempotent=True, list_lag_seconds=0.0)
        self.workload = SimulatedWorkload(self.simulation)
        self.machines = AgentMachines(self.simulation, self._spec_of)
        self.simulation.parts |= {"cloud": self.cloud, "workload": self.workload}
        self.cloud.dress = self._dress
        self.machines.booting = self._boot_seconds
        self._boots = self.simulation.chance("fleet")
        self._pending: dict[str, list[f.FailureParams]] = {}
        """Node of the fleet that has not been made yet -> what is broken when it is."""
        self._were: set[str] = set()
        """Nodes that have been made."""
        self.cloud.on_made = self._made
        self.cloud.on_ending = self.machines.vanish
        self.cloud.on_gone = self.machines.vanish
        self.services = {
            name: SupervisedService(self.simulation, name, build, beginning.configuration)
            for name, build in BUILDS.items()
        }
        self.story: list[tuple[float, Message]] = []
        """What was published about nodes and pools, and when."""
        self.sagas: list[SagaStarted] = []
        self.simulation.watchers.append(self._stored)
        self.started = False

    def _spec_of(self, instance: Instance) -> MachineSpec:
        kinds, others = self._beginning.kinds, self._beginning.others
        return kinds.get(instance.name) or others.get(instance.pool) or MachineSpec()

    def _boot_seconds(self, instance: Instance) -> float:
        """How long a machine takes to boot: one of the scenario's fleet is about to be there."""
        machine = self.machines.named(instance.name)
        first = machine is None or machine.boots == 1
        named = instance.name in self._beginning.kinds
        return self._boots.uniform(*(FLEET_BOOT_SECONDS if named and first else BOOT_SECONDS))

    def _made(self, instance: Instance) -> None:
        """A machine was made; what was broken before it was, is."""
        self._were.add(instance.name)
        self.machines.appear(instance)
        for params in self._pending.pop(instance.name, ()):
            self.break_node(instance.name, params)

    def _dress(self, instance: Instance) -> Instance:
        """Where a machine stands: as the file says of its node, else as the launch asks."""
        kind, named = self._spec_of(instance), instance.name in self._beginning.kinds
        asked = instance.region or instance.zone
        return msgspec.structs.replace(
            instance,
            region=instance.region or ("" if asked else kind.region),
            zone=instance.zone or ("" if asked else kind.zone),
            instance_type=(kind.instance_type if named else "") or instance.instance_type,
        )

    def _stored(self, stream: str, stored: Stored) -> None:
        if not self._tells or len(self.story) >= STORY_MAX:
            return
        if stream == EVENTS.name:
            codec = node_codec if subjects.parse_node(stored.subject) else pool_codec
            message = codec.decode(stored.data)
            if isinstance(message, Message):
                self.story.append((self.simulation.now(), message))
        elif stream == SAGAS.name:
            entry = saga_codec.decode(stored.data)
            if isinstance(entry, SagaStarted):
                self.sagas.append(entry)

    # --- its life -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Set up the bus."""
        self.operator = SimulatedProcess(self.simulation, "operator")
        await set_up(self.operator.bus, self.simulation.clock, replicas=1)
        # The pool-manager would draw its own: this one is the same in every run.
        await self.operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))

    async def start(self) -> None:
        """Start the fleet; the second time, whatever was stopped of it."""
        if self.started:
            for node in list(self.machines.nodes.values()):
                if node.out:
                    self.machines.recover(node, "power_off")
                    if node.out:
                        self.machines.restart(node)
            return
        self.started = True
        for record in self._beginning.records:
            await self.operator.bus.create(POOLS, pool_key(record.name), encode(record))
        for each in self.services.values():
            each.start()

    def stop(self) -> None:
        """Stop every agent of the fleet; the instances stand."""
        for node in list(self.machines.nodes.values()):
            self.machines.power_off(node)

    def close(self) -> None:
        """End it."""
        self.simulation.server.close()

    # --- what happens ---------------------------------------------------------------------------

    def inject(self, target: str, params: f.FailureParams) -> str:
        """Something breaks; why nothing does, where nothing does."""
        if target == f.CLOUD and params.failure_type == "preemption":
            return self._take_some(params)
        if target in f.FAILURES_OF:
            self._trouble(target, params)
            return ""
        gone = []
        coming = [name for name in self._beginning.kinds if name not in self._were]
        for name in dict.fromkeys((*self._names(target), *(coming if target == f.ALL else ()))):
            if self.machines.named(name) is None and name in coming:
                self._pending.setdefault(name, []).append(params)
            elif not self.break_node(name, params):
                gone.append(name)
        return f"nothing breaks: {', '.join(gone)} does not stand any more" if gone else ""

    def break_node(self, name: str, params: f.FailureParams) -> bool:
        """A node's hardware breaks; False: it has none that stands."""
        machine = self.machines.named(name)
        if machine is None:
            self.simulation.note(f"{name} does not stand: nothing breaks")
            return False
        seconds = float(params.duration) if params.duration is not None else NOTICE_SECONDS
        failure = HardwareFailure(
            kind=params.failure_type,
            at=self.simulation.now(),
            began=self.simulation.clock.now(),
            xid_code=params.xid_code,
            gpu_index=params.gpu_index,
            message=params.message,
            job=params.job,
            temperature=params.temperature,
            count=params.count,
            fixed_by=params.fixed_by,
            seconds=seconds,
        )
        if params.failure_type == "deleted":
            self.cloud.vanish(machine.instance.provider_id)
            return True
        self.machines.fail(machine, failure)
        if params.failure_type == "preemption":
            self.later(seconds, partial(self._take, machine, failure))
        elif params.duration is not None:
            self.later(seconds, partial(self.mend, machine, failure))
        return True

    def _take_some(self, params: f.FailureParams) -> str:
        """The cloud announces that it takes some of its machines; why it takes fewer."""
        named = cloud_failures.taken(self.cloud, params)
        for name in named:
            self.break_node(name, params)
        short = len(named) < params.count
        return f"{len(named)} stand there, and {params.count} were to go" if short else ""

    def _take(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """The cloud takes a machine, unless it has withdrawn what it announced."""
        if machine.failures.get(failure.name) is failure:
            self.cloud.vanish(machine.instance.provider_id)

    def mend(self, machine: SimulatedMachine, failure: HardwareFailure) -> None:
        """A failure is over, unless another of its kind has come since."""
        if machine.failures.get(failure.name) is failure:
            self.machines.recover(machine, failure.name)

    def recover(self, target: str, kind: str = "") -> None:
        """A failure is over, or everything that is wrong with the target."""
        if target == f.CLOUD and kind == "preemption":
            target = f.ALL
        if target in f.FAILURES_OF:
            self._trouble_over(target, kind)
        for name in self._names(target):
            if (machine := self.machines.named(name)) is not None:
                self.machines.recover(machine, kind)

    def _names(self, target: str) -> list[str]:
        if target == f.ALL:
            return [node.name for node in self.machines.nodes.values()]
        return [] if target in f.FAILURES_OF else [target]

    def later(self, seconds: float, what: Callable[[], Any]) -> None:
        """Do something then."""
        asyncio.get_running_loop().call_later(seconds, what)

    def _trouble(self, target: str, params: f.FailureParams) -> None:
        kind, lasts = params.failure_type, params.duration
        seconds = float(lasts) if lasts is not None else f.TIME_SECONDS_MAX
        self.simulation.note(f"{target}: {kind}")
        until = self.simulation.now() + seconds
        if target == f.CLOUD:
            cloud_failures.order(self.cloud, self.machines, params)
        elif target == f.WORKLOAD:
            if kind == "network":
                self.workload.away_until = until
            else:
                self.workload.endless_until = until
        elif kind == "crash":
            service = self.services[target]
            service.crash()
            self.later(float(lasts or CRASH_SECONDS), service.start)
        else:
            key = EVERYBODY if target == f.BROKER else target
            self.simulation.network.cut[key] = 1
            self.connections()
            if lasts is not None:
                self.later(seconds, partial(self._trouble_over, target))

    def _trouble_over(self, target: str, kind: str = "") -> None:
        self.simulation.note(f"{target} is well again")
        if target == f.CLOUD:
            cloud_failures.over(self.cloud, self.machines, kind)
        elif target == f.WORKLOAD:
            self.workload.away_until = self.workload.endless_until = 0.0
            self.workload.let_go()
        else:
            self.simulation.network.cut.pop(EVERYBODY if target == f.BROKER else target, None)
            self.connections()
        if target in self.services:
            self.services[target].start()

    def connections(self) -> None:
        """Tell every connection whether it stands."""
        processes = [each.process for each in self.services.values() if each.process is not None]
        processes += [node.process for node in self.machines.nodes.values()]
        for process in processes:
            if not process.dead:
                process.connection_changed()

    def ask(self, pool: str, verb: str, body: dict[str, Any]) -> None:
        """Ask what an operator asks."""
        self.simulation.note(f"somebody asks {pool}: {verb} {body}")

        async def ask() -> None:
            data = msgspec.json.encode({"by": "operator", **body})
            try:
                await self.operator.bus.publish(subjects.pool_request(pool, verb), data)
            except BusError as error:
                self.simulation.note(f"nobody hears {verb}: {error}")

        self.operator.spawn(ask())

    def load(self, pool: str, params: f.LoadParams) -> None:
        """A pool's GPUs and its queue are like that from now on."""
        if params.utilization is not None:
            self.machines.load(pool, params.utilization)
        if params.pending_jobs is not None or params.queue_depth is not None:
            self.workload.loads[pool] = Load(
                pending_jobs=params.pending_jobs, queue_depth=params.queue_depth
            )

    async def take_away(self, pool: str, name: str) -> str:
        """End a node for good, as `scale` does, but this one; why not, where it cannot be.

        As at the beginning the decision is written down, and what follows is the services' work.
        """
        node = next((each for each in self.nodes() if each.node == name), None)
        entry = await self.operator.bus.get(POOLS, pool_key(pool))
        if node is None or entry is None or node.saga:
            return f"{name} cannot be ended now: {node.saga if node else 'it is not recorded'}"
        record: PoolRecord = _pools.decode(entry.value)
        now = self.simulation.clock.now()
        saga, opened, record = open_for(FLEET, record, "scale-down", now, node)
        opened = msgspec.structs.replace(opened, reason="terminate", by="operator")
        record = msgspec.structs.replace(
            record, desired=max(record.desired - 1, 0), open={**record.open, saga: opened}
        )
        await self.operator.bus.update(POOLS, pool_key(pool), encode(record), entry.revision)
        return ""

    # --- how things stand -----------------------------------------------------------------------

    def pool(self, name: str) -> PoolRecord | None:
        """A pool's record."""
        return self._records.pool(name)

    def nodes(self) -> list[NodeRecord]:
        """Every node's record, in the order in which they were recorded."""
        return list(self._records.nodes())

    def standing(self) -> list[tuple[str, Offering]]:
        """Each machine that stands at the cloud: its pool, and where and what it is."""
        machines = self.cloud.machines.values()
        return [(each.instance.pool, cloud_failures.standing_at(each)) for each in machines]

    def dollars(self) -> dict[str, float]:
        """Pool -> what its instances cost an hour, by their records."""
        found: dict[str, float] = {}
        for each in self._records.instances():
            if each.state != "terminated":
                found[each.pool] = found.get(each.pool, 0.0) + each.dollars_per_hour
        return found

    def health(self) -> dict[str, HealthRecord]:
        """Node -> what the policy makes of it."""
        return {each.node: each for each in self._records.health()}
