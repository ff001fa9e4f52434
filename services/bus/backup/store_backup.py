"""Saves every stream and bucket, also of a fleet that runs, so that a restored one is whole.

Three moments follow one another: the positions of the durables, then the records, then the logs. So
no durable has settled a message whose effect is not recorded, and no record names an entry of a log
that is missing. Each stream is the server's archive and what was stored after it. Of a work queue
that is read before the records, and its last sequence after them: a request that is gone because
its effect is recorded must not leave its number to another.
"""

import logging
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from schemas.messages import decoder
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.stream_specs import StreamSpec
from schemas.topology import (
    DEAD,
    DURABLES,
    EVENTS,
    EVERY_STREAM,
    INTAKE,
    POOLS,
    REQUESTS,
    SAGAS,
    STREAMS,
    TIMERS,
)
from services.bus.backup.backup_files import (
    BackupError,
    Manifest,
    SavedDurable,
    SavedStream,
    new_file,
    write_manifest,
    writing,
)
from services.bus.backup.later_messages import as_line
from services.bus.fact_copies import all_copied
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.topology_setup import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from services.primitives.clock import Clock
from services.primitives.errors import Refused

log = logging.getLogger(__name__)

SERVER_MIN: Final = (2, 15)
"""The first version whose archives keep every sequence and end where the server says."""
SAVED: Final = tuple(each for each in EVERY_STREAM if not each.in_memory and each is not INTAKE)
"""Without INTAKE: a backup waits until EVENTS has what is there, and reads EVENTS last."""
COPIED_LOOK_SECONDS: Final = 0.1
COPIED_LOOKS_MAX: Final = 300
"""Half a minute of them: where INTAKE was deleted the server copies again after 20 s."""
QUEUES: Final = (REQUESTS, TIMERS)
LOGS: Final = (DEAD, SAGAS, EVENTS)
LATER: Final = (*QUEUES, *(each for each in SAVED if each not in STREAMS), *LOGS)
"""The order in which what is newer than the archives is read. TELEMETRY, which is expendable, is as
its archive has it."""

PAGE: Final = 200
"""Messages; an object's parts have 128 KiB."""

Progress = Callable[[str], None]
_fleet: Final = decoder(FleetRecord)


async def back_up(
    bus: ArchiveBus,
    clock: Clock,
    directory: Path,
    *,
    services: tuple[str, ...] = (),
    progress: Progress = lambda _: None,
) -> Manifest:
    """Make a backup in a directory that is new or empty; where this fails nothing is left there.

    `services`: those that run, for the manifest.
    """
    require_archives(bus, "backup")
    with writing(directory):
        began_at = clock.now()
        replicas = await _replicas(bus)
        durables = [each async for each in _positions(bus)]
        saved = {}
        for spec in SAVED:
            progress(spec.name)
            saved[spec.name] = await _archive(bus, directory, spec)
        await _facts_copied(bus, clock)
        for spec in LATER:
            saved[spec.name] |= await _newer(bus, directory, spec, saved[spec.name]["state"])
        for spec in QUEUES:
            saved[spec.name]["last_sequence"] = await bus.last_sequence(spec.name)
        entry = await bus.get(POOLS, FLEET_KEY)
        manifest = Manifest(
            fleet=_fleet.decode(entry.value).id if entry else "",
            navarch=version("navarch"),
            server=bus.server_version,
            began_at=began_at,
            ended_at=clock.now(),
            services=services,
            replicas=replicas,
            streams=tuple(SavedStream(stream=name, **each) for name, each in saved.items()),
            durables=tuple(durables),
        )
        write_manifest(directory, manifest)
    return manifest


async def _facts_copied(bus: ArchiveBus, clock: Clock) -> None:
    """Wait for facts that were acknowledged and are not in EVENTS yet, which is read afterwards."""
    for _ in range(COPIED_LOOKS_MAX):
        if await all_copied(bus):
            return
        await clock.sleep(COPIED_LOOK_SECONDS)
    log.warning("the backup may lack the last facts of agents: %s is not copied", INTAKE.name)


def require_archives(bus: ArchiveBus, command: str) -> None:
    """Refuse a server whose archives cannot be restored exactly."""
    if bus.server_version < SERVER_MIN:
        wanted, found = (".".join(map(str, each)) for each in (SERVER_MIN, bus.server_version))
        raise BackupError(
            f"nats-server is {found}; `navarch {command}` needs {wanted} or later, whose archives "
            "keep every sequence: upgrade the servers first, one after the other"
        )


async def _replicas(bus: ArchiveBus) -> int:
    try:
        info = await bus.admin(f"STREAM.INFO.{EVENTS.name}", {})
    except Refused as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        raise BackupError(
            f"the server has no stream {EVENTS.name}: no fleet has run on it in this account"
        ) from error
    return int(info["config"]["num_replicas"])


async def _positions(bus: ArchiveBus) -> AsyncIterator[SavedDurable]:
    """Of work queues nothing need be known: what is settled is gone."""
    queues = {each.name for each in QUEUES}
    for spec in DURABLES:
        if spec.stream in queues:
            continue
        try:
            info = await bus.admin(f"CONSUMER.INFO.{spec.stream}.{spec.name}", {})
        except Refused as error:
            if error.code != CONSUMER_NOT_FOUND:
                raise
            continue
        floor = int(info["ack_floor"]["stream_seq"])
        yield SavedDurable(stream=spec.stream, name=spec.name, floor=floor)


async def _archive(bus: ArchiveBus, directory: Path, spec: StreamSpec) -> dict[str, Any]:
    with new_file(directory / f"{spec.name}.archive") as file:
        answer = await bus.save(spec.name, file.write)
        state = answer["state"]
        return {"state": state, "archive": file.close(), "last_sequence": state["last_seq"]}


async def _newer(
    bus: ArchiveBus, directory: Path, spec: StreamSpec, state: dict[str, Any]
) -> dict[str, Any]:
    """Everything stored since the archive, as it is at one moment.

    It ends with a page that is not full: whatever is read later than its key was overwritten comes
    at its new place. Any replica answers, so the last one must have all that the leader had before.
    """
    last = int(state["last_seq"])
    with new_file(directory / f"{spec.name}.later") as file:
        while True:
            known = await bus.last_sequence(spec.name, ">")
            page = await bus.read_batch(spec.name, ">", after=last, count=PAGE)
            for stored in page:
                file.write(as_line(stored))
            last = page[-1].sequence if page else last
            if len(page) < PAGE and known <= last:
                return {"later": file.close(), "last_sequence": last}
