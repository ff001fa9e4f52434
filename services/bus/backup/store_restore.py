"""Restores a backup into a server that has no streams of Navarch.

The first stream is marked in its metadata until all others are there: services refuse to start on
it, and another attempt removes what the first has left. EVENTS comes last: agents keep their events
until it is there, and store none between those of the backup.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas import headers as h
from schemas.stream_specs import MESSAGE_BYTES_MAX, StreamSpec
from schemas.topology import DURABLES, EVENTS, EVERY_STREAM, INTAKE, TELEMETRY
from services.bus.backup.backup_files import (
    DAMAGED,
    BackupError,
    Manifest,
    SavedStream,
    check_files,
    open_plain,
    read_chunks,
)
from services.bus.backup.later_messages import (
    filler_subject,
    headers_again,
    keeps_sequences,
    read_line,
)
from services.bus.backup.store_backup import SAVED, require_archives
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.port import Stored
from services.bus.protocol.ephemeral_consumer import is_followers
from services.bus.protocol.subject_filters import pattern
from services.bus.topology_setup import (
    RESTORE_MARK,
    begin_durable,
    is_marked,
    patiently,
    set_up_stream,
    stream_config,
)
from services.primitives.clock import Clock

FILLERS_AT_ONCE: Final = 256
FILLERS_MAX: Final = 1_000_000
"""Sequences that were used up while a backup was made; each is stored, and removed again."""
LINE_BYTES_MAX: Final = 4 * MESSAGE_BYTES_MAX
"""Of a message and its headers as JSON, in which bytes are a third longer."""
ORDER: Final = (
    TELEMETRY,
    *(each for each in SAVED if each not in (TELEMETRY, EVENTS)),
    # As an earlier release has it: set-up has INTAKE take the facts of agents again.
    msgspec.structs.replace(EVENTS, subjects=(*EVENTS.subjects, *INTAKE.subjects), sources=()),
)

Progress = Callable[[str], None]


async def restore(
    bus: ArchiveBus,
    clock: Clock,
    directory: Path,
    manifest: Manifest,
    *,
    replicas: int,
    progress: Progress = lambda _: None,
) -> None:
    """Restore a backup with so many replicas; what it has must be whole and for this server."""
    require_archives(bus, "restore")
    _require_known(manifest)
    if bus.server_version < manifest.server:
        newer, older = (".".join(map(str, each)) for each in (manifest.server, bus.server_version))
        raise BackupError(
            f"the backup was made of nats-server {newer}, and this one is {older}, which may not "
            "read it: restore into a server of that version or a later one"
        )
    await asyncio.to_thread(check_files, directory, manifest)
    await asyncio.to_thread(check_later, directory, manifest)
    await _make_room(bus, clock)
    found = {each.stream: each for each in manifest.streams}
    for spec in ORDER:
        if spec.name in found:
            progress(spec.name)
            await _restore_stream(bus, clock, directory, spec, found[spec.name], replicas)
    await _remember_ids(bus, EVENTS, manifest.ended_at)
    floors = {(each.stream, each.name): each.floor for each in manifest.durables}
    for durable in DURABLES:
        if (floor := floors.get((durable.stream, durable.name))) is not None:
            begun = partial(begin_durable, bus, durable, floor, replicas)
            await patiently(clock, begun)
    await set_up_stream(bus, TELEMETRY, replicas, ends_restore=True)


def check_later(directory: Path, manifest: Manifest) -> None:
    """Raise BackupError where what is newer than the archives is not of its own stream.

    It is published with an administrator's rights: a subject of the server's own would be a call.
    """
    specs = {each.name: each for each in ORDER}
    for saved in manifest.streams:
        last, subjects = int(saved.state.get("last_seq", 0)), specs[saved.stream].subjects
        if saved.last_sequence - last > FILLERS_MAX:
            raise BackupError(
                f"{directory}: {saved.stream} lacks {saved.last_sequence - last} sequences, and "
                f"{FILLERS_MAX} are filled in at most: restore another backup"
            )
        for stored in _later(directory, saved):
            if not pattern(subjects).fullmatch(stored.subject):
                raise BackupError(
                    f"{directory}: {saved.stream}.later has messages of other streams"
                )
            if not 0 < stored.sequence <= saved.last_sequence:
                raise BackupError(f"{directory}: {saved.stream}.later is beyond its own end")


def _require_known(manifest: Manifest) -> None:
    known = {each.name for each in SAVED}
    if unknown := [each.stream for each in manifest.streams if each.stream not in known]:
        raise BackupError(
            f"the backup has streams that this release does not know ({', '.join(unknown)}): "
            f"restore it with Navarch {manifest.navarch}"
        )
    if TELEMETRY.name not in {each.stream for each in manifest.streams}:
        raise BackupError(f"the backup has no stream {TELEMETRY.name}: it is of another program")


async def _make_room(bus: ArchiveBus, clock: Clock) -> None:
    """Refuse a store with something in it; remove what an unfinished restore has left."""
    present = {}
    for spec in EVERY_STREAM:
        config = await patiently(clock, partial(stream_config, bus, spec))
        if config is not None:
            present[spec.name] = config
    if not present:
        return
    if not is_marked(present.get(TELEMETRY.name, {})):
        raise BackupError(
            f"the server has streams already ({', '.join(sorted(present))}): restore into an empty "
            "one, with no service connected to it. Nothing was changed"
        )
    for name in sorted(present, key=lambda each: each == TELEMETRY.name):
        await bus.admin(f"STREAM.DELETE.{name}", {})


async def _restore_stream(
    bus: ArchiveBus,
    clock: Clock,
    directory: Path,
    spec: StreamSpec,
    saved: SavedStream,
    replicas: int,
) -> None:
    config = spec.config(replicas)
    if spec is TELEMETRY:
        config["metadata"] = RESTORE_MARK
    begun = partial(bus.begin_load, config, saved.state)
    place = await patiently(clock, begun, idempotent=False)
    await bus.load(spec.name, place, read_chunks(directory / saved.archive.name))
    await _require_no_consumers(bus, clock, spec, directory / saved.archive.name)
    last, filled = int(saved.state["last_seq"]), False
    for stored in _later(directory, saved):
        headers = headers_again(stored, spec, clock.now())
        if headers is None:
            continue
        if keeps_sequences(spec) and last < stored.sequence - 1:
            last, filled = await _fill(bus, spec, last, stored.sequence - 1), True
        last = await bus.store_as_is(stored.subject, stored.data, headers)
    if keeps_sequences(spec) and last < saved.last_sequence:
        await _fill(bus, spec, last, saved.last_sequence)
        filled = True
    if filled:
        await bus.purge(spec.name, filler_subject(spec))


async def _require_no_consumers(
    bus: ArchiveBus, clock: Clock, spec: StreamSpec, file: Path
) -> None:
    """Remove what was restored where an archive brought consumers, which `backup` leaves out.

    One that a stranger has added would send its messages to any subject, as the server itself.
    Clients that follow streams may have made theirs already.
    """
    answer = await bus.admin(f"CONSUMER.LIST.{spec.name}", {})
    found = answer.get("consumers") or []
    all_listed = int(answer["total"]) == len(found)
    if not (all_listed and all(is_followers(each["config"]) for each in found)):
        await bus.admin(f"STREAM.DELETE.{spec.name}", {})
        await _make_room(bus, clock)
        raise BackupError(
            f"{file} has consumers, which no backup of Navarch has: another program made it, or is "
            "connected and has made one. What was restored is removed again"
        )


async def _remember_ids(bus: ArchiveBus, spec: StreamSpec, saved_at: datetime) -> None:
    """Have the server know again the IDs of the last messages, which it learns from none it loads.

    An event may be published again by a service that was ended before it noted the first time.
    """
    after: int | datetime = saved_at - timedelta(seconds=spec.duplicate_window_seconds)
    last = await bus.last_sequence(spec.name)
    while page := await bus.read_batch(spec.name, ">", after=after, count=FILLERS_AT_ONCE):
        after = page[-1].sequence
        ids = [each.headers.get(h.MSG_ID) for each in page if each.sequence <= last]
        await asyncio.gather(
            *(bus.store_as_is(filler_subject(spec), b"", {h.MSG_ID: id_}) for id_ in ids if id_)
        )
        if after >= last:
            break
    await bus.purge(spec.name, filler_subject(spec))


def _later(directory: Path, saved: SavedStream) -> Iterator[Stored]:
    if saved.later is not None:
        file = directory / saved.later.name
        with open_plain(file) as lines:
            while line := lines.readline(LINE_BYTES_MAX):
                try:
                    yield read_line(line)
                except msgspec.DecodeError as error:
                    raise BackupError(f"{file} {DAMAGED}") from error


async def _fill(bus: ArchiveBus, spec: StreamSpec, last: int, until: int) -> int:
    """Use up the sequences of messages that are gone, up to this one."""
    subject = filler_subject(spec)
    while last < until:
        count = min(until - last, FILLERS_AT_ONCE)
        last = max(await asyncio.gather(*(bus.store_as_is(subject, b"", {}) for _ in range(count))))
    return last
