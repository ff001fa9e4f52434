"""Answers to a subject at a limited rate: the server itself keeps back what is beyond.

A client that refuses requests has received them all: a flood of them delays everything else that
the server has for it, such as acknowledgements. So each subscription ends at the server after some
messages, and the next begins later; who asks meanwhile finds no responder.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class LimitedAnswers:
    """Answers at most so many messages within so many seconds."""

    def __init__(
        self,
        client: Any,
        subject: str,
        reply: Callable[[Any], Awaitable[None]],
        most: int,
        seconds: float,
    ) -> None:
        """Pass at most `most` messages within `seconds` to `reply`."""
        self._client = client
        self._subject = subject
        self._reply = reply
        self._most = most
        self._seconds = seconds
        self._left = 0
        self._since = 0.0
        self._used_up = asyncio.Event()

    async def subscribe(self) -> None:
        """Begin with the next messages."""
        self._left = self._most
        self._since = asyncio.get_running_loop().time()
        subscription = await self._client.subscribe(self._subject, cb=self._arrived)
        await subscription.unsubscribe(limit=self._most)

    async def _arrived(self, message: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._used_up.set()
        await self._reply(message)

    async def renew(self) -> None:
        """Subscribe again whenever it is time, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._used_up.wait()
            self._used_up.clear()
            await asyncio.sleep(max(self._since + self._seconds - loop.time(), 0.0))
            await self.subscribe()
