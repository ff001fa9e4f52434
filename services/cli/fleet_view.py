"""Shows a view of the fleet once, or again whenever something happens to it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from services.cli import console
from services.cli.fleet_connection import FleetAccess
from services.operator_text.safe_text import escape
from services.primitives.errors import NavarchError
from services.primitives.race import race

INTERVAL_SECONDS_MIN: Final = 1.0
"""However much happens, the fleet is not asked more often."""
RETRY_SECONDS: Final = 5.0
"""A view that failed is tried again, even if nothing happens."""
CLEAR: Final = "\x1b[H\x1b[2J"


async def show(fleet: FleetAccess, view: Callable[[], Awaitable[None]], *, watch: bool) -> None:
    """Print the view; `watch`: again after each event, until the command is interrupted."""
    if not watch:
        await view()
        return
    # Before the first view, so that nothing falls between it and what is followed.
    after = await fleet.last_event()
    happened = asyncio.Event()
    for task in await race(_listen(fleet, after, happened), _show_again(view, happened)):
        if not task.cancelled():
            task.result()


async def _show_again(view: Callable[[], Awaitable[None]], happened: asyncio.Event) -> None:
    while True:
        happened.clear()
        again_seconds = await _view(view)
        with suppress(TimeoutError):
            await asyncio.wait_for(happened.wait(), again_seconds)
        await asyncio.sleep(INTERVAL_SECONDS_MIN)


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


async def _listen(fleet: FleetAccess, after: int, happened: asyncio.Event) -> None:
    async with aclosing(fleet.follow_events(pool="", node="", since=after)) as events:
        async for _ in events:
            happened.set()
