"""The bus as services see it. `nats_bus` is the real one; nothing here knows which it is.

Every call raises Unavailable where the bus cannot answer now, Conflict where a guard did not hold,
Refused where the server says no. Nothing is retried here except what is safe to repeat blindly.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import msgspec

from schemas.stream_specs import BucketSpec, DurableSpec, ObjectBucketSpec, StreamSpec

Headers = Mapping[str, str]
Start = Literal["new", "all", "last_per_subject"]


class Stored(msgspec.Struct, frozen=True):
    """A message as the server keeps it; `time` is when it was stored, by the server's clock.

    This and Entry are made for every message there is, which of all kinds of values these do
    fastest.
    """

    subject: str
    data: bytes
    sequence: int
    time: datetime
    headers: Headers = {}


class Entry(msgspec.Struct, frozen=True):
    """A bucket's entry; `removed` says why there is no value: `DEL`, `PURGE` or `MaxAge`."""

    key: str
    value: bytes
    revision: int
    time: datetime
    removed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """Describes an object in an object store; `revision` guards the next write."""

    name: str
    size_bytes: int
    revision: int
    time: datetime
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Object:
    """Holds an object with its content."""

    info: ObjectInfo
    data: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds the answer to a request."""

    data: bytes
    headers: Headers = field(default_factory=dict)


class Delivery(Protocol):
    """One delivery of a stored message, to be settled once: ack, nak or term."""

    @property
    def stored(self) -> Stored:
        """Return the message."""

    @property
    def deliveries(self) -> int:
        """Return how often it has been delivered, this time included."""

    @property
    def pending(self) -> int:
        """Return how many messages wait behind it."""

    async def ack(self) -> None:
        """Done with it."""

    async def nak(self, delay_seconds: float) -> None:
        """Deliver it again, after a delay."""

    async def term(self) -> None:
        """Never deliver it again."""

    async def progress(self) -> None:
        """Still being processed: restart the acknowledgement wait."""


Endpoint = Callable[[bytes, Headers], Awaitable[bytes]]
"""Answers one request; what it raises becomes an error reply."""
Endpoints = Mapping[str, Endpoint]
Facts = Mapping[str, str]
"""What a process says of itself."""


class Bus(Protocol):
    """Declares what Navarch needs of a bus: streams, buckets, timers, requests."""

    @property
    def connected(self) -> bool:
        """Return whether the bus can be spoken to now."""

    @property
    def connections(self) -> int:
        """Return how often the bus was connected: the server may have another store since then."""

    @property
    def is_open(self) -> bool:
        """Return whether the server lets every client in, under any name."""

    def unwritable_streams(self) -> Mapping[str, str]:
        """Streams that take none of this process's writes, each with the last refusal."""

    async def publish(
        self, subject: str, data: bytes, *, msg_id: str = "", headers: Headers | None = None
    ) -> int:
        """Store a message and return its sequence; a repeated `msg_id` stores nothing more."""

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

    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter, oldest first, after a sequence."""

    async def read_batch(
        self, stream: str, filter_: str, *, after: int | datetime, count: int
    ) -> list[Stored]:
        """Return the next `count` messages under a filter, after a sequence or from a time on.

        The answering server may be behind its leader: follow the stream from the last message on.
        """

    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last message under a subject."""

    async def schedule(
        self,
        owner: str,
        key: str,
        at: datetime,
        data: bytes,
        *,
        headers: Headers | None = None,
    ) -> None:
        """Store a timer: `data` arrives under the owner's due subject at that time, once."""

    async def get(self, bucket: BucketSpec, key: str) -> Entry | None:
        """Return a key's entry, or None."""

    async def entries(self, bucket: BucketSpec, filter_: str = ">") -> list[Entry]:
        """Every entry that has a value."""

    async def put(self, bucket: BucketSpec, key: str, value: bytes, *, ttl_seconds: int = 0) -> int:
        """Write whatever is there now, and return the revision."""

    async def create(
        self, bucket: BucketSpec, key: str, value: bytes, *, ttl_seconds: int = 0
    ) -> int:
        """Write a key that has no value, else Conflict."""

    async def update(
        self, bucket: BucketSpec, key: str, value: bytes, revision: int, *, ttl_seconds: int = 0
    ) -> int:
        """Write if `revision` is still the last, else Conflict."""

    async def delete(self, bucket: BucketSpec, key: str, *, revision: int | None = None) -> None:
        """Remove a key; with a revision, only if it is still the last, else Conflict."""

    async def put_object(
        self,
        bucket: ObjectBucketSpec,
        name: str,
        data: bytes,
        *,
        metadata: Mapping[str, str],
        revision: int,
    ) -> int:
        """Write an object if `revision` is still its last (0: there is none), else Conflict."""

    async def get_object(self, bucket: ObjectBucketSpec, name: str) -> Object | None:
        """An object, whole; None where there is none of this name."""

    async def objects(self, bucket: ObjectBucketSpec) -> list[ObjectInfo]:
        """Return what objects there are, oldest first, without their content."""

    async def last_sequence(self, stream: str, filter_: str = "") -> int:
        """Return a stream's last sequence, of its leader; with a filter, the last one under it."""

    def watch(self, bucket: BucketSpec, filter_: str = ">") -> AsyncIterator[Entry]:
        """Every key's present entry, then every change, for ever; survives reconnection."""

    def follow(
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

    def consume(self, durable: DurableSpec) -> AsyncIterator[Delivery]:
        """A durable's messages, for ever; survives reconnection."""

    async def request(self, subject: str, data: bytes, *, timeout_seconds: float) -> Reply:
        """Send a request; Unavailable where no responder serves the subject."""

    async def request_all(
        self, subject: str, data: bytes, silence_seconds: float, first_seconds: float = 0.0
    ) -> list[bytes]:
        """Send a request that several answer; return when none has for `silence_seconds`.

        The first may take `first_seconds` where that is longer; without responders none is awaited.
        """

    async def serve(
        self, name: str, description: str, endpoints: Endpoints, *, facts: Facts | None = None
    ) -> None:
        """Answer `endpoints` (subject -> function) as a service that `nats micro` can list.

        `facts`: about this process; `nats micro info` shows them.
        """

    async def answer(self, subject: str, endpoint: Endpoint) -> None:
        """Answer one subject plainly."""

    async def answer_some(
        self, subject: str, endpoint: Endpoint, *, most: int, seconds: float
    ) -> None:
        """Answer at most `most` requests within `seconds`; others find no responder."""

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API (`STREAM.INFO.EVENTS`); Refused carries the server's code."""

    async def purge(self, stream: str, filter_: str) -> None:
        """Remove everything stored under a filter."""

    async def close(self) -> None:
        """Stop taking messages, send what is buffered, and leave."""


__all__ = [
    "BucketSpec",
    "Bus",
    "Delivery",
    "DurableSpec",
    "Endpoint",
    "Entry",
    "Headers",
    "Object",
    "ObjectBucketSpec",
    "ObjectInfo",
    "Reply",
    "Start",
    "Stored",
    "StreamSpec",
]
