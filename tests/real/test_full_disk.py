"""A real nats-server whose disk is full: what it refuses, for how long, and that it is seen.

The disk is a small one in memory. The server answers no write to a stream whose write failed, also
after room was made, until it is restarted; other streams go on.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from schemas import subjects
from schemas.topology import EVENTS, LEASES
from services.bus.nats.embedded_server import STORE_FOLDER, EmbeddedServer
from services.bus.protocol.write_outcomes import REFUSALS_MIN
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError, SetupError
from tests.support.clients import connected

pytestmark = pytest.mark.real

DISK_MIB = 64
CONFIG = """\
jetstream {{ store_dir: "{store}", sync_interval: always, max_file_store: 64G }}
"""
"""The server believes in more room than there is, as on a disk that others fill."""
EVENT = subjects.fleet_event("lag")
LARGE = b"x" * 500_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    """Return a directory on a disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "navarch-test", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {error}")
    return place


@asynccontextmanager
async def serving(disk: Path, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server whose store is on that disk."""
    config = tmp_path / "small.conf"
    config.write_text(CONFIG.format(store=disk / STORE_FOLDER))
    server = EmbeddedServer(disk, config=config)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
        subprocess.run(["umount", str(disk)], check=True, timeout=10)


async def test_a_stream_that_a_full_disk_stopped_is_known_until_the_server_restarts(
    small_disk: Path, tmp_path: Path
) -> None:
    """The probe of the store watch is taken all the time; only writes to EVENTS show it."""
    async with serving(small_disk, tmp_path) as server:
        bus = await connected(server)
        await set_up(bus, SystemClock(), replicas=1)
        filler = small_disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(LARGE)
        for _ in range(REFUSALS_MIN + 1):
            with pytest.raises(BusError):
                await bus.publish(EVENT, LARGE)
        assert list(bus.unwritable_streams()) == [EVENTS.name]
        filler.unlink()
        with pytest.raises(BusError):
            await bus.publish(EVENT, b"{}")
        await bus.put(LEASES, "notifier.probe", b"{}")
        assert list(bus.unwritable_streams()) == [EVENTS.name]
        await server.restart()
        async with asyncio.timeout(30):
            while bus.unwritable_streams():
                with suppress(BusError):
                    await bus.publish(EVENT, b"{}")
                await asyncio.sleep(0.2)
        await bus.close()


async def test_a_small_disk_is_enough_for_a_demo(small_disk: Path) -> None:
    """A store in a small /tmp in memory works, though its streams' limits exceed what is free."""
    server = EmbeddedServer(small_disk, sync=False)
    try:
        await server.start()
        await set_up(await connected(server), SystemClock(), replicas=1)
    finally:
        await server.stop()
        subprocess.run(["umount", str(small_disk)], check=True, timeout=10)


async def test_a_disk_that_is_too_small_for_a_fleet_is_named(small_disk: Path) -> None:
    """A service ends with what is wrong and what to do, and does not try for half a minute."""
    server = EmbeddedServer(small_disk)
    try:
        await server.start()
        with pytest.raises(
            SetupError, match=r"10047.*may hold 10 GiB.*14 GiB free.*max_file_store"
        ):
            await set_up(await connected(server), SystemClock(), replicas=1)
    finally:
        await server.stop()
        subprocess.run(["umount", str(small_disk)], check=True, timeout=10)
