"""The runbooks of docs/backup.md: one server of three is lost with its disk, or two are."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from schemas.topology import EVENTS, EVERY_STREAM, HEALTH_EVENTS, NODES, SAGAS
from services.bus.nats.embedded_server import STORE_FOLDER, EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError
from tests.support.cluster import Cluster, connected, replicas_current
from tests.support.settling import arriving, settled

pytestmark = pytest.mark.slow
SETTLED_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.2
FAULT = "navarch.v1.node.p.n.event.fault"
SAGA = "navarch.v1.saga.s"
COUNT = 100


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield three servers of this test alone, with something in them."""
    async with Cluster(tmp_path / "cluster") as three:
        async with connected(three.url) as bus:
            await set_up(bus, SystemClock(), replicas=3)
            for number in range(COUNT):
                await bus.put(NODES, f"p.n{number % 10}", str(number).encode())
                await bus.publish(f"navarch.v1.node.p.n{number}.event.fault", b"{}")
                await bus.append(
                    f"{SAGA}.step{number}.started", b"{}", tree=f"{SAGA}.>", expected=number
                )
            deliveries = bus.consume(HEALTH_EVENTS)
            for _ in range(COUNT):
                await (await anext(deliveries)).ack()
            await settled(bus, EVENTS.name, HEALTH_EVENTS.name)
            await current(bus)
        yield three


async def current(bus: NatsBus) -> None:
    """Wait until `nats stream report` would show every replica as current."""
    replicated = [each.name for each in EVERY_STREAM if not each.replicas_one]
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        for name in replicated:
            while not await replicas_current(bus, name):
                await asyncio.sleep(LOOK_SECONDS)


def lose(server: EmbeddedServer) -> None:
    """Remove the server's store, as if its disk or the whole machine were lost."""
    shutil.rmtree(store_of(server))


def store_of(server: EmbeddedServer) -> Path:
    """Return the folder in which a server keeps its streams."""
    return server.directory / STORE_FOLDER


async def whole(bus: NatsBus) -> None:
    """Nothing is lost, and everything can be written."""
    await current(bus)
    assert len(await bus.entries(NODES)) == 10
    assert await bus.last_sequence(EVENTS.name) == COUNT
    assert await bus.last_sequence(SAGAS.name) == COUNT
    floor: int | None = None
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        while floor is None:
            with suppress(BusError):
                place = f"CONSUMER.INFO.{EVENTS.name}.{HEALTH_EVENTS.name}"
                floor = (await bus.admin(place, {}))["ack_floor"]["stream_seq"]
    assert floor == COUNT
    assert await bus.publish(FAULT, b"{}") == COUNT + 1
    await arriving(bus, SETTLED_SECONDS_MAX)
    assert await bus.last_sequence(EVENTS.name) == COUNT + 1
    await bus.append(f"{SAGA}.more.started", b"{}", tree=f"{SAGA}.>", expected=COUNT)


async def test_one_server_is_replaced_by_an_empty_one_of_its_name(cluster: Cluster) -> None:
    """The others copy everything to it; another one may then be lost."""
    lost, other, _ = cluster.servers
    await lost.kill()
    lose(lost)
    await lost.start()
    async with connected(cluster.url) as bus:
        await current(bus)
        await other.kill()
        await cluster.led(bus)
        assert await bus.last_sequence(SAGAS.name) == COUNT
        await other.start()
        await whole(bus)


async def test_two_servers_begin_with_a_copy_of_the_third_ones_store(cluster: Cluster) -> None:
    """Two empty ones would be a majority, and could decide that nothing is stored."""
    left, *lost = cluster.servers
    for each in lost:
        await each.kill()
        lose(each)
    await left.stop()
    for each in lost:
        shutil.copytree(store_of(left), store_of(each))
    await asyncio.gather(*(each.start() for each in cluster.servers))
    async with connected(cluster.url) as bus:
        await whole(bus)
