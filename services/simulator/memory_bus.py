"""The bus in memory: one process's connection to a `MemoryServer`, over a link.

It keeps the protocol of `services.runtime.bus` as the real server does; one suite runs against
both, and where they differ this one is wrong.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from schemas import headers as h
from schemas.topology import DurableSpec
from services.runtime.answering import CODES, answer
from services.runtime.buckets import Buckets
from services.runtime.bus import Delivery, Endpoint, Reply, Start, Stored
from services.runtime.errors import Refused, Unavailable
from services.runtime.objects import Objects
from services.simulator.jetstream.state import Place
from services.simulator.link import Link
from services.simulator.memory_pulling import MemoryDelivery, Puller
from services.simulator.memory_server import MemoryServer, Responder

PAYLOAD_BYTES_MAX: Final = 1_048_576
MESSAGE_NOT_FOUND: Final = 10037
FOLLOW_BATCH: Final = 1024
RETRY_SECONDS: Final = 0.25
SERVICE_ERROR_CODE: Final = "Nats-Service-Error-Code"


class MemoryBus(Buckets, Objects):
    """A connection to a server in this process."""

    def __init__(self, server: MemoryServer, link: Link) -> None:
        """Reach `server` over `link`; whatever it serves is answered in the present context."""
        self._server = server
        self._link = link
        self.context = contextvars.copy_context()
        self._pullers: dict[Puller, None] = {}
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the bus can be spoken to now."""
        return self._link.up and not self._closed

    async def _there(self, call: str, about: str) -> None:
        if not self.connected:
            await asyncio.sleep(0)
            raise Unavailable(f"{about}: not connected to the bus")
        await self._link.there(call, about)

    # --- storing ------------------------------------------------------------------------------

    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        if len(data) > PAYLOAD_BYTES_MAX:
            raise Refused(f"{subject}: {len(data)} bytes are more than the server takes")
        await self._there("store", subject)
        sequence = self._server.publish(subject, data, headers)
        await self._link.back("store", subject)
        return sequence

    # --- reading ------------------------------------------------------------------------------

    async def _ask(self, call: str, about: str, body: dict[str, Any]) -> dict[str, Any]:
        await self._there("ask", about)
        found = self._server.admin(call, body)
        await self._link.back("ask", about)
        return found

    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter, oldest first, after a sequence."""
        await self._there("read", filter_)
        held = self._server.fresh().streams.get(stream)
        if held is None:
            raise Unavailable(f"{stream}: cannot be read: no answer")
        found = [held.messages[each] for each in held.sequences(filter_, after)]
        await self._link.back("read", filter_)
        return found

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message under a subject, or under a whole tree."""
        await self._there("read", subject)
        held = self._server.fresh().streams.get(stream)
        if held is None:
            raise Unavailable(f"{stream}: nobody answers")
        found = held.last(subject)
        await self._link.back("read", subject)
        return found

    async def last_sequence(self, stream: str, filter_: str = "") -> int:
        """The stream's last sequence, from its leader; with a filter, of what stands under it."""
        if not filter_:
            info = await self._ask(f"STREAM.INFO.{stream}", stream, {})
            return int(info["state"]["last_seq"])
        try:
            found = await self._ask(f"STREAM.MSG.GET.{stream}", stream, {"last_by_subj": filter_})
        except Refused as error:
            if error.code == MESSAGE_NOT_FOUND:
                return 0
            raise
        return int(found["message"]["seq"])

    # --- consuming ----------------------------------------------------------------------------

    async def consume(self, durable: DurableSpec) -> AsyncIterator[Delivery]:
        """A durable's messages, for ever."""
        place = Place(durable.stream, durable.name)
        puller = Puller(self._server, self._link, place, durable.in_flight_max)
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
        """A stream's messages in order, for ever.

        `after` (a sequence, or a time of storing) takes the place of `start`.
        """
        name = f"follow-{self._server.number()}"
        config: dict[str, Any] = {
            "name": name,
            "filter_subjects": list(filters),
            "ack_policy": "none",
            "deliver_policy": start,
        }
        if isinstance(after, datetime):
            config |= {"deliver_policy": "by_start_time", "opt_start_time": after}
        elif after is not None:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        # The position is fixed by the server's state as it is found; a link that is down is waited
        # for there, as the real client waits for its reconnection.
        while True:
            try:
                await self._ask(f"CONSUMER.CREATE.{stream}.{name}", stream, {"config": config})
                break
            except Unavailable:
                await asyncio.sleep(RETRY_SECONDS)
        puller = Puller(self._server, self._link, Place(stream, name), FOLLOW_BATCH, acks=False)
        try:
            async for delivery in self._pulling(puller):
                yield delivery.stored
        finally:
            self._server.forget(Place(stream, name))

    async def _pulling(self, puller: Puller) -> AsyncIterator[MemoryDelivery]:
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
        """Ask whoever serves the subject; Unavailable where nobody does."""
        await self._there("request", subject)
        responder = self._server.responder(subject)
        if responder is None:
            raise Unavailable(f"{subject}: nobody answers")
        work = asyncio.get_running_loop().create_task(
            _answered(responder, data), context=responder.context
        )
        done, _ = await asyncio.wait({work}, timeout=timeout_seconds)
        if not done or work.cancelled():
            work.cancel()
            raise Unavailable(f"{subject}: no answer in {timeout_seconds:g} s")
        await self._link.back("request", subject)
        return work.result()

    async def serve(
        self, name: str, description: str, endpoints: Mapping[str, Endpoint], *, http: str = ""
    ) -> None:
        """Answer `endpoints` (subject -> function) as a service."""
        del description, http
        for subject, endpoint in endpoints.items():
            self._respond(subject, name, endpoint, as_service=True)

    async def answer(self, subject: str, endpoint: Endpoint) -> None:
        """Answer one subject plainly."""
        self._respond(subject, "", endpoint, as_service=False)

    def _respond(self, subject: str, name: str, endpoint: Endpoint, *, as_service: bool) -> None:
        reachable: Callable[[], bool] = lambda: self.connected  # noqa: E731 - asked each time
        responder = Responder(name, endpoint, as_service, self.context, reachable)
        self._server.respond(subject, responder)

    # --- administration -----------------------------------------------------------------------

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API (`STREAM.INFO.EVENTS`); Refused carries the server's code."""
        return await self._ask(call, call, body)

    async def purge(self, stream: str, filter_: str) -> None:
        """Remove everything stored under a filter."""
        await self.admin(f"STREAM.PURGE.{stream}", {"filter": filter_})

    def disconnected(self) -> None:
        """The link went down."""
        for puller in self._pullers:
            puller.pause()

    def reconnected(self) -> None:
        """The link is up again."""
        for puller in self._pullers:
            puller.resume()

    async def close(self) -> None:
        """Stop taking messages, and leave."""
        self._closed = True
        self._server.silence(self.context)
        for puller in list(self._pullers):
            puller.stop()
        await asyncio.sleep(0)


async def _answered(responder: Responder, data: bytes) -> Reply:
    found, kind, text = await answer(responder.endpoint, data, {})
    if kind and responder.as_service:
        return Reply(found, {h.SERVICE_ERROR: text, SERVICE_ERROR_CODE: CODES[kind]})
    return Reply(found)
