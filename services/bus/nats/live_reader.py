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
from services.bus.protocol.ephemeral_consumer import FollowerPosition
from services.bus.protocol.ordered_pages import read_page
from services.primitives.errors import BusError

REREAD_SECONDS: Final = 2.0
"""A copy may be lost with a connection or with a stream's leader."""
RETRY_SECONDS: Final = 0.25
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
        """Yield messages in order, for ever."""
        for each in self._filters:
            subscription = await self._client.subscribe(
                each, cb=self._heard, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            self._subscriptions.append(subscription)
        position = FollowerPosition(self._bus, self._stream, start, after)
        corrected, behind = False, 0
        while True:
            self._news.clear()
            try:
                if not corrected:
                    await position.correct()
                    corrected = True
                found, _ = await read_page(self._bus, self._stream, self._filters, position.after)
            except BusError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for stored in found:
                position.seen = stored.sequence
                yield stored
            if found:
                behind = BEHIND_TRIES_MAX
                continue
            try:
                async with asyncio.timeout(BEHIND_SECONDS if behind else REREAD_SECONDS):
                    await self._news.wait()
                behind = BEHIND_TRIES_MAX
            except TimeoutError:
                corrected = bool(behind)
                behind = max(0, behind - 1)

    async def _heard(self, _: ClientMessage) -> None:
        self._news.set()
