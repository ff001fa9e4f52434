"""Backups that are refused or interrupted, and transfers that stall: what is left of them."""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.topology import (
    EVENTS,
    REQUESTS,
    SAGAS,
    TELEMETRY,
)
from services.bus.backup import store_backup, store_restore
from services.bus.backup.backup_files import (
    MANIFEST,
    BackupError,
    FileWriter,
    read_manifest,
    write_manifest,
)
from services.bus.backup.store_backup import SAVED, back_up
from services.bus.backup.store_restore import restore
from services.bus.nats import archive_bus
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import SetupError, Unavailable
from tests.support.settling import arriving
from tests.support.stored import contents, filled

CLOCK = SystemClock()
PAUSE_SECONDS = 9.0
"""The server waits five, counted from when its window is full: seconds later on a slow machine."""
PAUSE_AT_BYTES = 100_000


def flipped(file: Path) -> None:
    """Flip one bit in the file's middle."""
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
    """A backup of a newer server is refused: its archives this server may not be able to read.

    A backup of another format is refused, too.
    """
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
    """The files that are in the directory stay there."""
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
    """Interrupts a restore, as Ctrl-C does."""


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
    """The next backup, into the same directory, is made."""

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
    """The archives of an older server do not end at the sequence that it names."""
    manifest = await back_up(source, CLOCK, tmp_path / "backup")
    monkeypatch.setattr(store_backup, "SERVER_MIN", (99, 0))
    with pytest.raises(BackupError, match=r"nats-server is 2\.15; `navarch backup` needs 99\.0"):
        await back_up(source, CLOCK, tmp_path / "another")
    with pytest.raises(BackupError, match=r"`navarch restore` needs 99\.0"):
        await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)


async def test_a_side_that_is_silent_for_too_long_ends_a_backup(
    source: ArchiveBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was stopped for seconds: the server gives up, and nothing is left."""
    for number in range(120):  # more than the server sends without an acknowledgement
        await source.publish(f"navarch.v1.node.p.n{number}.event.fault", os.urandom(100_000))
    await arriving(source)
    write, paused = FileWriter.write, []

    def stall(self: FileWriter, data: bytes) -> None:
        write(self, data)
        if len(data) > PAUSE_AT_BYTES and not paused:
            paused.append(True)
            time.sleep(PAUSE_SECONDS)

    monkeypatch.setattr(FileWriter, "write", stall)
    with pytest.raises(Unavailable, match=r"ended early: 408|nothing came of"):
        await back_up(source, CLOCK, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    await back_up(source, CLOCK, tmp_path / "backup")


async def test_a_side_that_is_silent_for_too_long_ends_a_restore(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream that was in transfer is gone or a part; the next restore is whole."""
    await filled(source)
    manifest = await back_up(source, CLOCK, tmp_path / "backup")

    def halting(file: Path) -> Iterator[bytes]:
        data = file.read_bytes()
        yield data[:100]
        time.sleep(PAUSE_SECONDS)
        yield data[100:]

    monkeypatch.setattr(store_restore, "read_chunks", halting)
    # The sentence is for a server that is itself too slow, which looks the same.
    monkeypatch.setattr(archive_bus, "STALLED_SECONDS", 0.0)
    with pytest.raises(Unavailable, match="start it with `sync_interval: 2m`"):
        await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    monkeypatch.undo()
    await restore(target, CLOCK, tmp_path / "backup", manifest, replicas=1)
    await set_up(target, CLOCK, replicas=1)
    assert await contents(source, SAGAS.name) == await contents(target, SAGAS.name)
