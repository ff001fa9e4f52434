"""Backups of three servers, restored into three others and into a single one, and back."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from schemas.settings import NatsSettings
from schemas.topology import DURABLES, EVENTS, NODES, SAGAS
from services.bus.backup.backup_files import read_manifest
from services.bus.backup.store_backup import SAVED, back_up
from services.bus.backup.store_restore import restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError, Unavailable
from tests.support.cluster import Cluster, connected, leader_of
from tests.support.settling import arriving

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CLOCK = SystemClock()
EXPENDABLE = "TELEMETRY"


@asynccontextmanager
async def administrator(url: str, replicas: int) -> AsyncIterator[ArchiveBus]:
    """Yield an administrator's connection."""
    settings = NatsSettings(url=url, replicas=replicas)
    bus = await ArchiveBus.connect(ConnectOptions(settings=settings, name="admin"))
    try:
        yield bus
    finally:
        await bus.close()


async def filled(bus: NatsBus, words: str) -> None:
    """Store records, events and a saga's log."""
    last = 0
    for number in range(50):
        await bus.put(NODES, f"p.{words}{number % 9}", str(number).encode())
        await bus.publish(f"navarch.v1.node.p.{words}{number}.event.fault", b"{}")
        last = await bus.append(
            f"navarch.v1.saga.{words}.step{number}.started",
            b"{}",
            tree=f"navarch.v1.saga.{words}.>",
            expected=last,
        )


async def same(one: NatsBus, other: NatsBus) -> None:
    """Both have the same messages, and every durable."""
    for spec in SAVED:
        left, right = [await each.read(spec.name, ">") for each in (one, other)]
        assert left == right, spec.name
    for each in DURABLES:
        await other.admin(f"CONSUMER.INFO.{each.stream}.{each.name}", {})


async def test_three_servers_are_restored_into_one_and_back_into_three(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The number of replicas is that of the configuration, not that of the backup."""
    async with connected(cluster.url) as bus:
        await filled(bus, "s")
    single = EmbeddedServer(tmp_path / "single", sync=False)
    await single.start()
    try:
        async with administrator(cluster.url, 3) as three, administrator(single.url, 1) as one:
            manifest = await back_up(three, CLOCK, tmp_path / "first")
            assert manifest.replicas == 3
            await restore(one, CLOCK, tmp_path / "first", manifest, replicas=1)
            await set_up(one, CLOCK, replicas=1)
            await same(three, one)
            manifest = await back_up(one, CLOCK, tmp_path / "second")
            async with (
                Cluster(tmp_path / "others") as others,
                administrator(others.url, 3) as empty,
            ):
                await restore(empty, CLOCK, tmp_path / "second", manifest, replicas=3)
                await set_up(empty, CLOCK, replicas=3)
                await others.led(empty)
                await same(one, empty)
                info = await empty.admin(f"STREAM.INFO.{SAGAS.name}", {})
                assert info["config"]["num_replicas"] == 3
                await empty.publish("navarch.v1.node.p.n.event.fault", b"{}")
                await arriving(empty)
                assert await empty.last_sequence(EVENTS.name) > 50
    finally:
        await single.kill()


class StartingClock(SystemClock):
    """A first wait starts a server."""

    def __init__(self, server: EmbeddedServer) -> None:
        """Start this one."""
        self.server = server

    async def sleep(self, seconds: float) -> None:
        if not self.server.pid:
            await self.server.start()
        await super().sleep(seconds)


async def test_a_restore_waits_for_the_last_server(cluster: Cluster, tmp_path: Path) -> None:
    """The server refuses three replicas until it has seen three servers."""
    async with administrator(cluster.url, 3) as bus:
        await filled(bus, "w")
        manifest = await back_up(bus, CLOCK, tmp_path / "backup")
    others = Cluster(tmp_path / "others")
    *early, last = others.servers
    try:
        await asyncio.gather(*(each.start() for each in early))
        async with administrator(early[0].url, 3) as empty:
            await restore(empty, StartingClock(last), tmp_path / "backup", manifest, replicas=3)
            assert last.pid
            info = await empty.admin(f"STREAM.INFO.{SAGAS.name}", {})
            assert info["config"]["num_replicas"] == 3
    finally:
        await others.__aexit__()


async def test_a_leader_that_is_killed_ends_the_backup_or_does_no_harm(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Either nothing is left, or what is left is whole; the next backup is made."""
    async with administrator(cluster.url, 3) as bus:
        await filled(bus, "k")
        victim: list[int] = []

        async def leader() -> int:
            name = await leader_of(bus, EVENTS.name)
            return next(each.pid for each in cluster.servers if each.name == name)

        pid = await leader()

        def kill(stream: str) -> None:
            if stream == EVENTS.name:
                os.kill(pid, signal.SIGKILL)
                victim.append(pid)

        try:
            await back_up(bus, CLOCK, tmp_path / "first", progress=kill)
        except NavarchError:
            assert not (tmp_path / "first").exists()
        else:
            read_manifest(tmp_path / "first")
        assert victim
        server = next(each for each in cluster.servers if each.pid == pid)
        await server.wait()
        await server.start()
        await cluster.led(bus)
        async with asyncio.timeout(120):
            while not (tmp_path / "second").exists():
                # The replica that came back may be elected meanwhile: then nothing is left, either.
                with suppress(Unavailable):
                    await back_up(bus, CLOCK, tmp_path / "second")
