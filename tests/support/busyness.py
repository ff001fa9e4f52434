"""Measures how a busy machine delays promises made in seconds."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

TICK_SECONDS = 0.02


def allowed(seconds: float) -> float:
    """The same on this machine now: where three processes want each core, thrice as long."""
    wanting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * max(1.5, wanting)


@asynccontextmanager
async def watched() -> AsyncIterator[Callable[[], float]]:
    """Yield a function that returns the longest time for which this process did not run."""
    clock = asyncio.get_running_loop().time
    longest, last = 0.0, clock()

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(TICK_SECONDS)  # what is watched is whether it comes back in time
            longest, last = max(longest, clock() - last - TICK_SECONDS), clock()

    ticking = asyncio.create_task(tick())
    try:
        yield lambda: max(longest, clock() - last - TICK_SECONDS)
    finally:
        ticking.cancel()
        await asyncio.wait({ticking})
