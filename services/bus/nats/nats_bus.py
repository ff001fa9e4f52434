"""The bus on nats-py, which only this module and `quick_client` import.

Storing and reading go over plain requests in the server's own JSON, because every guard, TTL and
batch read is then a header or a field that can be read in the server's documents.
"""

import asyncio
import hashlib
import logging
import re
import secrets
import ssl
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final, Self

import msgspec
import nats
import nats.errors
from nats.aio.client import ServerVersion
from nats.micro.request import Request
from nats.micro.service import Service as MicroService
from nats.micro.service import ServiceConfig

from schemas import headers as h
from schemas.fleet_queries import Expiry
from schemas.stream_specs import DurableSpec
from services.bus.nats.client_protocol import ClientMessage
from services.bus.nats.connection_expiry import expiries
from services.bus.nats.connection_options import ConnectOptions as ConnectOptions
from services.bus.nats.connection_options import (
    credentials,
    end_client,
    ends_within,
    requires_tls,
    unreachable,
)
from services.bus.nats.credentials_file import message_id_key
from services.bus.nats.limited_answers import LimitedAnswers
from services.bus.nats.live_reader import LiveReader
from services.bus.nats.pull_consumer import Durable, Puller
from services.bus.nats.quick_client import QuickClient
from services.bus.nats.replica_reads import Replicas
from services.bus.nats.request_mux import RequestMux
from services.bus.port import Delivery, Endpoint, Endpoints, Facts, Reply, Start, Stored
from services.bus.protocol.endpoint_replies import may_answer, plain_handler, service_handler
from services.bus.protocol.ephemeral_consumer import EphemeralConsumer
from services.bus.protocol.kv_buckets import Buckets
from services.bus.protocol.object_store import Objects
from services.bus.protocol.server_protocol import (
    check_version,
    ends_batch,
    read_ack,
    read_answer,
    read_direct,
    refuse_too_large,
)
from services.primitives.errors import BusError, SetupError, Unavailable
from services.primitives.race import unless

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS: Final = 5.0
READ_SILENCE_SECONDS: Final = (10.0,)
"""How long each attempt of a batch read waits for its next message."""
REPLICA_SILENCE_SECONDS: Final = (0.25, 0.5, 0.5, 1.0, 1.0, 2.0, 5.0)
"""The same where the replica that is asked may be out of sight for some twenty seconds."""
RECONNECT_WAIT_SECONDS: Final = 0.25
READ_BATCH_MAX: Final = 1000
NOT_FOUND: Final = 404
ENDED: Final = (ConnectionResetError, BrokenPipeError, nats.errors.UnexpectedEOF, ssl.SSLError)
REFUSED_PUBLISH: Final = re.compile(
    r'(?i)permissions violation for publish to "(?P<subject>[^"]+)"'
)

_json = msgspec.json.Encoder()


class NatsBus(Replicas, Buckets, Objects):
    """Connects to nats-server. Make one with `connect`."""

    def __init__(self, client: QuickClient, options: ConnectOptions) -> None:
        """Wrap a client that connects with these options."""
        super().__init__()
        self._client = client
        self._options = options
        self._requests = RequestMux(client)
        self._replicated = options.settings.replicas > 1
        self._id_key = b""
        self._last_error = ""
        self._pullers: set[Puller] = set()
        self._live: set[LiveReader] = set()
        self._services: list[Any] = []
        self._renewing: list[asyncio.Task[None]] = []
        self._reading: set[asyncio.Future[None]] = set()

    @classmethod
    async def connect(cls, options: ConnectOptions, *, seconds_max: float | None = None) -> Self:
        """Connect; refuse a server that is too old. `seconds_max` None: try for ever."""
        client = QuickClient()
        settings = options.settings
        client.must_encrypt, client.tls_of = requires_tls(settings), options
        bus = cls(client, options)
        arguments = credentials(options)
        if file := arguments.get("user_credentials"):
            bus._id_key = message_id_key(file)
        connecting = client.connect(
            [each.strip() for each in settings.url.split(",") if each.strip()],
            name=options.name,
            error_cb=bus._on_error,
            disconnected_cb=bus._on_disconnected,
            reconnected_cb=bus._on_reconnected,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type]
            ping_interval=options.ping_seconds,
            inbox_prefix=options.inbox_prefix,
            **arguments,
        )
        if not await ends_within(connecting, seconds_max):
            await end_client(client.close())
            raise unreachable(settings.url, bus._last_error)
        # Of the last server that greeted; the client's own property forgets it with the connection.
        version = ServerVersion(client._server_info["version"])  # noqa: SLF001
        try:
            check_version((version.major, version.minor, version.patch), settings.url)
        except SetupError:
            await end_client(client.close())
            raise
        await bus._requests.listen()
        return bus

    # --- the connection -----------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Return whether the bus can be spoken to now."""
        return bool(self._client.is_connected)

    @property
    def connections(self) -> int:
        """Return how often it was connected."""
        return 1 + self._client.stats["reconnects"]

    @property
    def is_open(self) -> bool:
        """Return whether the server lets every client in, under any name."""
        return not self._client._server_info.get("auth_required")  # noqa: SLF001

    def expiries(self) -> list[Expiry]:
        """Return when the certificates and credentials of this connection expire."""
        writer = getattr(self._client._transport, "_io_writer", None)  # noqa: SLF001
        secured = writer.get_extra_info("ssl_object") if writer is not None else None
        return expiries(self._options, secured.getpeercert() if secured is not None else None)

    @property
    def login_refused(self) -> bool:
        """Return whether the server refuses the credentials at each attempt to reconnect."""
        return not self.connected and "auth" in self._last_error.lower()

    async def _on_error(self, error: Exception) -> None:
        # A refused publish (permissions) arrives only here, never at the call. While the server is
        # away the same words come four times a second; once is enough until they change.
        text = str(error) or type(error).__name__
        ended = isinstance(error, ENDED) and not isinstance(error, ssl.SSLCertVerificationError)
        if ended and "auth" in self._last_error.lower():
            return  # the server refused the login again, and closed before that could be read
        if text != self._last_error:
            log.warning("bus error: %s", text)
        if refused := REFUSED_PUBLISH.search(text):
            self._requests.refuse(refused["subject"], text)
        self._last_error = text

    async def _on_disconnected(self) -> None:
        if not self._client.is_closed:
            log.warning("bus disconnected; reconnecting for ever")
        # Answers to what was asked over the lost connection can never come: a caller that waits
        # learns it now and not after the time-out.
        self._requests.lost()
        for future in list(self._reading):
            if not future.done():
                future.set_exception(nats.errors.ConnectionClosedError())

    async def _on_reconnected(self) -> None:
        log.info("bus reconnected")
        self._last_error = ""
        for puller in self._pullers:
            puller.restart()
        for reader in self._live:
            reader.wake()

    async def close(self) -> None:
        """Stop taking messages, send what is buffered, and leave."""
        for each in self._renewing:
            each.cancel()
        for puller in list(self._pullers):
            await puller.stop()
        for service in self._services:
            with suppress(Exception):
                await service.stop()
        if self._client.is_connected:
            with suppress(nats.errors.Error, BusError):
                await self._connected(self._barrier())
        # What is buffered still was meant for a server that is away, and cannot be sent any more.
        self._client._pending, self._client._pending_data_size = [], 0  # noqa: SLF001
        await end_client(self._client.close())

    async def _ask(
        self, subject: str, data: bytes, headers: dict[str, str] | None, timeout_seconds: float
    ) -> ClientMessage:
        # A publish while disconnected would be sent much later, after the caller saw it fail.
        if not self._client.is_connected:
            raise Unavailable(f"{subject}: not connected to the bus")
        bytes_max = min(self._client.max_payload, self._options.message_bytes_max)
        refuse_too_large(subject, data, headers, bytes_max)
        try:
            return await self._requests.ask(subject, data, headers, timeout_seconds)
        except TimeoutError as error:
            raise Unavailable(f"{subject}: no answer in {timeout_seconds:g} s") from error
        except (nats.errors.Error, OSError) as error:
            raise Unavailable(f"{subject}: {error}") from error

    # --- storing ------------------------------------------------------------------------------

    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        if self._id_key and (plain := headers.get(h.MSG_ID)):
            # The server compares the IDs of a whole stream. Another user must not be able to store
            # a message first under an ID that it can guess, so that this one would be dropped.
            keyed = hashlib.blake2b(plain.encode(), key=self._id_key, digest_size=16)
            headers = headers | {h.MSG_ID: keyed.hexdigest()}
        answer = await self._ask(subject, data, headers or None, REQUEST_TIMEOUT_SECONDS)
        return read_ack(answer.data, subject)

    # --- reading ------------------------------------------------------------------------------

    async def _direct(self, stream: str, query: dict[str, Any]) -> list[ClientMessage]:
        """Ask for many messages at once; the answers end with a status."""
        if not self._client.is_connected:
            raise Unavailable(f"{stream}: not connected to the bus")

        def ends(message: ClientMessage) -> bool:
            return ends_batch(message.headers, stream)

        subject, body = f"$JS.API.DIRECT.GET.{stream}", _json.encode(query)
        silences = REPLICA_SILENCE_SECONDS if self._replicated else READ_SILENCE_SECONDS
        try:
            for silence_seconds in silences:
                with suppress(TimeoutError):
                    return await self._requests.gather(subject, body, ends, silence_seconds)
        except (nats.errors.Error, OSError) as error:
            raise Unavailable(f"{stream}: cannot be read: {error}") from error
        raise Unavailable(f"{stream}: cannot be read: no answer in {sum(silences):g} s")

    async def _read(self, stream: str, filter_: str, after: int) -> list[Stored]:
        """Everything under a filter that the answering server has."""
        stored: list[Stored] = []
        while True:
            page = await self.read_batch(stream, filter_, after=after, count=READ_BATCH_MAX)
            stored.extend(page)
            if len(page) < READ_BATCH_MAX:
                return stored
            after = stored[-1].sequence

    async def read_batch(
        self, stream: str, filter_: str, *, after: int | datetime, count: int
    ) -> list[Stored]:
        """The next `count` messages that the answering server has."""
        query: dict[str, Any] = {"batch": count, "next_by_subj": filter_}
        if isinstance(after, datetime):
            query["start_time"] = after.astimezone(UTC).isoformat()
        else:
            query["seq"] = after + 1
        page = await self._direct(stream, query)
        return [read_direct(each.data, each.headers) for each in page]

    async def _last(self, stream: str, subject: str) -> Stored | None:
        """The last message under a subject that the answering server has."""
        # Where the subject is a whole one the request names it, so that permissions can, too.
        place, body = f"$JS.API.DIRECT.GET.{stream}.{subject}", b""
        if "*" in subject or ">" in subject:
            place, body = f"$JS.API.DIRECT.GET.{stream}", _json.encode({"last_by_subj": subject})
        answer = await self._ask(place, body, None, REQUEST_TIMEOUT_SECONDS)
        status = (answer.headers or {}).get("Status")
        if status == str(NOT_FOUND):
            return None
        if status is not None:
            raise Unavailable(f"{stream}: reading ended with status {status}")
        return read_direct(answer.data, answer.headers)

    # --- consuming ----------------------------------------------------------------------------

    async def consume(self, durable: DurableSpec) -> AsyncIterator[Delivery]:
        """A durable's messages, for ever; survives reconnection."""
        puller = Puller(self._client, Durable(durable))
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
        """A stream's messages in order, for ever; survives reconnection.

        `after` (a sequence, or a time of storing) takes the place of `start`.
        """
        if not self._options.may_create_consumers:
            async for stored in self._reading_live(stream, filters, start, after):
                yield stored
            return
        new_name = lambda: f"follow-{secrets.token_hex(8)}"  # noqa: E731
        source = EphemeralConsumer(self, stream, tuple(filters), start, after, new_name)
        puller = Puller(self._client, source)
        async for delivery in self._pulling(puller):
            yield delivery.stored

    async def _reading_live(
        self, stream: str, filters: Sequence[str], start: Start, after: int | datetime | None
    ) -> AsyncIterator[Stored]:
        reader = LiveReader(self, self._client, stream, filters)
        self._live.add(reader)
        try:
            async for stored in reader.run(start, after):
                yield stored
        finally:
            self._live.discard(reader)
            await reader.stop()

    async def _pulling(self, puller: Puller) -> AsyncIterator[Delivery]:
        self._pullers.add(puller)
        try:
            async for delivery in puller.run():
                yield delivery
        finally:
            self._pullers.discard(puller)
            await puller.stop()

    # --- requests -----------------------------------------------------------------------------

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Send a request; Unavailable where no responder serves the subject."""
        answer = await self._ask(subject, data, None, timeout_seconds)
        return Reply(answer.data, dict(answer.headers or {}))

    async def request_all(
        self, subject: str, data: bytes, silence_seconds: float, first_seconds: float = 0.0
    ) -> list[bytes]:
        """Send a request that several answer; return when none has for `silence_seconds`."""
        return await self._requests.gather_all(subject, data, silence_seconds, first_seconds)

    async def serve(
        self, name: str, description: str, endpoints: Endpoints, *, facts: Facts | None = None
    ) -> None:
        """Answer `endpoints` (subject -> function) as a service that `nats micro` can list."""
        config = ServiceConfig(
            name=name,
            version=metadata.version("navarch"),
            description=description,
            metadata=dict(facts or {}),
        )
        while True:
            service = MicroService(self._client, config)
            try:
                await self._connected(self._answer_as(service, endpoints))
            except (nats.errors.Error, Unavailable) as error:
                # The server went away in the middle of it; no part of it may be returned twice.
                log.warning("cannot serve yet: %s", error or type(error).__name__)
                with suppress(Exception):
                    await service.stop()
                await asyncio.sleep(RECONNECT_WAIT_SECONDS)
            else:
                self._services.append(service)
                return

    async def _answer_as(self, service: Any, endpoints: Endpoints) -> None:
        await service.start()
        for subject, endpoint in endpoints.items():
            await service.add_endpoint(
                name=subject.rstrip(".*>").rsplit(".", 1)[-1],
                subject=subject,
                handler=_asked(endpoint),
            )
        # The next request, on any connection, must find it.
        await self._barrier()

    async def _connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what can only end over this connection; raise as soon as that is lost."""
        if not self._client.is_connected:
            work.close()
            raise Unavailable("not connected to the bus")
        lost = asyncio.get_running_loop().create_future()
        self._reading.add(lost)
        try:
            await unless(lost, work)
        finally:
            self._reading.discard(lost)

    async def _barrier(self) -> None:
        """Return when the server has taken in what was sent before."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_SECONDS):
                await self._client.barrier()
        except TimeoutError as error:
            raise Unavailable("the bus does not take subscriptions") from error

    async def answer(self, subject: str, endpoint: Endpoint) -> None:
        """Answer one subject plainly."""
        await self._client.subscribe(subject, cb=plain_handler(endpoint))

    async def answer_some(
        self, subject: str, endpoint: Endpoint, *, most: int, seconds: float
    ) -> None:
        """Answer at most `most` requests within `seconds`; others find no responder."""
        limited = LimitedAnswers(self._client, subject, plain_handler(endpoint), most, seconds)
        await limited.subscribe()
        self._renewing.append(asyncio.create_task(limited.renew()))

    # --- administration -----------------------------------------------------------------------

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API (`STREAM.INFO.EVENTS`); Refused carries the server's code."""
        answer = await self._ask(
            f"$JS.API.{call}", _json.encode(body) if body else b"", None, REQUEST_TIMEOUT_SECONDS
        )
        return read_answer(answer.data, call)

    async def purge(self, stream: str, filter_: str) -> None:
        """Remove everything stored under a filter."""
        await self.admin(f"STREAM.PURGE.{stream}", {"filter": filter_})


def _asked(endpoint: Endpoint) -> Any:
    """What the services API calls; where the answer would be stored as ours, there is none."""
    handle = service_handler(endpoint)

    async def asked(request: Request) -> None:
        if may_answer(request._msg.reply):  # noqa: SLF001 - the client names it nowhere else
            await handle(request)

    return asked
