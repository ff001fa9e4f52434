"""Asking over one inbox: every question has a word of its own in it, by which its answer is known.

The client can ask too. For each question it makes an id, waits in a way that costs as much again as
the sending, and loses a cancellation that meets the answer (`asyncio.wait_for` up to Python 3.11);
and a question with many answers takes a subscription made and taken back. A service asks tens of
times for each event of a node, so it has its own, over the client's plain calls.
"""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

from services.bus.nats.client_protocol import ClientMessage, NatsClient
from services.primitives.errors import NoResponders, NotPermitted, Unavailable

NO_RESPONDERS: Final = "503"
ANSWERS_MAX: Final = 1_000
"""More than a service has replicas, and a cluster servers."""


class RequestMux:
    """Questions that are under way over one connection."""

    def __init__(self, client: NatsClient) -> None:
        """Ask over `client`, once `listen` was called."""
        self._client = client
        self._inbox = ""
        self._numbers = itertools.count(1)
        self._waiting: dict[str, _Waiting] = {}

    async def listen(self) -> None:
        """Subscribe to the inbox; the client restores it whenever it reconnects."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(
            f"{self._inbox}.*", cb=self._arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
        )

    def lost(self) -> None:
        """Answers to what was asked over a lost connection can never come: they fail now."""
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(Unavailable("the connection to the bus was lost"))

    def refuse(self, subject: str, reason: str) -> None:
        """The server refused a publish to `subject` (which it gives in lower case)."""
        for waiting in list(self._waiting.values()):
            if waiting.subject.lower() == subject.lower() and not waiting.future.done():
                waiting.future.set_exception(NotPermitted(f"{waiting.subject}: {reason}"))

    async def ask(
        self, subject: str, data: bytes, headers: dict[str, str] | None, timeout_seconds: float
    ) -> ClientMessage:
        """The one answer; TimeoutError or Unavailable where none comes."""
        future: asyncio.Future[ClientMessage] = asyncio.get_running_loop().create_future()

        def arrived(message: ClientMessage) -> None:
            if future.done():
                return
            if (message.headers or {}).get("Status") == NO_RESPONDERS:
                future.set_exception(NoResponders(f"{subject}: no responders"))
            else:
                future.set_result(message)

        await self._settled(subject, data, headers, arrived, future, timeout_seconds)
        return future.result()

    async def gather(
        self,
        subject: str,
        data: bytes,
        ends: Callable[[ClientMessage], bool],
        silence_seconds: float,
        first_seconds: float = 0.0,
    ) -> list[ClientMessage]:
        """Many answers, up to one that `ends` them, or raises what came of it.

        TimeoutError where none comes for `silence_seconds`, or at first for `first_seconds`, where
        that is longer.
        """
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        found: list[ClientMessage] = []

        def arrived(message: ClientMessage) -> None:
            if future.done():
                return
            try:
                if ends(message):
                    future.set_result(None)
                else:
                    found.append(message)
            except Exception as error:  # noqa: BLE001 - it is raised to the caller
                future.set_exception(error)

        first_seconds = max(first_seconds, silence_seconds)
        await self._settled(subject, data, None, arrived, future, first_seconds, silence_seconds)
        return found

    async def gather_all(
        self, subject: str, data: bytes, silence_seconds: float, first_seconds: float
    ) -> list[bytes]:
        """Every answer until none comes for `silence_seconds`, or for `first_seconds` at first."""
        found: list[bytes] = []

        def ends(message: ClientMessage) -> bool:
            if (message.headers or {}).get("Status") == NO_RESPONDERS:
                return True
            found.append(message.data)
            return len(found) == ANSWERS_MAX

        with suppress(TimeoutError):
            await self.gather(subject, data, ends, silence_seconds, first_seconds)
        return found

    async def _settled(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str] | None,
        arrived: Callable[[ClientMessage], None],
        future: "asyncio.Future[Any]",
        first_seconds: float,
        silence_seconds: float = inf,
    ) -> None:
        word = str(next(self._numbers))
        waiting = _Waiting(subject, arrived, future, first_seconds, silence_seconds)
        self._waiting[word] = waiting
        try:
            await self._client.publish(
                subject,
                data,
                reply=f"{self._inbox}.{word}",
                headers=headers,
            )
            await future
            if waiting.is_over:
                # An error that the future held would hold this call, and the call holds it.
                raise TimeoutError
        finally:
            waiting.timer.cancel()
            del self._waiting[word]
            # It may have failed while the question was being sent, and then it is not awaited:
            # asyncio reports its error, unless it is cancelled.
            future.cancel()

    async def _arrived(self, message: ClientMessage) -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None:
            waiting.take(message)


class _Waiting:
    """A question under way. It fails after a silence: answers that follow one another may last."""

    def __init__(
        self,
        subject: str,
        arrived: Callable[[ClientMessage], None],
        future: "asyncio.Future[Any]",
        first_seconds: float,
        silence_seconds: float,
    ) -> None:
        self.subject = subject
        self.future = future
        self._arrived = arrived
        self._granted_seconds = first_seconds
        self._silence_seconds = silence_seconds
        self._loop = future.get_loop()
        self._heard_at = self._loop.time()
        self.is_over = False
        """The silence was too long."""
        self.timer = self._loop.call_later(first_seconds, self._expire)

    def take(self, message: ClientMessage) -> None:
        self._heard_at = self._loop.time()
        if self._silence_seconds < self._granted_seconds:
            self._granted_seconds = self._silence_seconds
            self.timer.cancel()
            self.timer = self._loop.call_later(self._granted_seconds, self._expire)
        self._arrived(message)

    def _expire(self) -> None:
        if self.future.done():
            return
        ends_at = self._heard_at + self._granted_seconds
        if ends_at > self._loop.time():
            self.timer = self._loop.call_at(ends_at, self._expire)
        else:
            self.is_over = True
            self.future.set_result(None)
