"""Wakes a command that follows something: at what happens to it, and otherwise after a while."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

Source = Callable[[], AsyncGenerator[Any, None]]


class ChangeSignal:
    """Says when any of several streams has had an item."""

    def __init__(self, interval_seconds: float) -> None:
        """`interval_seconds`: however much happens, it wakes no more often."""
        self._interval_seconds = interval_seconds
        self._happened = asyncio.Event()
        self._listening: dict[str, asyncio.Task[None]] = {}

    def listen(self, name: str, source: Source) -> None:
        """Follow a stream: one of each name, and another one where the first has failed."""
        known = self._listening.get(name)
        if known is None or (known.done() and known.exception() is not None):
            self._listening[name] = asyncio.create_task(self._follow(source))

    async def wait(self, again_seconds: float) -> None:
        """Return once something has happened since the last return, or after so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._happened.wait(), again_seconds)
        await asyncio.sleep(self._interval_seconds)
        self._happened.clear()

    async def close(self) -> None:
        """Follow nothing any more."""
        for each in self._listening.values():
            each.cancel()
        await asyncio.gather(*self._listening.values(), return_exceptions=True)

    async def _follow(self, source: Source) -> None:
        async with aclosing(source()) as items:
            async for _ in items:
                self._happened.set()


@asynccontextmanager
async def change_signal(interval_seconds: float) -> AsyncIterator[ChangeSignal]:
    """Provide a signal, and end what it follows."""
    signal = ChangeSignal(interval_seconds)
    try:
        yield signal
    finally:
        await signal.close()
