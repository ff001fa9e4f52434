"""Connects one process to a `MemoryServer`, over a link: the bus in memory.

It keeps the protocol of `services.bus.port` as the real server does; one suite runs against
both, and where they differ this one is wrong.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any, Final

from schemas import headers as h
from schemas.stream_specs import MESSAGE_BYTES_MAX, DurableSpec
from services.bus.memory.jetstream.server_state import ConsumerPlace
from services.bus.memory.memory_pull_consumer import (
    AcknowledgementQueue,
    MemoryDelivery,
    MemoryPuller,
)
from services.bus.memory.memory_server import MemoryServer, Responder
from services.bus.memory.transport import Link
from services.bus.port import Delivery, Endpoint, Endpoints, Facts, Reply, Start, Stored
from services.bus.protocol.endpoint_replies import CODES, answer
from services.bus.protocol.ephemeral_consumer import EphemeralConsumer
from services.bus.protocol.kv_buckets import Buckets
from services.bus.protocol.object_store import Objects
from services.bus.protocol.server_protocol import refuse_too_large
from services.primitives.errors import BusError, Unavailable

RETRY_SECONDS: Final = 0.25
SERVICE_ERROR_CODE: Final = "Nats-Service-Error-Code"


class MemoryBus(Buckets, Objects):
    """Connects to a server in this process."""

    def __init__(self, server: MemoryServer, link: Link) -> None:
        """Reach `server` over `link`; whatever it serves is answered in the present context."""
        super().__init__()
        self._server = server
        self._link = link
        self.context = contextvars.copy_context()
        self._pullers: dict[MemoryPuller, None] = {}
        self._outbox = AcknowledgementQueue(server, link)
        self._closed = False
        self._connections = 1

    @property
    def connected(self) -> bool:
        """Return whether the bus can be spoken to now."""
        return self._link.up and not self._closed

    @property
    def connections(self) -> int:
        """Return how often it was connected."""
        return self._connections

    @property
    def is_open(self) -> bool:
        """Return whether the server lets every client in, under any name."""
        return True

    async def _there(self, call: str, about: str) -> None:
        if not self.connected:
            await asyncio.sleep(0)
            raise Unavailable(f"{about}: not connected to the bus")
        await self._link.there(call, about)

    # --- storing ------------------------------------------------------------------------------

    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        refuse_too_large(subject, data, headers, MESSAGE_BYTES_MAX)
        await self._there("store", subject)
        plain = {name: value.strip() for name, value in headers.items()}
        sequence = self._server.publish(subject, data, plain)
        await self._link.back("store", subject)
        return sequence

    # --- reading ------------------------------------------------------------------------------

    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter, oldest first, after a sequence."""
        await self._there("read", filter_)
        held = self._server.fresh().streams.get(stream)
        if held is None:
            raise Unavailable(f"{stream}: cannot be read: no answer")
        found = [held.messages[each] for each in held.sequences(filter_, after)]
        await self._link.back("read", filter_)
        return found

    async def read_batch(
        self, stream: str, filter_: str, *, after: int | datetime, count: int
    ) -> list[Stored]:
        """Return the next `count` messages under a filter, after a sequence or from a time on."""
        since = after if isinstance(after, datetime) else None
        found = await self.read(stream, filter_, after=after if isinstance(after, int) else 0)
        return [each for each in found if since is None or each.time >= since][:count]

    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last message under a subject, or under a whole tree."""
        refuse_too_large(subject, b"", {}, MESSAGE_BYTES_MAX)
        await self._there("read", subject)
        held = self._server.fresh().streams.get(stream)
        if held is None:
            raise Unavailable(f"{stream}: no responders")
        found = held.last(subject)
        await self._link.back("read", subject)
        return found

    # --- consuming ----------------------------------------------------------------------------

    async def consume(self, durable: DurableSpec) -> AsyncIterator[Delivery]:
        """Yield a durable's messages, for ever."""
        place = ConsumerPlace(durable.stream, durable.name)
        puller = MemoryPuller(self._server, self._link, place, durable.in_flight_max, self._outbox)
        async for delivery in self._pulling(puller):
            yield delivery

    async def follow(
        self,
        stream: str,
        filters: Sequence[str],
        start: Start,
        *,
        after: int | datetime | None = None,
    ) -> AsyncIterator[Stored]:
        """Yield a stream's messages in order, for ever.

        `after` (a sequence, or a time of storing) takes the place of `start`.
        """
        new_name = lambda: f"follow-{self._server.number()}"  # noqa: E731
        source = EphemeralConsumer(self, stream, tuple(filters), start, after, new_name)
        while not self._closed:
            try:
                place = ConsumerPlace(stream, (await source.prepare()).partition(".")[2])
            except BusError:
                # Neither a lost link nor a stream that is not there ends it.
                await asyncio.sleep(RETRY_SECONDS)
                continue
            puller = MemoryPuller(self._server, self._link, place, source.in_flight_max)
            try:
                async for delivery in self._pulling(puller):
                    if source.saw(delivery.stored):
                        yield delivery.stored
            finally:
                self._server.forget(place)

    async def _pulling(self, puller: MemoryPuller) -> AsyncIterator[MemoryDelivery]:
        if self._closed:
            return
        self._pullers[puller] = None
        try:
            async for delivery in puller.run():
                yield delivery
        finally:
            self._pullers.pop(puller, None)
            puller.stop()

    # --- requests -----------------------------------------------------------------------------

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Send a request; Unavailable where no responder serves the subject."""
        refuse_too_large(subject, data, {}, MESSAGE_BYTES_MAX)
        await self._there("request", subject)
        responders = self._server.responders(subject)
        if not responders:
            raise Unavailable(f"{subject}: no responders")
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        for each in responders:
            # It runs in the responder's process, and goes on after the requester has given up.
            self._server.work(_answered(each, subject, data, answered), each.context)
        try:
            async with asyncio.timeout(timeout_seconds):
                reply = await answered
        except TimeoutError:
            raise Unavailable(f"{subject}: no answer in {timeout_seconds:g} s") from None
        await self._link.back("request", subject)
        return reply

    async def request_all(
        self, subject: str, data: bytes, silence_seconds: float, first_seconds: float = 0.0
    ) -> list[bytes]:
        """Send a request that several answer; return when none has for `silence_seconds`."""
        await self._there("request", subject)
        waiting: set[asyncio.Future[Reply]] = set()
        for each in self._server.responders(subject):
            answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            waiting.add(answered)
            self._server.work(_answered(each, subject, data, answered), each.context)
        found: list[bytes] = []
        seconds = max(first_seconds, silence_seconds)
        while waiting:
            done, waiting = await asyncio.wait(
                waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            found += [each.result().data for each in done]
            seconds = silence_seconds
        await self._link.back("request", subject)
        return found

    async def serve(
        self, name: str, description: str, endpoints: Endpoints, *, facts: Facts | None = None
    ) -> None:
        """Answer `endpoints` (subject -> function) as a service."""
        del description, facts
        for subject, endpoint in endpoints.items():
            self._respond(subject, name, endpoint, as_service=True)

    async def answer(self, subject: str, endpoint: Endpoint) -> None:
        """Answer one subject plainly."""
        self._respond(subject, "", endpoint, as_service=False)

    async def answer_some(
        self, subject: str, endpoint: Endpoint, *, most: int, seconds: float
    ) -> None:
        """The same: here no request is too many."""
        del most, seconds
        await self.answer(subject, endpoint)

    def _respond(self, subject: str, name: str, endpoint: Endpoint, *, as_service: bool) -> None:
        reachable: Callable[[], bool] = lambda: self.connected  # noqa: E731 - asked each time
        responder = Responder(name, endpoint, as_service, self.context, reachable)
        self._server.respond(subject, responder)

    # --- administration -----------------------------------------------------------------------

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API (`STREAM.INFO.EVENTS`); Refused carries the server's code."""
        await self._there("ask", call)
        found = self._server.admin(call, body)
        await self._link.back("ask", call)
        return found

    async def purge(self, stream: str, filter_: str) -> None:
        """Remove everything stored under a filter."""
        await self.admin(f"STREAM.PURGE.{stream}", {"filter": filter_})

    def disconnected(self) -> None:
        """The link went down."""
        for puller in self._pullers:
            puller.pause()

    def reconnected(self) -> None:
        """The link is up again."""
        self._connections += 1
        self._outbox.flush()
        for puller in self._pullers:
            puller.resume()

    async def close(self) -> None:
        """Stop taking messages, and leave."""
        self._closed = True
        self._server.silence(self.context)
        for puller in list(self._pullers):
            puller.stop()
        # Pullers hand back what they have not delivered yet.
        await asyncio.sleep(0)
        self._outbox.close()


async def _answered(
    responder: Responder, subject: str, data: bytes, answered: "asyncio.Future[Reply]"
) -> None:
    """Answer one request, if the responder is reachable and no other was faster."""
    headers = {h.SUBJECT: subject} if responder.as_service else {}
    found, kind, text = await answer(responder.endpoint, data, headers)
    if answered.done() or not responder.reachable():
        return
    if kind and responder.as_service:
        line = text.replace("\r", " ").replace("\n", " ")
        headers = {h.SERVICE_ERROR: line, SERVICE_ERROR_CODE: CODES[kind]}
        answered.set_result(Reply(found, headers))
    else:
        answered.set_result(Reply(found))
