"""The newest events of the fleet in memory, for any number of streams of them.

One follower reads the bus for all. A stream is a position: what it lacks and memory has no longer
is read from the bus. So a slow caller costs nothing but its connection, and none loses an event.
"""

import asyncio
from asyncio import FIRST_COMPLETED
from bisect import bisect_right
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Final, TypeVar

import msgspec
from litestar.response.sse import ServerSentEventMessage

from schemas import subjects
from schemas.messages import encode
from schemas.topology import EVENTS
from services.bus.port import Bus, Stored
from services.fleet_client.fleet_client import as_generator
from services.gateway.views import event_view
from services.primitives.clock import Clock
from services.primitives.errors import BusError

T = TypeVar("T")

KEPT_MAX: Final = 4_096
"""Events in memory; few have more than a kilobyte."""
BATCH_MAX: Final = 64
"""Events in one write: a stream that catches up does not make the others wait."""
RETRY_SECONDS: Final = 0.5
FILTERS: Final = (subjects.NODE_EVENTS, subjects.POOL_EVENTS, subjects.FLEET_EVENTS)


class RelayedEvent:
    """A stored event, and its form in a stream, which is made once for all streams."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    @cached_property
    def encoded(self) -> bytes:
        """It as a server-sent event."""
        view = event_view(self.stored)
        return ServerSentEventMessage(
            data=encode(view), event=view.kind, id=self.stored.sequence
        ).encode()


class StreamReset(msgspec.Struct, frozen=True):
    """The events were set back (a restored store): what follows may repeat sequences."""


class EventRelay:
    """Follows the events, and passes them on in order."""

    def __init__(self, bus: Bus, clock: Clock, kept_max: int = KEPT_MAX) -> None:
        """Keep at most `kept_max` events."""
        self._bus = bus
        self._clock = clock
        self._kept: list[RelayedEvent] = []
        self._kept_max = kept_max
        self._base = 0
        """Everything stored after this sequence, up to the newest, is in memory."""
        self._newest = 0
        self._resets = 0
        self._news = asyncio.Event()
        self._started = asyncio.Event()
        self.closed = asyncio.Event()
        """Set: every stream ends."""

    async def run(self) -> None:
        """Follow the events until cancelled."""
        while not self._started.is_set():
            try:
                self._base = self._newest = await self._bus.last_sequence(EVENTS.name)
            except BusError:
                await self._clock.sleep(RETRY_SECONDS)
            else:
                self._started.set()
        following = self._bus.follow(EVENTS.name, FILTERS, "new", after=self._base)
        async for stored in following:
            self._keep(stored)

    def close(self) -> None:
        """End every stream, so that the callers go elsewhere."""
        self.closed.set()
        self._wake()

    def _keep(self, stored: Stored) -> None:
        if stored.sequence <= self._newest:
            self._kept.clear()
            self._base = stored.sequence - 1
            self._resets += 1
        elif len(self._kept) == self._kept_max:
            self._base = self._kept.pop(0).stored.sequence
        self._kept.append(RelayedEvent(stored))
        self._newest = stored.sequence
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def newest(self) -> int:
        """The sequence of the newest event."""
        await self._started.wait()
        return self._newest

    async def stream(
        self, after: int | None, pause_seconds: float
    ) -> AsyncGenerator[Sequence[RelayedEvent] | StreamReset, None]:
        """Every event stored after a sequence (None: from now on), in order, as it is stored.

        They come in batches, which are empty where none was stored for so long. A batch is all
        that a stream waits for, without a task of its own: 1,000 streams wait for each event.
        """
        await self._started.wait()
        position, resets = self._newest if after is None else after, self._resets
        if position > self._newest and position > await self._bus.last_sequence(EVENTS.name):
            yield StreamReset()
            position = self._newest
        while not self.closed.is_set():
            if resets != self._resets:
                yield StreamReset()
                position, resets = self._base, self._resets
            if position < self._base:
                missed = with_pauses(self._from_bus(position), pause_seconds, self.closed)
                async with aclosing(missed):
                    async for event in missed:
                        position = event.stored.sequence if event else position
                        yield (event,) if event else ()
                continue
            news, due = self._news, self._after(position)
            if due:
                position = due[-1].stored.sequence
                yield due
                continue
            try:
                async with asyncio.timeout(pause_seconds):
                    await news.wait()
            except TimeoutError:
                yield ()

    def _after(self, position: int) -> list[RelayedEvent]:
        """What memory has after a position, as far as it is written at once."""
        start = bisect_right(self._kept, position, key=_sequence)
        return self._kept[start : start + BATCH_MAX]

    async def _from_bus(self, position: int) -> AsyncGenerator[RelayedEvent, None]:
        """What is stored after a position, until memory has what follows."""
        following = as_generator(self._bus.follow(EVENTS.name, FILTERS, "new", after=position))
        async with aclosing(following):
            async for stored in following:
                yield RelayedEvent(stored)
                if stored.sequence >= self._base:
                    return


def _sequence(event: RelayedEvent) -> int:
    return event.stored.sequence


async def with_pauses(
    source: AsyncGenerator[T, None], seconds: float, closed: asyncio.Event | None = None
) -> AsyncGenerator[T | None, None]:
    """The same items until `closed`, and None whenever none came for so long."""
    waiting: asyncio.Task[T] | None = None
    ending = {asyncio.ensure_future(closed.wait())} if closed is not None else set()
    try:
        while not (closed is not None and closed.is_set()):
            waiting = waiting or asyncio.ensure_future(_next(source))
            await asyncio.wait({waiting, *ending}, timeout=seconds, return_when=FIRST_COMPLETED)
            if not waiting.done():
                yield None
                continue
            try:
                found = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield found
    finally:
        for each in ending:
            each.cancel()
        if waiting is not None:
            waiting.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await waiting
        await source.aclose()


async def _next(source: AsyncGenerator[T, None]) -> T:
    return await anext(source)
