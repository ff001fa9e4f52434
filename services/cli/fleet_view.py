"""Shows a view of the fleet once, or again whenever something happens to it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from schemas.topology import EVENTS
from services.cli import console
from services.cli.fleet_access import bus_of
from services.fleet_client.fleet_client import FleetClient, as_generator, event_filters
from services.operator_text.safe_text import escape
from services.primitives.errors import NavarchError

INTERVAL_SECONDS_MIN: Final = 1.0
"""However much happens, the fleet is not asked more often."""
RETRY_SECONDS: Final = 5.0
"""A view that failed is tried again, even if nothing happens."""
CLEAR: Final = "\x1b[H\x1b[2J"


async def show(fleet: object, view: Callable[[], Awaitable[None]], *, watch: bool) -> None:
    """Print the view; `watch`: again after each event, until the command is interrupted."""
    if not watch:
        await view()
        return
    over_bus = bus_of(fleet, "--watch")
    # Before the first view, so that nothing falls between it and what is followed.
    after = await over_bus.bus.last_sequence(EVENTS.name)
    happened = asyncio.Event()
    listener = asyncio.create_task(_listen(over_bus, after, happened))
    try:
        while True:
            happened.clear()
            again_seconds = await _view(view)
            with suppress(TimeoutError):
                await asyncio.wait_for(happened.wait(), again_seconds)
            await asyncio.sleep(INTERVAL_SECONDS_MIN)
    finally:
        listener.cancel()


async def _view(view: Callable[[], Awaitable[None]]) -> float | None:
    """Print the view, or why there is none; after how many seconds it is to be tried again."""
    if console.colour():
        sys.stdout.write(CLEAR)
    try:
        await view()
    except NavarchError as error:
        sys.stderr.write(f"navarch: {escape(str(error))}\n")
        return RETRY_SECONDS
    return None


async def _listen(fleet: FleetClient, after: int, happened: asyncio.Event) -> None:
    following = fleet.bus.follow(EVENTS.name, event_filters("", ""), "new", after=after)
    async with aclosing(as_generator(following)) as events:
        async for _ in events:
            happened.set()
