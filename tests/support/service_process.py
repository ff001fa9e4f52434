"""A service as its own process, and the failures that services publish."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.fleet_events import ServiceFailure, fleet_codec
from schemas.subjects import FLEET_EVENTS
from schemas.topology import EVENTS
from services.bus.port import Bus


@asynccontextmanager
async def service_process(
    module: str, url: str, *arguments: str, seconds_max: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it with the bus at `url`, killed in the end; TimeoutError after `seconds_max`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        env=os.environ | {"NAVARCH_NATS_URL": url},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(seconds_max):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def service_failures(bus: Bus) -> AsyncIterator[ServiceFailure]:
    """Yield every beginning and every end, from the first on."""
    async for stored in bus.follow(EVENTS.name, [FLEET_EVENTS], "all"):
        event = fleet_codec.decode(stored.data)
        if isinstance(event, ServiceFailure):
            yield event
