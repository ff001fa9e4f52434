"""The bus on nats-py: the one module that imports `nats`.

The connection, storing, buckets, timers and requests stand here; pulling messages out of consumers
is in `pulling`. Storing and reading go over plain requests in the server's own JSON, because every
guard, TTL and batch read is then a header or a field that can be read in the server's documents.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import nats
import nats.errors
import nats.micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.request import Request as MicroRequest

from schemas import headers as h
from schemas import subjects
from schemas.requests import QueryError
from schemas.settings import NatsSettings
from schemas.topology import SERVER_VERSION_MIN, BucketSpec, DurableSpec
from services.runtime.bus import Delivery, Endpoint, Entry, Headers, Reply, Start, Stored
from services.runtime.errors import BusError, Conflict, Refused, SetupError, Unavailable
from services.runtime.pulling import Durable, Ephemeral, Puller, parse_stored

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS: Final = 5.0
PAGE_TIMEOUT_SECONDS: Final = 10.0
"""Of one batch of a read."""
RECONNECT_WAIT_SECONDS: Final = 0.25
PING_INTERVAL_SECONDS: Final = 10
READ_BATCH_MAX: Final = 1000
CONFLICT_CODES: Final = frozenset({10071, 10164})
"""Wrong last sequence, in its two spellings."""
DIRECT_HEADERS: Final = frozenset(
    {"Nats-Stream", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence"}
)
"""What the server adds to a message that is read directly; no part of the message."""
MESSAGE_NOT_FOUND: Final = 10037
NOT_FOUND: Final = 404
UNAVAILABLE: Final = 503

_json = msgspec.json.Encoder()


class _ApiError(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: _ApiError | None = None


_pub_ack = msgspec.json.Decoder(_PubAck)


def _raise(error: _ApiError, what: str) -> None:
    text = f"{what}: {error.description} ({error.err_code or error.code})"
    if error.err_code in CONFLICT_CODES:
        raise Conflict(text)
    if error.code == UNAVAILABLE:
        raise Unavailable(text)
    raise Refused(text, error.err_code)


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Who connects, and how."""

    settings: NatsSettings
    name: str
    inbox_prefix: str = "_INBOX"


class NatsBus:
    """A connection to nats-server. Make one with `connect`."""

    def __init__(self, client: Client, name: str) -> None:
        """Wrap a client that is connected."""
        self._client = client
        self._name = name
        self._pullers: set[Puller] = set()
        self._services: list[Any] = []
        self._reading: set[asyncio.Future[None]] = set()

    @classmethod
    async def connect(cls, options: ConnectOptions) -> "NatsBus":
        """Connect, waiting for ever for a server; refuse one that is too old."""
        client = Client()
        bus = cls(client, options.name)
        settings = options.settings
        extra: dict[str, Any] = {}
        if settings.user:
            extra |= {"user": settings.user, "password": settings.password}
        if settings.creds_file:
            extra["user_credentials"] = settings.creds_file
        if settings.tls_ca_file:
            import ssl  # noqa: PLC0415 - only where TLS is asked for

            extra["tls"] = ssl.create_default_context(cafile=settings.tls_ca_file)
        await client.connect(
            settings.url.split(","),
            name=options.name,
            error_cb=bus._on_error,
            disconnected_cb=bus._on_disconnected,
            reconnected_cb=bus._on_reconnected,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_WAIT_SECONDS,  # type: ignore[arg-type]
            ping_interval=PING_INTERVAL_SECONDS,
            inbox_prefix=options.inbox_prefix,
            **extra,
        )
        version = client.connected_server_version
        found = (version.major, version.minor, version.patch)
        if found < SERVER_VERSION_MIN:
            await client.close()
            wanted = ".".join(map(str, SERVER_VERSION_MIN))
            raise SetupError(
                f"nats-server at {settings.url} is {'.'.join(map(str, found))}; Navarch needs "
                f"{wanted} or later (scheduled messages). Upgrade it, or unset NAVARCH_NATS_URL "
                "to use the embedded server."
            )
        return bus

    # --- the connection -----------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        """Whether the bus can be spoken to now."""
        return bool(self._client.is_connected)

    async def _on_error(self, error: Exception) -> None:
        # A refused publish (permissions) arrives only here, never at the call.
        log.warning("bus error: %s", error or type(error).__name__)

    async def _on_disconnected(self) -> None:
        log.warning("bus disconnected; reconnecting for ever")
        # Answers to what was asked over the lost connection can never come: whoever waits for one
        # learns it now and not after the time-out.
        lost = [*self._client._resp_map.values(), *self._reading]  # noqa: SLF001
        for answer in lost:
            if not answer.done():
                answer.set_exception(nats.errors.ConnectionClosedError())

    async def _on_reconnected(self) -> None:
        log.info("bus reconnected")
        for puller in self._pullers:
            puller.restart()

    async def close(self) -> None:
        """Stop taking messages, send what is buffered, and leave."""
        for puller in list(self._pullers):
            await puller.stop()
        for service in self._services:
            with suppress(Exception):
                await service.stop()
        if self._client.is_connected:
            with suppress(nats.errors.Error, TimeoutError):
                await self._client.flush(timeout=2)
        await self._client.close()

    async def _ask(
        self, subject: str, data: bytes, headers: dict[str, str] | None, timeout_seconds: float
    ) -> Msg:
        # A publish while disconnected would be buffered and sent much later, after the caller has
        # been told that it failed; so it is refused at once.
        if not self._client.is_connected:
            raise Unavailable(f"{subject}: not connected to the bus")
        try:
            return await self._client.request(
                subject, data, timeout=timeout_seconds, headers=headers
            )
        except nats.errors.NoRespondersError as error:
            raise Unavailable(f"{subject}: nobody answers") from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise Unavailable(f"{subject}: no answer in {timeout_seconds:g} s") from error
        except nats.errors.MaxPayloadError as error:
            raise Refused(f"{subject}: {len(data)} bytes are more than the server takes") from error
        except (nats.errors.Error, OSError) as error:
            raise Unavailable(f"{subject}: {error}") from error

    # --- storing ------------------------------------------------------------------------------

    async def _store(self, subject: str, data: bytes, headers: dict[str, str] | None) -> int:
        answer = await self._ask(subject, data, headers, REQUEST_TIMEOUT_SECONDS)
        try:
            ack = _pub_ack.decode(answer.data)
        except msgspec.DecodeError as error:
            raise Unavailable(f"{subject}: no acknowledgement but {answer.data[:80]!r}") from error
        if ack.error is not None:
            _raise(ack.error, subject)
        return ack.seq

    async def publish(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> int:
        """Store a message and return its sequence; a repeated `msg_id` stores nothing more."""
        all_headers = dict(headers or {})
        if msg_id:
            all_headers[h.MSG_ID] = msg_id
        return await self._store(subject, data, all_headers or None)

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        tree: str,
        expected: int,
        headers: Headers | None = None,
    ) -> int:
        """Store a message if `expected` is the last sequence under `tree`; else Conflict."""
        guard = {
            h.EXPECTED_LAST_SUBJECT_SEQ: str(expected),
            h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT: tree,
        }
        return await self._store(subject, data, dict(headers or {}) | guard)

    async def schedule(
        self, owner: str, key: str, at: datetime, data: bytes, *, headers: Headers | None = None
    ) -> None:
        """Store a timer: `data` arrives under the owner's due subject at that time, once."""
        moment = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        await self._store(
            subjects.timer_schedule(owner, key),
            data,
            dict(headers or {})
            | {h.SCHEDULE: f"@at {moment}", h.SCHEDULE_TARGET: subjects.timer_due(owner, key)},
        )

    # --- reading ------------------------------------------------------------------------------

    async def _direct(self, stream: str, query: dict[str, Any]) -> list[Msg]:
        """Ask for many messages at once; the answers end with a status."""
        if not self._client.is_connected:
            raise Unavailable(f"{stream}: not connected to the bus")
        found: list[Msg] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def arrived(message: Msg) -> None:
            status = (message.headers or {}).get("Status")
            if status is None:
                found.append(message)
            elif done.done():
                return
            elif status in ("204", "404"):
                done.set_result(None)
            else:
                done.set_exception(Unavailable(f"{stream}: reading ended with status {status}"))

        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=arrived, pending_bytes_limit=-1)
        self._reading.add(done)
        try:
            await self._client.publish(
                f"$JS.API.DIRECT.GET.{stream}", _json.encode(query), reply=inbox
            )
            async with asyncio.timeout(PAGE_TIMEOUT_SECONDS):
                await done
        except (nats.errors.Error, TimeoutError, OSError) as error:
            raise Unavailable(f"{stream}: cannot be read: {error or 'no answer'}") from error
        finally:
            self._reading.discard(done)
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
        return found

    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter, oldest first, after a sequence."""
        stored: list[Stored] = []
        while True:
            page = await self._direct(
                stream,
                {"batch": READ_BATCH_MAX, "next_by_subj": filter_, "seq": after + 1},
            )
            stored.extend(_from_direct(each) for each in page)
            if len(page) < READ_BATCH_MAX:
                return stored
            after = stored[-1].sequence

    async def last(self, stream: str, subject: str) -> Stored | None:
        """The last message under a subject, or under a whole tree."""
        answer = await self._ask(
            f"$JS.API.DIRECT.GET.{stream}",
            _json.encode({"last_by_subj": subject}),
            None,
            REQUEST_TIMEOUT_SECONDS,
        )
        status = (answer.headers or {}).get("Status")
        if status == str(NOT_FOUND):
            return None
        if status is not None:
            raise Unavailable(f"{stream}: reading ended with status {status}")
        return _from_direct(answer)

    async def last_sequence(self, stream: str, filter_: str = "") -> int:
        """The stream's last sequence, from its leader; with a filter, of what stands under it."""
        if filter_:
            try:
                found = await self.admin(f"STREAM.MSG.GET.{stream}", {"last_by_subj": filter_})
            except Refused as error:
                if error.code == MESSAGE_NOT_FOUND:
                    return 0
                raise
            return int(found["message"]["seq"])
        info = await self.admin(f"STREAM.INFO.{stream}", {})
        return int(info["state"]["last_seq"])

    # --- buckets ------------------------------------------------------------------------------

    async def get(self, bucket: BucketSpec, key: str) -> Entry | None:
        """A key's entry, or None."""
        stored = await self.last(f"KV_{bucket.name}", f"$KV.{bucket.name}.{key}")
        if stored is None:
            return None
        entry = to_entry(bucket, stored)
        return None if entry.removed else entry

    async def entries(self, bucket: BucketSpec, filter_: str = ">") -> list[Entry]:
        """Every entry that has a value."""
        stored = await self.read(f"KV_{bucket.name}", f"$KV.{bucket.name}.{filter_}")
        found = (to_entry(bucket, each) for each in stored)
        return [entry for entry in found if not entry.removed]

    async def _write(
        self, bucket: BucketSpec, key: str, value: bytes, headers: dict[str, str]
    ) -> int:
        return await self._store(f"$KV.{bucket.name}.{key}", value, headers or None)

    async def put(self, bucket: BucketSpec, key: str, value: bytes, *, ttl_seconds: int = 0) -> int:
        """Write whatever is there now, and return the revision."""
        return await self._write(bucket, key, value, _ttl(ttl_seconds))

    async def create(
        self, bucket: BucketSpec, key: str, value: bytes, *, ttl_seconds: int = 0
    ) -> int:
        """Write a key that has no value, else Conflict."""
        guard = _ttl(ttl_seconds) | {h.EXPECTED_LAST_SUBJECT_SEQ: "0"}
        try:
            return await self._write(bucket, key, value, guard)
        except Conflict:
            # The key may stand removed: its marker has a revision, which then is the guard.
            stored = await self.last(f"KV_{bucket.name}", f"$KV.{bucket.name}.{key}")
            if stored is None or not to_entry(bucket, stored).removed:
                raise
            return await self.update(bucket, key, value, stored.sequence, ttl_seconds=ttl_seconds)

    async def update(
        self, bucket: BucketSpec, key: str, value: bytes, revision: int, *, ttl_seconds: int = 0
    ) -> int:
        """Write if `revision` is still the last, else Conflict."""
        guard = _ttl(ttl_seconds) | {h.EXPECTED_LAST_SUBJECT_SEQ: str(revision)}
        return await self._write(bucket, key, value, guard)

    async def delete(self, bucket: BucketSpec, key: str, *, revision: int | None = None) -> None:
        """Remove a key; with a revision, only if it is still the last, else Conflict."""
        guard = {h.KV_OPERATION: "DEL"}
        if revision is not None:
            guard[h.EXPECTED_LAST_SUBJECT_SEQ] = str(revision)
        await self._write(bucket, key, b"", guard)

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
        puller = Puller(self._client, Ephemeral(self, stream, tuple(filters), start, after))
        async for delivery in self._pulling(puller):
            yield delivery.stored

    async def watch(self, bucket: BucketSpec, filter_: str = ">") -> AsyncIterator[Entry]:
        """Every key's present entry, then every change, for ever; survives reconnection."""
        filters = (f"$KV.{bucket.name}.{filter_}",)
        async for stored in self.follow(f"KV_{bucket.name}", filters, "last_per_subject"):
            yield to_entry(bucket, stored)

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
        """Ask whoever serves the subject; Unavailable where nobody does."""
        answer = await self._ask(subject, data, None, timeout_seconds)
        return Reply(answer.data, dict(answer.headers or {}))

    async def serve(
        self, name: str, description: str, endpoints: Mapping[str, Endpoint], *, http: str = ""
    ) -> None:
        """Answer `endpoints` (subject -> function) as a service that `nats micro` can list."""
        service = await nats.micro.add_service(
            self._client,
            name=name,
            version="1.0.0",
            description=description,
            metadata={"http": http} if http else {},
        )
        self._services.append(service)
        for subject, endpoint in endpoints.items():
            await service.add_endpoint(
                name=subject.rsplit(".", 1)[-1], subject=subject, handler=_micro(endpoint)
            )
        # Whoever asks next, on whatever connection, is to find it.
        await self._client.flush(timeout=REQUEST_TIMEOUT_SECONDS)  # type: ignore[arg-type]

    async def answer(self, subject: str, endpoint: Endpoint) -> None:
        """Answer one subject plainly."""

        async def reply(message: Msg) -> None:
            if not message.reply:
                return
            try:
                answer = await endpoint(message.data, dict(message.headers or {}))
            except BusError as error:
                answer = _failure("unavailable", error)
            except Exception as error:  # noqa: BLE001 - whatever an endpoint raises is its answer
                answer = _failure("invalid-request", error)
            await message.respond(answer)

        await self._client.subscribe(subject, cb=reply)

    # --- administration -----------------------------------------------------------------------

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API (`STREAM.INFO.EVENTS`); Refused carries the server's code."""
        answer = await self._ask(
            f"$JS.API.{call}", _json.encode(body) if body else b"", None, REQUEST_TIMEOUT_SECONDS
        )
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if error := found.get("error"):
            _raise(msgspec.convert(error, _ApiError), call)
        return found

    async def purge(self, stream: str, filter_: str) -> None:
        """Remove everything stored under a filter."""
        await self.admin(f"STREAM.PURGE.{stream}", {"filter": filter_})


def _ttl(seconds: int) -> dict[str, str]:
    return {h.TTL: f"{seconds}s"} if seconds else {}


def _from_direct(message: Msg) -> Stored:
    headers = dict(message.headers or {})
    return Stored(
        subject=headers.pop("Nats-Subject"),
        data=message.data,
        sequence=int(headers.pop("Nats-Sequence")),
        time=datetime.fromisoformat(headers.pop("Nats-Time-Stamp")),
        headers={name: value for name, value in headers.items() if name not in DIRECT_HEADERS},
    )


def to_entry(bucket: BucketSpec, stored: Stored) -> Entry:
    """Read a bucket's message as an entry."""
    removed = stored.headers.get(h.KV_OPERATION, "") or stored.headers.get(h.MARKER_REASON, "")
    return Entry(
        key=stored.subject.removeprefix(f"$KV.{bucket.name}."),
        value=stored.data,
        revision=stored.sequence,
        time=stored.time,
        removed=removed,
    )


def _micro(endpoint: Endpoint) -> Any:
    async def handle(request: MicroRequest) -> None:
        try:
            answer = await endpoint(request.data, dict(request.headers or {}))
        except asyncio.CancelledError:
            raise
        except BusError as error:
            await request.respond_error("503", str(error), _failure("unavailable", error))
        except Exception as error:  # noqa: BLE001 - whatever an endpoint raises is its answer
            await request.respond_error("400", str(error), _failure("invalid-request", error))
        else:
            await request.respond(answer)

    return handle


def _failure(kind: str, error: Exception) -> bytes:
    return _json.encode(QueryError(error=kind, reason=str(error)))


__all__ = ["ConnectOptions", "NatsBus", "parse_stored", "to_entry"]
