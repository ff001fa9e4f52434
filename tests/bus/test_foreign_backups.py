"""A backup that a stranger has written does nothing to a host, and fills the store alone."""

import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from schemas.topology import EVENTS, SAGAS
from services.bus.backup.backup_files import (
    MANIFEST,
    BackupError,
    Manifest,
    SavedFile,
    read_manifest,
    write_manifest,
)
from services.bus.backup.later_messages import as_line
from services.bus.backup.store_backup import back_up
from services.bus.backup.store_restore import FILLERS_MAX, restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.port import Stored
from services.primitives.clock import SystemClock
from tests.bus.test_unfinished_backups import streams
from tests.support.clients import archive_connected
from tests.support.stored import filled

CLOCK: Final = SystemClock()
NOW: Final = datetime(2026, 11, 30, tzinfo=UTC)
SECRET: Final = b"-----BEGIN NATS USER JWT-----"


class Forger:
    """Changes a backup, and seals it again as who may write its directory can."""

    def __init__(self, directory: Path) -> None:
        """Begin with a backup that is whole."""
        self.directory = directory
        self.manifest = read_manifest(directory)

    def stream(self, name: str, **changes: Any) -> None:
        """Change what the manifest says of a stream."""
        changed = tuple(
            msgspec.structs.replace(each, **changes) if each.stream == name else each
            for each in self.manifest.streams
        )
        self.seal(msgspec.structs.replace(self.manifest, streams=changed))

    def seal(self, manifest: Manifest) -> None:
        """Write the manifest with a checksum that is right."""
        self.manifest = manifest
        (self.directory / MANIFEST).unlink()
        write_manifest(self.directory, manifest)

    def archive(self, name: str, data: bytes = b"") -> None:
        """Have a stream's archive be a file of this name, with the checksum of its content."""
        digest = hashlib.sha256(data).hexdigest()
        self.stream(SAGAS.name, archive=SavedFile(name=name, bytes=len(data), sha256=digest))

    def later(self, stream: str, *found: Stored, raw: bytes = b"", **changes: Any) -> None:
        """Have these messages be newer than the archive of a stream."""
        data = raw or b"".join(map(as_line, found))
        (self.directory / f"{stream}.later").write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        file = SavedFile(name=f"{stream}.later", bytes=len(data), sha256=digest)
        self.stream(stream, later=file, **changes)


def message(subject: str, sequence: int = 1) -> Stored:
    """Return a message as a backup keeps it."""
    return Stored(subject=subject, data=b"{}", sequence=sequence, time=NOW)


def outside(forger: Forger) -> None:
    """Name a file of the host whose content its writer has guessed."""
    (forger.directory.parent / "admin.creds").write_bytes(SECRET)
    forger.archive("../admin.creds", SECRET)


def absolute(forger: Forger) -> None:
    """Name such a file by its whole path."""
    file = forger.directory.parent / "admin.creds"
    file.write_bytes(SECRET)
    forger.archive(str(file), SECRET)


def linked(forger: Forger) -> None:
    """Have a file of the backup be a link to such a file."""
    (forger.directory.parent / "admin.creds").write_bytes(SECRET)
    (forger.directory / "SAGAS.archive").unlink()
    (forger.directory / "SAGAS.archive").symlink_to("../admin.creds")
    forger.archive("SAGAS.archive", SECRET)


def endless(forger: Forger) -> None:
    """Have it be a device that never ends."""
    (forger.directory / "SAGAS.archive").unlink()
    (forger.directory / "SAGAS.archive").symlink_to("/dev/zero")
    forger.archive("SAGAS.archive")


def waiting(forger: Forger) -> None:
    """Have it be a pipe into which nothing is written."""
    (forger.directory / "SAGAS.archive").unlink()
    os.mkfifo(forger.directory / "SAGAS.archive")
    forger.archive("SAGAS.archive")


def waiting_manifest(forger: Forger) -> None:
    """Have the manifest be a pipe."""
    (forger.directory / MANIFEST).unlink()
    os.mkfifo(forger.directory / MANIFEST)


def long_manifest(forger: Forger) -> None:
    """Have the manifest be ten gigabytes that take no room on the disk."""
    os.truncate(forger.directory / MANIFEST, 10 * 1024**3)


def long_line(forger: Forger) -> None:
    """Have a message be longer than the server takes."""
    forger.later(EVENTS.name, raw=b'{"subject":"' + b"x" * 8 * 1024**2)


FORGERIES: Final[dict[str, tuple[Callable[[Forger], None], str]]] = {
    "a file outside": (outside, "damaged"),
    "a file by its path": (absolute, "damaged"),
    "a link": (linked, "is a link"),
    "a device": (endless, "is a link|damaged"),
    "a pipe": (waiting, "damaged"),
    "a pipe for the manifest": (waiting_manifest, "damaged"),
    "a manifest without end": (long_manifest, "longer than"),
    "a line without end": (long_line, "damaged"),
    "a call of the server": (
        lambda each: each.later(EVENTS.name, message("$JS.API.STREAM.DELETE.KV_POOLS")),
        "other streams",
    ),
    "a command to an agent": (
        lambda each: each.later(EVENTS.name, message("navarch.v1.node.p.n1.command.reboot")),
        "other streams",
    ),
    "another stream's record": (
        lambda each: each.later(EVENTS.name, message("$KV.NODES.p.n1")),
        "other streams",
    ),
    "more sequences than there can be": (
        lambda each: each.stream(SAGAS.name, last_sequence=10**15),
        f"{FILLERS_MAX} are filled in",
    ),
    "a message far ahead": (
        lambda each: each.later(SAGAS.name, message("navarch.v1.saga.s1.a.started", 10**15)),
        "beyond its own end",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_backup_is_refused_and_nothing_is_changed(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path, name: str
) -> None:
    """The checksums are right: who may write a backup's directory can make them so."""
    forge, sentence = FORGERIES[name]
    directory = tmp_path / "backup"
    await filled(source)
    await back_up(source, CLOCK, directory)
    forge(Forger(directory))

    with pytest.raises(BackupError, match=sentence) as refused:
        await restore(target, CLOCK, directory, read_manifest(directory), replicas=1)

    assert SECRET.decode() not in str(refused.value)
    assert await streams(target) == []


async def test_a_backup_calls_nothing_of_the_server(source: ArchiveBus, tmp_path: Path) -> None:
    """A restore that failed half-way leaves another stream of the server alone."""
    directory = tmp_path / "backup"
    await filled(source)
    await back_up(source, CLOCK, directory)
    Forger(directory).later(EVENTS.name, message("$JS.API.STREAM.DELETE.MINE"))
    server = EmbeddedServer(tmp_path / "empty", sync=False)
    await server.start()
    bus = await archive_connected(server)
    try:
        await bus.admin("STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["mine"]})
        with pytest.raises(BackupError):
            await restore(bus, CLOCK, directory, read_manifest(directory), replicas=1)
        assert await streams(bus) == ["MINE"]
    finally:
        await bus.close()
        await server.kill()


async def test_a_backup_is_its_owners_alone(source: ArchiveBus, tmp_path: Path) -> None:
    """The umask of its maker changes nothing: a backup has every record of the fleet."""
    before = os.umask(0)
    try:
        await filled(source)
        await back_up(source, CLOCK, tmp_path / "backup")
    finally:
        os.umask(before)
    found = {each: each.stat().st_mode & 0o777 for each in (tmp_path / "backup").iterdir()}
    assert len(found) > 20
    assert set(found.values()) == {0o600}
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700
