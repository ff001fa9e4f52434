"""A service that cannot start yet: operators learn why, and it can be stopped."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schemas.fleet_events import ServiceFailure, fleet_codec
from schemas.pool_records import FLEET_KEY
from schemas.subjects import FLEET_EVENTS
from schemas.topology import EVENTS, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus

START_SECONDS_MAX = 30.0


@asynccontextmanager
async def starting(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A pool-manager as its own process, killed in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.pool_manager"),
        env=os.environ | {"NAVARCH_NATS_URL": url},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("removed", [False, True])
async def test_what_keeps_a_service_from_starting_is_published(
    server: EmbeddedServer, bus: NatsBus, *, removed: bool
) -> None:
    """An unreadable record of the fleet: an event with the remedy, and its end once that is done.

    SIGTERM ends the wait.
    """
    await bus.put(POOLS, FLEET_KEY, b"garbage")
    events = bus.follow(EVENTS.name, [FLEET_EVENTS], "all")

    async def next_failure() -> ServiceFailure:
        async for stored in events:
            event = fleet_codec.decode(stored.data)
            if isinstance(event, ServiceFailure):
                return event
        raise AssertionError

    async with starting(server.url) as process:
        began = await next_failure()
        assert (began.status, began.about) == ("failing", "POOLS fleet")
        assert "nats kv del POOLS fleet" in began.remedy
        if removed:
            await bus.delete(POOLS, FLEET_KEY)
            ended = await next_failure()
            assert (ended.status, ended.about) == ("recovered", "POOLS fleet")
            assert await bus.get(POOLS, FLEET_KEY) is not None
        process.terminate()
        assert await process.wait() == 0
