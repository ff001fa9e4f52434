"""Backups of a real server's streams: quiet, written meanwhile, damaged, and for another server."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.topology import (
    EVENTS,
    EVIDENCE,
    HEALTH_EVENTS,
    LEASES,
    NODES,
    POOL_SAGAS,
    POOL_TIMERS,
    POOLS,
    REQUESTS,
    SAGAS,
)
from services.bus.backup.backup_files import (
    read_manifest,
)
from services.bus.backup.store_backup import SAVED, back_up
from services.bus.backup.store_restore import restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import SetupError
from tests.support.settling import arriving
from tests.support.stored import REQUEST, SAGA, contents, filled

CLOCK = SystemClock()


async def test_a_quiet_store_is_restored_message_by_message(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """Sequences, times and headers are kept; heartbeats, which are in memory, are left out."""
    await filled(source)
    await arriving(source)
    manifest = await back_up(source, CLOCK, tmp_path / "backup", services=("notifier",))
    assert read_manifest(tmp_path / "backup") == manifest
    assert (manifest.fleet, manifest.services) == ("prod-1234", ("notifier",))
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    for spec in SAVED:
        assert await contents(source, spec.name) == await contents(target, spec.name), spec.name
        assert await target.last_sequence(spec.name) >= await source.last_sequence(spec.name)
    found = await target.get_object(EVIDENCE, "case")
    assert found is not None
    assert found.data == b"x" * 300_000
    await set_up(target, CLOCK, replicas=1)
    assert await target.publish(REQUEST, b"{}") == 41


async def test_a_timer_fires_in_the_restored_store(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """The timer fires at its time, or at once where that is over."""
    now = datetime.now(UTC)
    for key, at in (("soon", timedelta(seconds=1)), ("later", timedelta(hours=1))):
        await source.schedule("pool-manager", key, now + at, b"{}")
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    await set_up(target, CLOCK, replicas=1)
    async with asyncio.timeout(20):
        first = await anext(target.consume(POOL_TIMERS))
    assert first.stored.subject == subjects.timer_due("pool-manager", "soon")


async def test_durables_go_on_after_what_is_settled(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """The services' own set-up then finds no difference."""
    for number in range(10):
        await source.publish(f"navarch.v1.node.p.n{number}.event.fault", b"{}")
    await arriving(source)
    deliveries = source.consume(HEALTH_EVENTS)
    for _ in range(4):
        await (await anext(deliveries)).ack()
    async with asyncio.timeout(20):
        place = f"CONSUMER.INFO.{EVENTS.name}.{HEALTH_EVENTS.name}"
        while (await source.admin(place, {}))["ack_floor"]["stream_seq"] < 4:
            await asyncio.sleep(0.01)
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    await set_up(target, CLOCK, replicas=1)
    first = await anext(target.consume(HEALTH_EVENTS))
    assert first.stored.sequence == 5
    assert (await target.admin(f"CONSUMER.INFO.{SAGAS.name}.{POOL_SAGAS.name}", {}))["name"]


class Writers:
    """Writes what services write, as fast as it can, and notes what was acknowledged."""

    def __init__(self, bus: NatsBus, seed: int) -> None:
        self.bus = bus
        self.random = random.Random(seed)
        self.ends = False
        self.acked: dict[str, int] = defaultdict(int)
        """Key -> the version that is stored at least."""
        self.tried: dict[str, int] = defaultdict(int)
        self.kept: set[int] = set()
        """Sequences of requests that no one has removed."""
        self.saga = 0

    async def records(self) -> None:
        """Overwrites keys, and removes some."""
        while not self.ends:
            key = f"p.n{self.random.randrange(300)}"
            self.tried[key] += 1
            version = self.tried[key]
            if version % 5 == 0:
                await self.bus.delete(NODES, key)
            else:
                await self.bus.put(NODES, key, str(version).encode())
            self.acked[key] = max(self.acked[key], version)

    async def entries(self) -> None:
        """Appends under the guard of a saga's log, then records the entry."""
        number = 0
        while not self.ends:
            number += 1
            subject = f"{SAGA}.step{number}.started"
            self.saga = await self.bus.append(subject, b"{}", tree=f"{SAGA}.>", expected=self.saga)
            await self.bus.put(POOLS, "pool.p", str(self.saga).encode())

    async def requests(self) -> None:
        """Every other one is carried out: it is recorded, and then removed."""
        while not self.ends:
            sequence = await self.bus.publish(REQUEST, b"{}")
            if sequence % 2:
                await self.bus.put(POOLS, "done", str(sequence).encode())
                await self.bus.admin(f"STREAM.MSG.DELETE.{REQUESTS.name}", {"seq": sequence})
            else:
                self.kept.add(sequence)

    async def leases(self) -> None:
        """Keys that expire."""
        while not self.ends:
            key = f"notifier.k{self.random.randrange(20)}"
            await self.bus.put(LEASES, key, b"{}", ttl_seconds=1)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write until the end of the block."""
        works: list[Callable[[], Awaitable[None]]] = [self.records] * 4
        works += [self.entries, self.requests, self.leases]
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work())
            try:
                yield
            finally:
                self.ends = True


@pytest.mark.parametrize("seed", range(4))
async def test_a_backup_of_a_store_that_is_written_is_whole(
    bus: NatsBus, source: ArchiveBus, target: ArchiveBus, tmp_path: Path, seed: int
) -> None:
    """Each key has a value that it had meanwhile; no record names an entry that is missing."""
    writers = Writers(bus, seed)
    async with writers.writing():
        async with asyncio.timeout(60):
            while len(writers.acked) < 300:
                await asyncio.sleep(0.01)
        acked, kept, saga = dict(writers.acked), set(writers.kept), writers.saga
        manifest = await back_up(source, CLOCK, tmp_path / "backup")
        tried = dict(writers.tried)
    later = {each.stream for each in manifest.streams if each.later and each.later.bytes}
    assert {NODES.stream().name, SAGAS.name, REQUESTS.name} <= later
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)

    found = {each.key: each for each in await target.entries(NODES)}
    for key, least in acked.items():
        if key in found:
            assert least <= int(found[key].value) <= tried[key], key
        else:
            assert any(each % 5 == 0 for each in range(least, tried[key] + 1)), key
    log = await contents(target, SAGAS.name)
    assert without_times(log) == without_times(await contents(bus, SAGAS.name))[: len(log)]
    pool = await target.get(POOLS, "pool.p")
    assert pool is not None
    assert saga <= int(pool.value) <= log[-1].sequence
    requests = {each.sequence for each in await contents(target, REQUESTS.name)}
    assert kept <= requests
    done = await target.get(POOLS, "done")
    assert done is not None
    assert await target.publish(REQUEST, b"{}") > int(done.value)


def without_times(messages: list[Stored]) -> list[Stored]:
    """Return them as they are compared: a message stored again has the restoration's time."""
    epoch = datetime.fromtimestamp(0, UTC)
    return [msgspec.structs.replace(each, time=epoch) for each in messages]


async def test_an_event_that_is_published_again_is_stored_once(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """A service that was ended before it noted the first time publishes it with the same ID."""
    subject = "navarch.v1.node.p.n.event.fault"
    await source.publish(subject, b"{}", msg_id="once")
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    await target.publish(subject, b"{}", msg_id="once")
    assert len(await contents(target, EVENTS.name)) == 1


@pytest.mark.parametrize(("option", "value"), [("deny_delete", True), ("storage", "memory")])
async def test_a_stream_with_options_that_are_fixed_is_made_as_this_release_has_it(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path, option: str, value: object
) -> None:
    """Set-up refuses to start on it; a backup moves what it holds."""
    await source.admin(f"STREAM.DELETE.{EVENTS.name}", {})
    await source.admin(f"STREAM.CREATE.{EVENTS.name}", EVENTS.config(1) | {option: value})
    await source.publish("navarch.v1.node.p.n.event.verdict", b"{}")
    with pytest.raises(SetupError, match="cannot be changed in place"):
        await set_up(source, CLOCK, replicas=1)
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    await set_up(target, CLOCK, replicas=1)
    assert await contents(target, EVENTS.name) == await contents(source, EVENTS.name)


class CopyingClock(SystemClock):
    """A first wait has EVENTS copy INTAKE again."""

    def __init__(self, bus: ArchiveBus) -> None:
        """Change EVENTS with calls to `bus`."""
        self.bus = bus
        self.waits = 0

    async def sleep(self, seconds: float) -> None:
        self.waits += 1
        await self.bus.admin(f"STREAM.UPDATE.{EVENTS.name}", EVENTS.config(1))
        await super().sleep(seconds)


async def test_a_backup_has_each_fact_that_was_acknowledged_before(
    source: ArchiveBus, tmp_path: Path
) -> None:
    """INTAKE is not saved: the backup waits until the server has copied the fact into EVENTS."""
    await source.admin(f"STREAM.UPDATE.{EVENTS.name}", EVENTS.config(1) | {"sources": []})
    await source.publish("navarch.v1.node.p.n.event.fault", b"{}")
    assert await source.last_sequence(EVENTS.name) == 0
    clock = CopyingClock(source)
    manifest = await back_up(source, clock, tmp_path / "backup")
    (events,) = (each for each in manifest.streams if each.stream == EVENTS.name)
    assert events.last_sequence == 1
    assert clock.waits
