"""A fleet is moved to an empty server in the middle of a replacement, which then goes on there."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from schemas.topology import DURABLES, NOTIFIER_STEPS
from services.bus.backup.backup_files import read_manifest
from services.bus.backup.store_backup import back_up
from services.bus.backup.store_restore import restore
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.embedded_server import STORE_FOLDER, EmbeddedServer
from services.primitives.clock import SystemClock
from tests.crash.rig import Moment, Rig, Shape
from tests.crash.rounds import moments, sample
from tests.support.clients import archive_connected
from tests.support.settling import settled

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHAPE = Shape()
CLOCK = SystemClock()


@asynccontextmanager
async def administrator(server: EmbeddedServer) -> AsyncIterator[ArchiveBus]:
    """Provide an administrator's connection."""
    bus = await archive_connected(server)
    try:
        yield bus
    finally:
        await bus.close()


async def moved(rig: Rig, directory: Path) -> None:
    """Back up a fleet whose services have ended, and restore it into an empty server.

    Agents go on; they cannot reach the old server while it is saved, so they keep what they report.
    """
    await rig.server.stop()
    old = EmbeddedServer(rig.directory / "nats", name="old", sync=False)
    await old.start()
    async with administrator(old) as bus:
        await back_up(bus, CLOCK, directory)
    await old.stop()
    await replaced_server(rig, directory)


async def replaced_server(rig: Rig, directory: Path) -> None:
    """A new server in the place of one that has ended, with what the backup has."""
    shutil.rmtree(rig.directory / "nats" / STORE_FOLDER)
    await rig.server.start()
    async with administrator(rig.server) as bus:
        await restore(bus, CLOCK, directory, read_manifest(directory), replicas=1)


async def killed(rig: Rig) -> None:
    """End every service at once."""
    for each in rig.replicas:
        each.kill()
    await asyncio.gather(*(each.gone() for each in rig.replicas))


async def started(rig: Rig) -> None:
    """Start every service again."""
    await asyncio.gather(*(each.start() for each in rig.replicas))
    await asyncio.gather(*(each.is_ready() for each in rig.replicas))


@pytest.mark.parametrize("moment", sample(moments(SHAPE.order), 3), ids=str)
async def test_a_replacement_goes_on_in_a_restored_store(
    rig: Rig, tmp_path: Path, moment: Moment
) -> None:
    """All services are killed at a moment of it: nothing is lost, doubled or leaked."""
    await asyncio.gather(*(each.is_ready() for each in rig.replicas))

    def kill() -> None:
        for each in rig.replicas:
            each.kill()

    struck = rig.arm(moment, kill)
    await rig.break_a_node()
    async with asyncio.timeout(60):
        await struck.wait()
    await killed(rig)
    await moved(rig, tmp_path / "backup")
    await started(rig)
    found, report = await rig.differences()
    assert not found, report


async def test_a_backup_of_a_running_fleet_has_its_open_saga(rig: Rig, tmp_path: Path) -> None:
    """The drain of a node goes on in the restored store, as if nothing had been."""
    rig.workload.holding = True
    draining = rig.arm(Moment("drain", "started"), lambda: None)
    await rig.break_a_node()
    async with asyncio.timeout(60):
        await draining.wait()
    for each in DURABLES:
        if each is not NOTIFIER_STEPS:  # which has the drain in its hands
            await settled(rig.bus, each.stream, each.name)
    async with administrator(rig.server) as bus:
        await back_up(bus, CLOCK, tmp_path / "backup")
    await killed(rig)
    await rig.server.kill()
    await replaced_server(rig, tmp_path / "backup")
    await started(rig)
    rig.workload.holding = False
    found, report = await rig.differences()
    assert not found, report
