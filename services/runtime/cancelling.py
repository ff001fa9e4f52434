"""Cancellation that cannot get lost."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


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
