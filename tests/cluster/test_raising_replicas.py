"""A bus that is in use goes from one replica to three: set-up brings it about, in order."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from schemas import subjects
from schemas.topology import DURABLES, EVENTS, STREAMS
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError
from tests.support.cluster import Cluster, connected, leader_of

pytestmark = pytest.mark.slow

BEFORE = 200
AGAIN_SECONDS = 0.05


async def speak(bus: NatsBus, number: int) -> None:
    """Store one fact, however long that takes."""
    subject = subjects.node_event("training", f"n{number}", "verdict")
    while True:
        with suppress(BusError):
            await bus.publish(subject, b"{}", msg_id=f"v{number}")
            return
        await asyncio.sleep(AGAIN_SECONDS)


async def test_replicas_are_raised_and_lowered_on_a_bus_in_use(tmp_path: Path) -> None:
    """While facts are stored: none is lost, and then any one server may die."""
    async with Cluster(tmp_path) as three, connected(three.url) as bus:
        await set_up(bus, SystemClock(), replicas=1)
        for number in range(BEFORE):
            await speak(bus, number)
        stored, over = BEFORE, asyncio.Event()

        async def go_on() -> int:
            number = stored
            while not over.is_set():
                await speak(bus, number)
                number += 1
            return number

        speaking = asyncio.create_task(go_on())
        async with asyncio.timeout(60):
            await set_up(bus, SystemClock(), replicas=3)
        over.set()
        stored = await speaking
        for stream in STREAMS:
            info = await bus.admin(f"STREAM.INFO.{stream.name}", {})
            assert (1 if stream.replicas_one else 3) == info["config"]["num_replicas"]
        for durable in DURABLES:
            info = await bus.admin(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
            assert 3 == info["config"]["num_replicas"]

        name = await leader_of(bus, EVENTS.name)
        dead = next(each for each in three.servers if each.name == name)
        os.kill(dead.pid, signal.SIGKILL)
        await dead.wait()
        await leader_of(bus, EVENTS.name, besides=dead)
        await speak(bus, stored)
        found = await bus.read(EVENTS.name, subjects.node_event_wildcard("verdict"))
        await dead.start()
        await three.led(bus)
        async with asyncio.timeout(60):
            await set_up(bus, SystemClock(), replicas=1)

    assert [f"n{number}" for number in range(stored + 1)] == [
        parsed.node for each in found if (parsed := subjects.parse_node(each.subject))
    ]
