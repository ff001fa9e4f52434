"""The bus on three servers: what one client has stored, every other one reads."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack, suppress

import pytest

from schemas import subjects
from schemas.settings import NatsSettings
from schemas.topology import BUCKETS, DURABLES, HEARTBEATS, POOLS, SAGAS, STREAMS
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up_stream
from services.primitives.errors import BusError
from tests.support.cluster import Cluster, connected, leader_of, replicas_current

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ROUNDS = 200
BACK_SECONDS_MAX = 90


async def test_everything_that_matters_has_three_replicas(cluster: Cluster) -> None:
    """Each stream, bucket and durable, but for telemetry, which is worth little."""
    async with connected(cluster.url) as bus:
        for stream in (*STREAMS, *(bucket.stream() for bucket in BUCKETS)):
            info = await bus.admin(f"STREAM.INFO.{stream.name}", {})
            expected = 1 if stream.replicas_one else 3
            assert expected == info["config"]["num_replicas"], stream.name
        for durable in DURABLES:
            info = await bus.admin(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
            assert 3 == info["config"]["num_replicas"], durable.name


async def test_what_was_stored_through_one_server_is_read_through_every_other(
    cluster: Cluster,
) -> None:
    """A notified reader at once finds the entry in the log, a whole log and its end alike."""
    async with AsyncExitStack() as open_buses:
        buses = [
            await open_buses.enter_async_context(connected(each.url)) for each in cluster.servers
        ]
        guard = 0
        for number in range(ROUNDS):
            writer = buses[number % 3]
            guard = await writer.append(
                subjects.saga_entry("s1", f"step-{number}", "started"),
                b"{}",
                tree=subjects.saga_tree("s1"),
                expected=guard,
            )
            await writer.put(POOLS, "pool.p", str(number).encode())
            for reader in buses:
                log = await reader.read(SAGAS.name, subjects.saga_tree("s1"), after=guard - 1)
                last = await reader.last(SAGAS.name, subjects.saga_tree("s1"))
                entry = await reader.get(POOLS, "pool.p")
                assert [guard] == [each.sequence for each in log]
                assert last == log[-1]
                assert entry is not None
                assert str(number).encode() == entry.value


async def test_a_list_of_urls_may_name_servers_that_are_down(cluster: Cluster) -> None:
    """`nats.url` with blanks, and a server that does not answer among them."""
    url = f"nats://127.0.0.1:1, {cluster.servers[1].url}"
    options = ConnectOptions(settings=NatsSettings(url=url, replicas=3), name="one of them is down")
    bus = await NatsBus.connect(options)
    assert await leader_of(bus, SAGAS.name)
    await bus.close()


async def test_a_killed_leader_costs_no_entry(cluster: Cluster) -> None:
    """The server that leads SAGAS is killed: what was stored is there, what follows is stored."""
    async with connected(cluster.url) as bus:
        guard = await bus.append(
            subjects.saga_entry("s2", "saga", "started"),
            b"{}",
            tree=subjects.saga_tree("s2"),
            expected=0,
        )
        leader = await cluster.leader(bus, SAGAS.name)
        os.kill(leader.pid, signal.SIGKILL)
        await leader.wait()
        stored = 0
        async with asyncio.timeout(BACK_SECONDS_MAX):
            while not stored:
                with suppress(BusError):
                    stored = await bus.append(
                        subjects.saga_entry("s2", "saga", "done"),
                        b"{}",
                        tree=subjects.saga_tree("s2"),
                        expected=guard,
                        headers={"Nats-Msg-Id": "s2.done"},
                    )
                await asyncio.sleep(0.01)  # between two tries
            await leader.start()
            while not await replicas_current(bus, SAGAS.name):
                await asyncio.sleep(0.01)  # no event when a replica has caught up
        log = await bus.read(SAGAS.name, subjects.saga_tree("s2"))
    assert [guard, stored] == [each.sequence for each in log]


async def test_heartbeats_are_lost_with_every_server_and_written_again(cluster: Cluster) -> None:
    """Heartbeats are kept in memory; the bucket is there again as soon as it is set up."""
    async with connected(cluster.url) as bus:
        await bus.put(HEARTBEATS, "training.n1", b"{}", ttl_seconds=600)
        for server in cluster.servers:
            await server.kill()
        for server in cluster.servers:
            await server.start()
        async with asyncio.timeout(BACK_SECONDS_MAX):
            while True:
                with suppress(BusError):
                    await set_up_stream(bus, HEARTBEATS.stream(), 3)
                    await bus.put(HEARTBEATS, "training.n2", b"{}", ttl_seconds=600)
                    break
                await asyncio.sleep(0.1)
        assert [each.key for each in await bus.entries(HEARTBEATS)] == ["training.n2"]
