"""Simulated agents in real time, against a real nats-server and real services.

For load tests and demonstrations. Every instance that the provisioner records as running gets an
agent: it boots, registers, sends heartbeats and samples, answers commands, and fails as machines of
a scenario do. It writes only what agents write.
"""

import asyncio
import contextvars
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.settings import AgentSettings
from schemas.stream_specs import BucketSpec
from schemas.topology import INSTANCES
from services.bus.port import Bus, Endpoint, Headers
from services.primitives.clock import SystemClock
from services.primitives.errors import Unavailable
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.hardware_failures import HardwareFailure, MachineSpec
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulation_context import SimulatedProcess, SimulationContext

RUNNING: Final = frozenset({"running"})
FAULT_XIDS: Final = (79, 79, 48, 95, 13, 31)
"""Injected XIDs: of six, two are harmless program errors."""
HARMLESS: Final = frozenset({13, 31})
UTILIZATION: Final = 70.0
HOUR_SECONDS: Final = 3_600.0

_instances: Final = decoder(InstanceRecord)


class RealTimeContext(SimulationContext):
    """Gives a simulation real time: a real server, and the machine's clock."""

    def __init__(self, seed: str, say: Callable[[str], None]) -> None:
        super().__init__(seed)
        self.clock: Any = SystemClock()
        self._say = say
        self.defects: list[str] = []
        """Agents that ended by themselves, and why."""

    def clock_of(self, name: str) -> Any:
        """The machine's clock: all simulated hosts share it."""
        del name
        return self.clock

    def note(self, what: str) -> None:
        """Print the line."""
        self._say(what)


@dataclass(frozen=True, slots=True)
class AgentConnections:
    """Names what an agent's messages go over; many agents share both."""

    facts: Bus
    """Events, samples and commands."""
    heartbeats: Bus
    """Heartbeats alone, so that they never wait behind anything else."""


class RealTimeBus:
    """An agent's connection over shared ones; it fails while the node's network is cut."""

    def __init__(self, over: AgentConnections, process: "RealTimeProcess") -> None:
        self._over = over
        self._process = process

    def _up(self) -> None:
        if not self._process.up:
            raise Unavailable("the node's network is cut")

    async def publish(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> None:
        """Store a message."""
        self._up()
        await self._over.facts.publish(subject, data, msg_id=msg_id, headers=headers or {})

    async def put(self, bucket: BucketSpec, key: str, value: bytes, *, ttl_seconds: int = 0) -> int:
        """Write a heartbeat, the only key that agents write."""
        self._up()
        return await self._over.heartbeats.put(bucket, key, value, ttl_seconds=ttl_seconds)

    async def answer(self, subject: str, endpoint: Endpoint) -> None:
        """Answer while the node is up."""

        async def reply(data: bytes, headers: Headers) -> bytes:
            if not self._process.up:
                await asyncio.Event().wait()  # a node that is down never answers
            return await endpoint(data, headers)

        await self._over.facts.answer(subject, reply)

    def unwritable_streams(self) -> Mapping[str, str]:
        """Streams that take no writes of the agents of this connection."""
        return self._over.facts.unwritable_streams()


class RealTimeProcess(SimulatedProcess):
    """Runs an agent, as tasks of this process."""

    def __init__(
        self, simulation: RealTimeContext, name: str, over: AgentConnections
    ) -> None:  # no `super`: its bus is ours
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.simulation = simulation
        self._defects = simulation.defects
        self.name = name
        self.dead = False
        self.context = contextvars.copy_context()
        self.bus: Any = RealTimeBus(over, self)

    def spawn(self, work: Awaitable[Any]) -> "asyncio.Task[Any]":
        """Do work as this agent."""
        task = asyncio.ensure_future(work)
        assert isinstance(task, asyncio.Task)
        self.adopt(task)
        task.add_done_callback(self._check)
        return task

    def _check(self, task: "asyncio.Task[Any]") -> None:
        """Note that a part of the agent has failed: without it the agent would only look well."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defects.append(f"{self.name}: {type(error).__name__}: {error}")

    def crash(self) -> None:
        """End the process at once."""
        self.dead = True
        for task in list(self.tasks):
            task.cancel()

    def update_connection(self) -> None:
        """Do nothing: each call checks the connection."""


class RealTimeMachines(AgentMachines):
    """Runs agents over a few real connections."""

    def __init__(
        self,
        simulation: RealTimeContext,
        connections: Sequence[AgentConnections],
        settings: AgentSettings,
    ) -> None:
        """Share `connections` among the agents; use the intervals of the fleet's settings."""
        super().__init__(simulation, spec_of)
        self._context = simulation
        self._connections = connections
        self._processes = 0
        self.beat_seconds = float(settings.heartbeat_interval)
        self.beat_ttl_seconds = int(settings.heartbeat_ttl)
        self.sample_seconds = float(settings.telemetry_interval)

    def _process(self, name: str) -> SimulatedProcess:
        self._processes += 1
        over = self._connections[self._processes % len(self._connections)]
        return RealTimeProcess(self._context, name, over)

    def appear(self, instance: Instance) -> None:
        """A machine was made: it boots and samples."""
        self.loads.setdefault(instance.pool, UTILIZATION)
        super().appear(instance)

    async def close(self) -> None:
        """End all of them."""
        processes = [node.process for node in self.nodes.values()]
        for process in processes:
            process.crash()
        left = [task for process in processes for task in process.tasks]
        await asyncio.gather(*left, return_exceptions=True)


def spec_of(instance: Instance) -> MachineSpec:
    """A machine's hardware, as its provider reports it."""
    count = int(instance.tags.get("gpus", "8"))
    return MachineSpec(
        region=instance.region,
        zone=instance.zone,
        instance_type=instance.instance_type,
        gpu_count=count,
    )


def instance_of(record: InstanceRecord) -> Instance:
    """Return the instance of a record."""
    return Instance(
        name=record.instance,
        provider_id=record.provider_id or record.instance,
        status="running",
        pool=record.pool,
        token=record.token,
        instance_type=record.launch.instance_type,
        region=record.region,
        zone=record.zone,
        tags={"gpus": str(record.launch.gpu_count or 8)},
    )


@dataclass(slots=True)
class Counts:
    """Counts for the progress line."""

    booted: int = 0
    gone: int = 0
    faults: int = 0
    fatal: int = 0


class RealTimeFleet:
    """The agents of one bus, following what the provisioner records."""

    def __init__(self, machines: RealTimeMachines, bus: Bus, pool: str, seed: str) -> None:
        """Follow `bus`; only `pool`, where one is named."""
        self.machines = machines
        self._bus = bus
        self.pool = pool
        self._chance = random.Random(f"{seed}/faults")  # noqa: S311 - repeatable is the point
        self._known: dict[str, str] = {}
        """Record -> its machine's provider ID."""
        self.counts = Counts()

    async def follow(self) -> None:
        """Run an agent for every running instance, until cancelled."""
        async for entry in self._bus.watch(INSTANCES):
            if entry.removed:
                self._end(entry.key)
                continue
            record: InstanceRecord = _instances.decode(entry.value)
            if self.pool and record.pool != self.pool:
                continue
            if record.state in RUNNING:
                self._begin(entry.key, instance_of(record))
            else:
                self._end(entry.key)

    def _begin(self, key: str, instance: Instance) -> None:
        if self._known.get(key) == instance.provider_id:
            return
        self._end(key)
        self._known[key] = instance.provider_id
        self.counts.booted += 1
        self.machines.appear(instance)

    def _end(self, key: str) -> None:
        provider_id = self._known.pop(key, "")
        node = self.machines.nodes.get(provider_id)
        if node is not None:
            self.counts.gone += 1
            self.machines.vanish(node.instance)

    async def break_things(self, per_hour: float) -> None:
        """Break GPUs at random until cancelled; 0: never."""
        while per_hour:
            await asyncio.sleep(self._chance.expovariate(per_hour / HOUR_SECONDS))
            if serving := self.machines.serving():
                self.break_one(self._chance.choice(serving))

    def break_one(self, node: SimulatedMachine) -> None:
        """Break one GPU of a node; a harmless XID recovers at once."""
        code = self._chance.choice(FAULT_XIDS)
        failure = HardwareFailure(
            kind="xid_error",
            at=time.monotonic(),
            began=SystemClock().now(),
            xid_code=code,
            gpu_index=self._chance.randrange(max(node.kind.gpu_count, 1)),
        )
        self.counts.faults += 1
        self.counts.fatal += code not in HARMLESS
        self.machines.fail(node, failure)
        if code in HARMLESS:
            self.machines.recover(node, failure.name)
