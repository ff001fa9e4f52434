"""Follows a stream without a consumer: a live copy of a message says when to read.

For users of another account than the streams' (docs/security.md): a consumer could deliver to any
subject there, so they may create none.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from services.bus.nats.client_protocol import ClientMessage, NatsClient
from services.bus.port import Bus, Start, Stored
from services.primitives.errors import BusError, Unavailable

REREAD_SECONDS: Final = 2.0
"""A copy may be lost with a connection or with a stream's leader."""
RETRY_SECONDS: Final = 0.25
BATCH: Final = 1000
BEHIND_SECONDS: Final = 0.02
BEHIND_TRIES_MAX: Final = 10
"""The replica that answers may not have yet what was announced."""


class LiveReader:
    """One stream, by some filters."""

    def __init__(self, bus: Bus, client: NatsClient, stream: str, filters: Sequence[str]) -> None:
        """Read from `bus`; hear of news over `client`."""
        self._bus = bus
        self._client = client
        self._stream = stream
        self._filters = filters
        self._news = asyncio.Event()
        self._subscriptions: list[object] = []

    def wake(self) -> None:
        """Read again: the connection was lost."""
        self._news.set()

    async def stop(self) -> None:
        """Hear no more."""
        for each in self._subscriptions:
            with suppress(Exception):
                await each.unsubscribe()  # type: ignore[attr-defined]

    async def run(self, start: Start, after: int | datetime | None) -> AsyncIterator[Stored]:
        """Messages in order, for ever."""
        for each in self._filters:
            subscription = await self._client.subscribe(
                each, cb=self._heard, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            self._subscriptions.append(subscription)
        position, behind = after, 0
        while True:
            self._news.clear()
            try:
                if position is None:
                    new = start == "new"
                    position = await self._bus.last_sequence(self._stream) if new else 0
                found = await self._page(position)
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for stored in found:
                position = stored.sequence
                yield stored
            if found:
                behind = BEHIND_TRIES_MAX
                continue
            try:
                async with asyncio.timeout(BEHIND_SECONDS if behind else REREAD_SECONDS):
                    await self._news.wait()
                behind = BEHIND_TRIES_MAX
            except TimeoutError:
                position = position if behind else await self._corrected(start, position)
                behind = max(0, behind - 1)

    async def _corrected(self, start: Start, position: int | datetime) -> int | datetime:
        """Go back where the stream has lost what was seen: its sequences are used once more."""
        try:
            last = await self._bus.last_sequence(self._stream)
        except BusError:
            return position
        if isinstance(position, datetime) or last >= position:
            return position
        return 0 if start == "last_per_subject" else last

    async def _page(self, after: int | datetime) -> list[Stored]:
        """The next messages of all filters; as far only as each of them was read."""
        pages = [
            await self._bus.read_batch(self._stream, each, after=after, count=BATCH)
            for each in self._filters
        ]
        until = min((page[-1].sequence for page in pages if len(page) == BATCH), default=None)
        found = {each.sequence: each for page in pages for each in page}
        return [found[each] for each in sorted(found) if until is None or each <= until]

    async def _heard(self, _: ClientMessage) -> None:
        self._news.set()
