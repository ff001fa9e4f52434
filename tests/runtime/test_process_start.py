"""A service that cannot start yet: operators learn why, and it can be stopped."""

import asyncio
import os
import sys

from schemas.fleet_events import ServiceFailure, fleet_codec
from schemas.pool_records import FLEET_KEY
from schemas.subjects import FLEET_EVENTS
from schemas.topology import EVENTS, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus

START_SECONDS_MAX = 30.0


async def test_what_keeps_a_service_from_starting_is_published(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """An unreadable record of the fleet: an event with the remedy, its end, and SIGTERM ends it."""
    await bus.put(POOLS, FLEET_KEY, b"garbage")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.pool_manager"),
        env=os.environ | {"NAVARCH_NATS_URL": server.url},
        stderr=asyncio.subprocess.DEVNULL,
    )
    events = bus.follow(EVENTS.name, [FLEET_EVENTS], "all")

    async def next_failure() -> ServiceFailure:
        async for stored in events:
            event = fleet_codec.decode(stored.data)
            if isinstance(event, ServiceFailure):
                return event
        raise AssertionError

    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            began = await next_failure()
            assert (began.status, began.about) == ("failing", "POOLS fleet")
            assert "nats kv del POOLS fleet" in began.remedy
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
