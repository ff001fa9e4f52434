"""Backups of a real server's streams: quiet, written meanwhile, damaged, and for another server."""

import asyncio
import os
import random
import re
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.topology import (
    EVENTS,
    EVIDENCE,
    HEALTH_EVENTS,
    HEARTBEATS,
    LEASES,
    NODES,
    POOL_SAGAS,
    POOL_TIMERS,
    POOLS,
    REQUESTS,
    SAGAS,
    TELEMETRY,
)
from services.bus.backup import store_backup, store_restore
from services.bus.backup.backup_files import (
    MANIFEST,
    BackupError,
    read_manifest,
    write_manifest,
)
from services.bus.backup.store_backup import SAVED, back_up
from services.bus.backup.store_restore import restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import SetupError
from tests.support.clients import archive_connected

CLOCK = SystemClock()
SAGA = "navarch.v1.saga.s1"
REQUEST = "navarch.v1.pool.p.request.scale.me"


@pytest.fixture
async def source(server: EmbeddedServer) -> AsyncIterator[ArchiveBus]:
    """An administrator's connection to a server with the topology."""
    connected = await archive_connected(server)
    await set_up(connected, CLOCK, replicas=1)
    yield connected
    await connected.close()


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[ArchiveBus]:
    """The same to an empty one."""
    empty = EmbeddedServer(tmp_path / "empty", sync=False)
    await empty.start()
    connected = await archive_connected(empty)
    yield connected
    await connected.close()
    await empty.kill()


async def filled(bus: NatsBus) -> None:
    """Something in every kind of stream, with what is removed again."""
    await bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id="prod-1234")))
    for number in range(40):
        await bus.put(NODES, f"p.n{number % 7}", str(number).encode())
        await bus.publish(f"navarch.v1.node.p.n{number}.event.fault", b"{}", msg_id=f"f{number}")
        await bus.append(f"{SAGA}.step{number}.started", b"{}", tree=f"{SAGA}.>", expected=number)
        await bus.publish(REQUEST, b"{}")
    await bus.delete(NODES, "p.n3")
    await bus.put(LEASES, "notifier.long", b"{}", ttl_seconds=3600)
    await bus.put(HEARTBEATS, "p.n1", b"{}")
    for sequence in (3, 39, 40):
        await bus.admin(f"STREAM.MSG.DELETE.{REQUESTS.name}", {"seq": sequence})
    await bus.put_object(EVIDENCE, "case", b"x" * 300_000, metadata={"node": "n1"}, revision=0)


async def contents(bus: NatsBus, stream: str) -> list[Stored]:
    return await bus.read(stream, ">")


async def test_a_quiet_store_is_restored_message_by_message(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """With sequences, times and headers; heartbeats, which are kept in memory, are left out."""
    await filled(source)
    manifest = await back_up(source, CLOCK, tmp_path / "backup", services=("notifier",))
    assert read_manifest(tmp_path / "backup") == manifest
    assert (manifest.fleet, manifest.services) == ("prod-1234", ("notifier",))
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    for spec in SAVED:
        assert await contents(source, spec.name) == await contents(target, spec.name), spec.name
        assert await target.last_sequence(spec.name) == await source.last_sequence(spec.name)
    found = await target.get_object(EVIDENCE, "case")
    assert found is not None
    assert found.data == b"x" * 300_000
    await set_up(target, CLOCK, replicas=1)
    assert await target.publish(REQUEST, b"{}") == 41


async def test_a_timer_fires_in_the_restored_store(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """At its time, or at once where that is over."""
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
    """What was stored again has the time of the restoration."""
    epoch = datetime.fromtimestamp(0, UTC)
    return [msgspec.structs.replace(each, time=epoch) for each in messages]


def flipped(file: Path) -> None:
    """One bit of the file's middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "an archive's bit": (
        lambda each: flipped(each / "EVENTS.archive"),
        "EVENTS.archive is damaged",
    ),
    "an archive that is cut": (
        lambda each: os.truncate(each / "KV_NODES.archive", 20),
        "KV_NODES.archive is damaged",
    ),
    "a file that is gone": (
        lambda each: (each / "SAGAS.archive").unlink(),
        "is incomplete: it has no SAGAS.archive",
    ),
    "another backup's file": (
        lambda each: (each / "SAGAS.archive").write_bytes((each / "TIMERS.archive").read_bytes()),
        "SAGAS.archive is damaged, or of another backup",
    ),
    "the manifest's bit": (lambda each: flipped(each / MANIFEST), "manifest.json is damaged"),
    "no manifest": (lambda each: (each / MANIFEST).unlink(), "is no complete backup"),
    "no directory": (shutil.rmtree, "is no complete backup"),
    "a file for a directory": (
        lambda each: (shutil.rmtree(each), each.write_text("")),  # type: ignore[func-returns-value]
        "cannot be read: Not a directory",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_backup_is_refused_and_nothing_is_changed(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path, damage: str
) -> None:
    """One sentence says which file, before the server is asked for anything."""
    change, sentence = DAMAGES[damage]
    directory = tmp_path / "backup"
    await filled(source)
    await back_up(source, CLOCK, directory)
    change(directory)
    with pytest.raises(BackupError, match=re.escape(sentence)):
        await restore(target, CLOCK, directory, read_manifest(directory), replicas=1)
    assert await streams(target) == []


async def streams(bus: NatsBus) -> list[str]:
    """The names of all streams."""
    return list((await bus.admin("STREAM.NAMES", {})).get("streams") or [])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"server": (99, 0)}, "the backup was made of nats-server 99.0, and this one is 2.15"),
        ({"format": 2}, "is a backup of format 2, and this release reads format 1"),
    ],
    ids=["a newer server's", "of another format"],
)
async def test_a_backup_for_others_is_refused(
    source: ArchiveBus,
    target: ArchiveBus,
    tmp_path: Path,
    changed: dict[str, Any],
    sentence: str,
) -> None:
    """Of a newer server, whose archives this one may not read; of another format."""
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    (tmp_path / "backup" / MANIFEST).unlink()
    write_manifest(tmp_path / "backup", msgspec.structs.replace(manifest, **changed))
    with pytest.raises(BackupError, match=re.escape(sentence)):
        await restore(
            target, CLOCK, tmp_path / "backup", read_manifest(tmp_path / "backup"), replicas=1
        )
    assert await streams(target) == []


async def test_a_stream_that_this_release_does_not_know_is_refused(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """The sentence names the release that knows it."""
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    unknown = msgspec.structs.replace(manifest.streams[-1], stream="KV_NEWER")
    newer = msgspec.structs.replace(
        manifest, navarch="9.9", streams=(*manifest.streams[:-1], unknown)
    )
    with pytest.raises(BackupError, match=r"\(KV_NEWER\): restore it with Navarch 9\.9"):
        await restore(target, CLOCK, tmp_path / "backup", newer, replicas=1)
    assert await streams(target) == []


async def test_a_store_with_anything_in_it_is_not_restored_into(
    source: ArchiveBus, tmp_path: Path
) -> None:
    """Nothing of it is changed."""
    await filled(source)
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    before = await contents(source, SAGAS.name)
    with pytest.raises(BackupError, match="has streams already"):
        await restore(source, CLOCK, tmp_path / "backup", manifest, replicas=1)
    assert await contents(source, SAGAS.name) == before


async def test_a_directory_with_files_is_not_written_into(
    source: ArchiveBus, tmp_path: Path
) -> None:
    """What is in it stays."""
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "thesis").write_text("")
    with pytest.raises(BackupError, match="is not empty"):
        await back_up(source, CLOCK, tmp_path / "backup")
    assert (tmp_path / "backup" / "thesis").exists()


async def test_a_server_without_a_fleet_is_not_backed_up(
    target: ArchiveBus, tmp_path: Path
) -> None:
    """Nothing is left of the attempt."""
    with pytest.raises(BackupError, match="no fleet has run on it"):
        await back_up(target, CLOCK, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


class InterruptedRestoreError(Exception):
    """As Ctrl-C raises."""


@pytest.mark.parametrize("stream", [TELEMETRY.name, REQUESTS.name, SAGAS.name, EVENTS.name])
@pytest.mark.parametrize("inside", [False, True], ids=["between two streams", "inside a stream"])
async def test_an_interrupted_restore_is_seen_and_can_be_repeated(
    source: ArchiveBus,
    target: ArchiveBus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stream: str,
    *,
    inside: bool,
) -> None:
    """Services refuse to start on a part; the next restore removes it, at once."""
    await filled(source)
    manifest = await back_up(source, CLOCK, tmp_path / "backup")

    def interrupt(name: str) -> None:
        if name != stream:
            return
        if not inside:
            raise InterruptedRestoreError

        def half(file: Path) -> Iterator[bytes]:
            yield file.read_bytes()[:100]
            raise InterruptedRestoreError

        monkeypatch.setattr(store_restore, "read_chunks", half)

    with pytest.raises(InterruptedRestoreError):
        await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1, progress=interrupt)
    monkeypatch.undo()
    if stream != TELEMETRY.name:
        for waits in (False, True):
            with pytest.raises(SetupError, match="a restore into this store has not ended"):
                await set_up(target, CLOCK, replicas=1, waits=waits)
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    await set_up(target, CLOCK, replicas=1)
    for spec in SAVED:
        assert await contents(source, spec.name) == await contents(target, spec.name), spec.name


async def test_an_interrupted_backup_leaves_nothing(source: ArchiveBus, tmp_path: Path) -> None:
    """And the next one, into the same directory, is made."""

    def interrupt(name: str) -> None:
        if name == SAGAS.name:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await back_up(source, CLOCK, tmp_path / "backup", progress=interrupt)
    assert not (tmp_path / "backup").exists()
    await back_up(source, CLOCK, tmp_path / "backup")


async def test_an_older_server_is_refused(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its archives do not end at the sequence that it names."""
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    monkeypatch.setattr(store_backup, "SERVER_MIN", (99, 0))
    with pytest.raises(BackupError, match=r"nats-server is 2\.15; `navarch backup` needs 99\.0"):
        await back_up(source, CLOCK, tmp_path / "another")
    with pytest.raises(BackupError, match=r"`navarch restore` needs 99\.0"):
        await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
