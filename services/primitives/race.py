"""Waits for whichever of several awaitables ends first, and cancels the others."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def race(
    *contenders: Awaitable[Any], seconds_max: float | None = None
) -> "tuple[asyncio.Future[Any], ...]":
    """Return when the first has ended or the time is over; the others are then cancelled."""
    tasks = tuple(asyncio.ensure_future(each) for each in contenders)
    try:
        await asyncio.wait(tasks, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
    return tasks


async def unless(guard: "asyncio.Future[None]", work: Awaitable[T]) -> T:
    """Do `work`; where `guard`, which goes on, ends before, cancel the work and raise its error."""
    _, working = await race(asyncio.shield(guard), work)
    if guard.done():
        guard.result()
    result: T = working.result()
    return result
