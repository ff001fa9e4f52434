"""Cancellation that cannot get lost, and waits that end with what they wait on."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise a cancellation that arrived meanwhile and was swallowed.

    The bus client waits with `asyncio.wait_for`, which up to Python 3.11 loses a cancellation that
    meets the answer; a loop that was told to end would then never hear of it.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    yield
    if task and task.cancelling() > before:
        raise asyncio.CancelledError


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
