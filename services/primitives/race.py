"""Waits that end with what they wait on."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def unless(lost: "asyncio.Future[None]", work: Coroutine[Any, Any, None]) -> None:
    """Do `work`, but no longer than until `lost` fails; then raise what it failed with."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({lost, working}, return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            lost.result()
    finally:
        working.cancel()
        await asyncio.wait({working})
    working.result()
