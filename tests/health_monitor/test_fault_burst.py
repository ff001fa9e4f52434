"""A burst of faults over a large fleet, with service and server restarted in the middle of it."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, Fault, Verdict, node_codec
from schemas.topology import DEAD, EVENTS, HEALTH
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import BusError
from tests.health_monitor.conftest import make_fault
from tests.support.fork_server import ForkServer
from tests.support.settling import settled

NODES = 1_000
FATAL = 200
BENIGN = 1_800
PUBLISHING_MAX = 128
FATAL_CODES = (48, 79, 95)
BENIGN_CODES = (13, 31, 43, 45)

records = decoder(HealthRecord)
unhealthy_wanted = subjects.node_event_wildcard(FACTS[Verdict])


@asynccontextmanager
async def monitor(server: EmbeddedServer) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """The service as a process; yields the function that kills it."""
    environment = {**os.environ, "NAVARCH_NATS_URL": server.url, "NAVARCH_LOG_LEVEL": "ERROR"}
    async with ForkServer() as fork_server:
        process = await fork_server.start(("services.health_monitor",), environment)

        async def kill() -> None:
            process.kill()
            await process.wait()

        yield kill


class Burst:
    """Publishes the faults, and waits for their verdicts."""

    def __init__(self, bus: NatsBus) -> None:
        """Generate 2,000 faults; the seed determines their order and nodes."""
        chance = random.Random(3)
        nodes = [f"training-{number}" for number in range(NODES)]
        self._bus = bus
        self.fatal = set(chance.sample(nodes, FATAL))
        self.faults: list[Fault] = [
            make_fault(f"fatal-{node}", node=node, code=chance.choice(FATAL_CODES))
            for node in sorted(self.fatal)
        ] + [
            make_fault(
                f"benign-{number}", node=chance.choice(nodes), code=chance.choice(BENIGN_CODES)
            )
            for number in range(BENIGN)
        ]
        chance.shuffle(self.faults)

    async def publish(self) -> None:
        """Publish all faults as 1,000 agents would: concurrently, and again until stored."""
        slots = asyncio.Semaphore(PUBLISHING_MAX)

        async def one(fault: Fault) -> None:
            subject = subjects.node_event(fault.pool, fault.node, FACTS[Fault])
            while True:
                async with slots:
                    try:
                        await self._bus.publish(subject, encode(fault), msg_id=fault.id)
                    except BusError:
                        await asyncio.sleep(0.05)  # until the server is back: nothing announces it
                    else:
                        return

        async with asyncio.TaskGroup() as group:
            for fault in self.faults:
                group.create_task(one(fault))

    async def wait_for_unhealthy(self, at_least: int) -> None:
        """Wait until this many unhealthy verdicts are stored."""
        async for stored in self._bus.follow(EVENTS.name, [unhealthy_wanted], "all"):
            event = node_codec.decode(stored.data)
            at_least -= isinstance(event, Verdict) and event.status == "unhealthy"
            if at_least <= 0:
                return

    async def settled(self) -> None:
        """Wait until every stored message is processed."""
        while True:
            try:
                return await settled(self._bus, EVENTS.name, "health-events", within_seconds=60)
            except BusError:
                await asyncio.sleep(0.05)  # until the server is back: nothing announces it


@pytest.mark.slow
async def test_each_fatal_fault_of_a_burst_causes_one_verdict(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Restarts amid 200 fatal and 1,800 benign faults on 1,000 nodes leave 200 verdicts."""
    burst = Burst(bus)
    async with asyncio.timeout(180):
        async with monitor(server) as kill:
            publishing = asyncio.create_task(burst.publish())
            await burst.wait_for_unhealthy(40)
            await kill()
        async with monitor(server):
            await burst.wait_for_unhealthy(80)
            await server.restart()
            await publishing
            await burst.wait_for_unhealthy(FATAL)
            await burst.settled()

    verdicts = [
        event
        for stored in await bus.read(EVENTS.name, unhealthy_wanted)
        if isinstance(event := node_codec.decode(stored.data), Verdict)
    ]
    unhealthy_verdicts = Counter(each.node for each in verdicts if each.status == "unhealthy")
    health: list[HealthRecord] = [
        records.decode(entry.value) for entry in await bus.entries(HEALTH, "training.>")
    ]
    recorded = Counter(note.id for record in health for note in record.recent)

    assert dict.fromkeys(burst.fatal, 1) == unhealthy_verdicts
    assert burst.fatal == {each.node for each in health if each.status == "unhealthy"}
    assert {fault.id: 1 for fault in burst.faults} == recorded
    assert [] == await bus.read(DEAD.name, subjects.DEAD)
