"""Pulls messages out of a consumer, continuously and without polling.

A pull request stays open at the server until messages come; a new one is sent when half of what
may be held is free. Idle heartbeats distinguish a dead request from a quiet stream; after a
reconnection, a lost leader or a missed heartbeat the request is made again. What was delivered and
not acknowledged comes back by itself (durables), or from the last sequence seen (ephemerals).
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import msgspec

from schemas.stream_specs import SECOND_NS, DurableSpec
from services.bus.nats.client_protocol import ClientMessage, NatsClient
from services.bus.port import Delivery, Stored
from services.primitives.errors import BusError, Refused

log = logging.getLogger(__name__)

REQUEST_EXPIRES_SECONDS: Final = 3.0
"""So long a replica that ended may still be sent messages, by the leader of a stream on another
server: across accounts it sees no end of the subscription. They are delivered again."""
IDLE_HEARTBEAT_SECONDS: Final = 1.0
SILENCE_MAX_SECONDS: Final = 2.5 * IDLE_HEARTBEAT_SECONDS
RETRY_SECONDS: Final = 0.25
RENEW_SECONDS: Final = 0.02
"""Between a lost request and the next: a consumer without leader is not asked in a spin."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
CONSUMER_GONE: Final = frozenset({10014, 10059})
"""Consumer not found, stream not found."""


def parse_stored(message: ClientMessage) -> tuple[Stored, int, int]:
    """Read what the server says in a delivery's reply subject.

    Returns the message, how often it was delivered, and how many wait behind it. The subject is
    `$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<time>.<pending>`, or the longer form
    with domain and account before the stream.
    """
    parts = message.reply.split(".")
    short = 9
    delivered, sequence, _, stamp, pending = parts[4:9] if len(parts) == short else parts[6:11]
    stored = Stored(
        subject=message.subject,
        data=message.data,
        sequence=int(sequence),
        # Whole microseconds, cut as a read of the same message cuts them: a replay sees this time.
        time=EPOCH + timedelta(microseconds=int(stamp) // 1000),
        headers=message.headers or {},
    )
    return stored, int(delivered), int(pending)


@dataclass(slots=True, eq=False)
class PulledDelivery:
    """One delivery, settled by publishing to its reply subject."""

    stored: Stored
    deliveries: int
    pending: int
    _reply: str
    _connection: NatsClient
    _puller: "Puller"
    _settled: bool = False

    async def _settle(self, word: bytes) -> None:
        if self._settled:
            return
        self._settled = True
        self._puller.release()
        await self._send(word)

    async def _send(self, word: bytes) -> None:
        # A lost acknowledgement means a redelivery, which every handler must bear anyway.
        with suppress(Exception):
            await self._connection.publish(self._reply, word)

    async def ack(self) -> None:
        """Done with it."""
        await self._settle(b"+ACK")

    async def nak(self, delay_seconds: float) -> None:
        """Deliver it again, after a delay."""
        await self._settle(b'-NAK {"delay": %d}' % int(delay_seconds * SECOND_NS))

    async def term(self) -> None:
        """Never deliver it again."""
        await self._settle(b"+TERM")

    async def progress(self) -> None:
        """Still being processed: restart the acknowledgement wait."""
        if not self._settled:
            await self._send(b"+WPI")


class Source(Protocol):
    """A consumer to pull from."""

    in_flight_max: int

    async def prepare(self) -> str:
        """Make sure that the consumer exists; return `<stream>.<consumer>`."""

    def saw(self, stored: Stored) -> bool:
        """Note a message; False where it must be skipped."""

    acks: bool


class Durable:
    """A durable that set-up has made."""

    acks = True

    def __init__(self, spec: DurableSpec) -> None:
        self._spec = spec
        self.in_flight_max = spec.in_flight_max

    async def prepare(self) -> str:
        """The durable exists already."""
        return f"{self._spec.stream}.{self._spec.name}"

    def saw(self, stored: Stored) -> bool:  # noqa: ARG002
        """Redelivery is the server's business."""
        return True


class Puller:
    """Keeps a pull request open and yields what arrives."""

    def __init__(self, connection: NatsClient, source: Source) -> None:
        self._connection = connection
        self._source = source
        self._arrived: asyncio.Queue[ClientMessage | None] = asyncio.Queue()
        self._held = 0
        self._asked = 0
        self._changed = asyncio.Event()
        self._stopped = False
        self._stale = False
        self._unanswered = False
        """The last request had no answer: what was pulled from does not exist."""
        self._last_sign = 0.0
        self._reconnects = 0
        """Of the connection, when the current inbox was made."""

    def restart(self) -> None:
        """Forget open requests whose connection is gone.

        The client reports a connection some time after it is used: a request that was made in
        between is open at the server, and another beside it would get messages that are lost.
        """
        if self._reconnects < self._connection.stats["reconnects"]:
            self._stale = True
            self._changed.set()

    def release(self) -> None:
        """One held message was settled."""
        self._held -= 1
        self._changed.set()

    async def stop(self) -> None:
        """Ask for no more."""
        self._stopped = True
        self._changed.set()
        self._arrived.put_nowait(None)

    async def run(self) -> AsyncIterator[Delivery]:
        """Yield deliveries until stopped."""
        asking = asyncio.create_task(self._keep_asking())
        try:
            while not self._stopped:
                message = await self._arrived.get()
                if message is None:
                    break
                delivery = self._delivery(message)
                if not self._source.acks:
                    self.release()
                if self._source.saw(delivery.stored):
                    yield delivery
        finally:
            self._stopped = True
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await self._hand_back()

    async def _hand_back(self) -> None:
        """Hand back what arrived and was not taken: another replica gets it at once."""
        while not self._arrived.empty():
            message = self._arrived.get_nowait()
            if message is not None and self._source.acks:
                await self._delivery(message).nak(0)

    def _delivery(self, message: ClientMessage) -> PulledDelivery:
        stored, deliveries, pending = parse_stored(message)
        return PulledDelivery(stored, deliveries, pending, message.reply, self._connection, self)

    async def _keep_asking(self) -> None:
        """Keep a request open; make it again whenever it may have been lost."""
        while not self._stopped:
            if not self._connection.is_connected:
                # The client buffers publishes meanwhile, but not the end of a subscription:
                # requests made now would stay open at the server beside the current one, and each
                # would receive messages that are never taken.
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                await self._ask_on_one_inbox()
                await asyncio.sleep(RETRY_SECONDS if self._unanswered else RENEW_SECONDS)
            except BusError as error:
                log.warning("cannot pull: %s", error)
                gone = isinstance(error, Refused) and error.code in CONSUMER_GONE
                await asyncio.sleep(RETRY_SECONDS * (4 if gone else 1))

    async def _ask_on_one_inbox(self) -> None:
        consumer = await self._source.prepare()
        inbox, self._reconnects = self._connection.new_inbox(), self._connection.stats["reconnects"]
        loop = asyncio.get_running_loop()
        self._asked, self._stale, self._last_sign = 0, False, loop.time()

        async def arrived(message: ClientMessage) -> None:
            self._last_sign = loop.time()
            headers = message.headers
            if headers and "Status" in headers and not message.reply.startswith("$JS.ACK"):
                self._status(headers)
                return
            self._asked -= 1
            self._held += 1
            self._unanswered = False
            self._arrived.put_nowait(message)

        subscription = await self._connection.subscribe(
            inbox, cb=arrived, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        try:
            while not self._stopped and not self._stale and self._connection.is_connected:
                # Cleared first: what is released while asking must not be slept over.
                self._changed.clear()
                await self._ask(consumer, inbox)
                # Not `wait_for`: up to Python 3.11 it swallows a cancellation that meets the event.
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_HEARTBEAT_SECONDS):
                        await self._changed.wait()
                if loop.time() - self._last_sign > SILENCE_MAX_SECONDS and self._asked > 0:
                    return
        finally:
            with suppress(Exception):
                # What is on its way is taken, or handed back: else it waits for `ack_wait`.
                await self._connection.end(subscription)

    async def _ask(self, consumer: str, inbox: str) -> None:
        most = self._source.in_flight_max
        free = most - self._held - max(self._asked, 0)
        if free <= 0 or (self._asked > 0 and free < most // 2):
            return
        self._asked = max(self._asked, 0) + free
        request = {
            "batch": free,
            "expires": int(REQUEST_EXPIRES_SECONDS * SECOND_NS),
            "idle_heartbeat": int(IDLE_HEARTBEAT_SECONDS * SECOND_NS),
        }
        with suppress(Exception):  # a dead connection shows by the silence that follows
            await self._connection.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", msgspec.json.encode(request), reply=inbox
            )

    def _status(self, headers: dict[str, str]) -> None:
        match headers["Status"]:
            case "100":
                self._unanswered = False
                return
            case "408" | "409" | "404":
                description = headers.get("Description", "")
                left = headers.get("Nats-Pending-Messages")
                self._asked -= int(left) if left else self._asked
                if "Deleted" in description or "Leadership" in description:
                    self._stale = True
            case status:
                # 503: the durable does not exist; `DurableWatch` creates it again.
                if not self._unanswered:
                    log.warning("no answer to a pull", extra={"status": status})
                self._stale = self._unanswered = True
        self._changed.set()
