"""An archive that a stranger has written writes no file elsewhere, and has nothing sent."""

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from schemas.topology import EVENTS, SAGAS
from services.bus.backup.backup_files import BackupError, SavedFile, read_manifest
from services.bus.backup.store_backup import back_up
from services.bus.backup.store_restore import restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.protocol.ephemeral_consumer import EphemeralConsumer
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError, Refused, StoreFull
from tests.bus.test_foreign_backups import Forger
from tests.bus.test_unfinished_backups import streams
from tests.support.clients import archive_connected
from tests.support.stored import filled
from tests.support.stream_archives import Member, archive, link, plain

CLOCK: Final = SystemClock()
COMMAND: Final = "navarch.v1.node.p.n1.command.reboot"
HUGE: Final = 10**15


def described(**changes: Any) -> Member:
    """Return the stream's own description, as its archive has it."""
    made = SAGAS.config(1) | {"Created": "2026-11-30T00:00:00Z"} | changes
    return plain("meta.inf", json.dumps(made).encode())


def consumer(**more: Any) -> list[Member]:
    """Return what an archive has of a consumer."""
    made = {"name": "evil", "Name": "evil", "durable_name": "evil", "num_replicas": 1} | more
    made |= {"deliver_policy": "all", "ack_policy": "none", "replay_policy": "instant"}
    made |= {"Created": "2026-11-30T00:00:00Z"}
    return [
        plain("obs/evil/meta.inf", json.dumps(made).encode()),
        plain("obs/evil/meta.sum", b"0" * 16),
    ]


def sparse() -> Member:
    """Return a petabyte of nothing, which takes no room in the archive."""
    member, data = plain("msgs/1.blk", (b"1\n%d\n0\n" % HUGE).ljust(512, b"\0"))
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": member.name,
        "GNU.sparse.realsize": str(HUGE),
    }
    return member, data


ARCHIVES: Final[dict[str, tuple[Callable[[], list[Member]], type[NavarchError]]]] = {
    "a name that goes up": (
        lambda: [described(), plain("../../../../evil", b"x")],
        Refused,
    ),
    "a link": (lambda: [described(), link("msgs", "/etc")], Refused),
    "a hard link": (lambda: [described(), link("x", "/etc/passwd", tarfile.LNKTYPE)], Refused),
    "a folder": (lambda: [described(), link("msgs", "", tarfile.DIRTYPE)], Refused),
    "a pipe": (lambda: [described(), link("msgs/1.blk", "", tarfile.FIFOTYPE)], Refused),
    "a petabyte of nothing": (lambda: [described(), sparse()], StoreFull),
    "another stream": (lambda: [described(name="KV_POOLS")], Refused),
    "no description": (lambda: [plain("msgs/1.blk", b"x")], Refused),
    "a consumer": (lambda: [described(), *consumer()], BackupError),
    "a consumer that commands an agent": (
        lambda: [described(), *consumer(deliver_subject=COMMAND)],
        BackupError,
    ),
    "a consumer that calls the server": (
        lambda: [described(), *consumer(deliver_subject="$JS.API.STREAM.DELETE.EVENTS")],
        BackupError,
    ),
}


async def forged(source: ArchiveBus, directory: Path, members: list[Member]) -> None:
    """Make a backup, and have these members be the archive of one of its streams."""
    await filled(source)
    await back_up(source, CLOCK, directory)
    data = archive(members)
    (directory / "SAGAS.archive").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    saved = SavedFile(name="SAGAS.archive", bytes=len(data), sha256=digest)
    Forger(directory).stream(SAGAS.name, archive=saved)


@pytest.mark.parametrize("name", ARCHIVES)
async def test_a_forged_archive_is_refused(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path, name: str
) -> None:
    """A stream of it is not there then, and no file is where none belongs."""
    made, error = ARCHIVES[name]
    await forged(source, tmp_path / "backup", made())
    with pytest.raises(error):
        await restore(
            target, CLOCK, tmp_path / "backup", read_manifest(tmp_path / "backup"), replicas=1
        )
    assert SAGAS.name not in await streams(target)
    assert "evil" not in {
        each for _, *found in os.walk(tmp_path) for names in found for each in names
    }
    if error is BackupError:
        assert await streams(target) == []


class Followed(ArchiveBus):
    """A connection beside which another client follows SAGAS as soon as it is there."""

    async def load(self, stream: str, place: str, chunks: Iterable[bytes]) -> None:
        """Restore the stream, and have it followed."""
        await super().load(stream, place, chunks)
        if stream == SAGAS.name:
            await EphemeralConsumer(self, stream, (">",), "new", None, lambda: "watch").prepare()


async def test_a_stream_that_a_client_follows_at_once_is_restored(
    source: ArchiveBus, target_server: EmbeddedServer, tmp_path: Path
) -> None:
    """An event page or `navarch watch` is open: its consumer is no stranger's."""
    backup = tmp_path / "backup"
    await filled(source)
    await back_up(source, CLOCK, backup)
    bus = await archive_connected(target_server, Followed)
    try:
        await restore(bus, CLOCK, backup, read_manifest(backup), replicas=1)
        assert EVENTS.name in await streams(bus)
    finally:
        await bus.close()


async def test_an_absolute_name_is_one_below_the_streams_folder(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """The server takes it for a name of its own; what is stored is as before."""
    outside = tmp_path / "outside"
    members = [described(), plain(str(outside), b"x")]
    await forged(source, tmp_path / "backup", members)
    await restore(
        target, CLOCK, tmp_path / "backup", read_manifest(tmp_path / "backup"), replicas=1
    )
    assert not outside.exists()


async def test_the_streams_own_configuration_counts(
    source: ArchiveBus, target: ArchiveBus, tmp_path: Path
) -> None:
    """An archive has its stream send nothing on, and take nothing that is not its own."""
    lies = {"republish": {"src": ">", "dest": "x.>"}, "subjects": ["x", "navarch.v1.saga.>"]}
    await forged(source, tmp_path / "backup", [described(**lies)])
    await restore(
        target, CLOCK, tmp_path / "backup", read_manifest(tmp_path / "backup"), replicas=1
    )
    found = (await target.admin(f"STREAM.INFO.{SAGAS.name}", {}))["config"]
    assert found["republish"]["dest"] == SAGAS.config(1)["republish"]["dest"]
    assert found["subjects"] == list(SAGAS.subjects)
