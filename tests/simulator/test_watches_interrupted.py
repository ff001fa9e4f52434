"""The health-monitor dies, or stalls, between any two of its writes about a silence or a level.

By the time it is back the heartbeat, or the reading, is as it should be: nothing shows any more
that there was a silence, or a level. What was published to have begun must be published to be over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Fault, Lost, NodeEvent, Registered, Returned, node_codec
from schemas.node_records import HeartbeatRecord, node_key
from schemas.settings import Settings
from schemas.topology import EVENTS, HEARTBEATS
from services.bus.topology_setup import set_up
from services.health_monitor.rules.level_faults import is_over
from services.health_monitor.service import build
from services.runtime.event_publisher import publish_event
from services.simulator.engine import virtual_time
from services.simulator.engine.simulation_context import SimulatedProcess, SimulationContext
from services.simulator.engine.supervised_service import SupervisedService

POOL, NODE = "training", "training-1"
TTL_SECONDS = 4
DOWN_SECONDS = 6.0
STALL_SECONDS = 30.0
WRITES = 6
"""More than one silence, or one level, takes."""
POLICY = """
version: 1
levels:
  - {name: hot, description: hot, reading: temperature_celsius, above: 89, until: 83, for: 3s,
     kind: thermal}
rules:
  - {name: rest, description: rest, condition: "true", result: healthy, action: none}
"""

Signal = Callable[[bool], Awaitable[None]]
"""Publishes what the watch looks at: as it should be, or not."""


class World:
    """A health-monitor, and one node whose heartbeats and samples the test writes."""

    def __init__(self, policy: Path) -> None:
        """Nothing runs yet."""
        self.simulation = SimulationContext("interrupted")
        self.node = SimulatedProcess(self.simulation, NODE)
        self.monitor = SupervisedService(
            self.simulation, "health-monitor", build, Settings(health_policy=str(policy))
        )
        self.fine = True

    async def beat(self, fine: bool) -> None:
        """Beat; a silent node does not."""
        if fine:
            beat = HeartbeatRecord(
                instance=NODE, time=self.simulation.clock.now(), pool=POOL, node=NODE
            )
            key = node_key(POOL, NODE)
            await self.node.bus.put(HEARTBEATS, key, encode(beat), ttl_seconds=TTL_SECONDS)

    async def sample(self, fine: bool) -> None:
        """Publish a temperature."""
        gpu = {"index": 0, "uuid": "GPU-0", "temperature_celsius": 60 if fine else 95}
        data = msgspec.json.encode({"gpus": [gpu]})
        await self.node.bus.publish(subjects.telemetry(POOL, NODE), data)

    async def run(self, signal: Signal, interrupt: Callable[["World"], None]) -> list[NodeEvent]:
        """One bad spell; it ends when the monitor is interrupted. Returns what was published."""
        await set_up(self.node.bus, self.simulation.clock, replicas=1)
        self.monitor.start()
        registered = Registered(
            id="registered-1",
            time=self.simulation.clock.now(),
            pool=POOL,
            node=NODE,
            instance=NODE,
            hostname=NODE,
            boot_id="boot-1",
        )
        await publish_event(self.node.bus, registered)

        async def signals() -> None:
            while True:
                await signal(self.fine)
                await asyncio.sleep(1)

        task = asyncio.ensure_future(signals())
        await asyncio.sleep(20)
        self.fine = False
        interrupt(self)
        await asyncio.sleep(60)
        self.fine = True
        await asyncio.sleep(60)
        task.cancel()
        found = await self.node.bus.read(EVENTS.name, subjects.NODE_EVENTS)
        self.simulation.server.close()
        events = (node_codec.decode(each.data) for each in found)
        return [each for each in events if isinstance(each, NodeEvent)]

    def recovers(self) -> None:
        """The bad spell is over, and the monitor comes back later."""
        self.fine = True
        asyncio.get_running_loop().call_later(DOWN_SECONDS, self.monitor.start)


def dies_after(effects: int) -> Callable[[World], None]:
    """Return the interruption in which the monitor dies right after its n-th write from now on."""

    def interrupt(world: World) -> None:
        process = world.monitor.process
        assert process is not None
        process.dies_after = process.effects + effects
        process.died = world.recovers

    return interrupt


def stalls_after(effects: int) -> Callable[[World], None]:
    """The monitor stalls right after its n-th write from now on, and loses its leases."""

    def interrupt(world: World) -> None:
        process = world.monitor.process
        assert process is not None
        process.stalls_after = process.effects + effects, STALL_SECONDS
        process.stalled = world.recovers

    return interrupt


def played(
    tmp_path: Path, signal: Callable[[World], Signal], interrupt: Callable[[World], None]
) -> list[NodeEvent]:
    """Play one spell."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)

    async def play() -> list[NodeEvent]:
        world = World(policy)
        return await world.run(signal(world), interrupt)

    return virtual_time.run(play)


INTERRUPTED = [
    pytest.param(kind(effects), id=f"{kind.__name__}-{effects}")
    for kind in (dies_after, stalls_after)
    for effects in range(1, WRITES)
]


@pytest.mark.parametrize("interrupt", INTERRUPTED)
def test_a_lost_node_returns_though_the_monitor_was_interrupted(tmp_path, interrupt):
    """Every `lost` is followed by its `returned`."""
    events = played(tmp_path, lambda world: world.beat, interrupt)
    published = [type(each) for each in events if isinstance(each, Lost | Returned)]
    assert published in ([], [Lost, Returned])


@pytest.mark.parametrize("interrupt", INTERRUPTED)
def test_a_level_is_over_though_the_monitor_was_interrupted(tmp_path, interrupt):
    """Every reported level is reported to be over."""
    events = played(tmp_path, lambda world: world.sample, interrupt)
    published = [is_over(each) for each in events if isinstance(each, Fault)]
    assert published in ([], [False, True])
