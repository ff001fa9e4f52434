"""Buckets over a stream's own calls: a key is a subject, its entry the last message under it.

What a bucket does follows from storing, reading and following alone, so it is here once for
every bus.
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

from schemas import headers as h
from schemas.stream_specs import BucketSpec
from services.bus.port import Entry, Start, Stored
from services.bus.protocol.publish_calls import Storing
from services.primitives.errors import Conflict


class Buckets(Storing):
    """The bucket half of a bus; the other half is what it asks for."""

    @abstractmethod
    async def read(self, stream: str, filter_: str, *, after: int = 0) -> list[Stored]:
        """Everything stored under a filter."""

    @abstractmethod
    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last message under a subject."""

    @abstractmethod
    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        """Call the JetStream API."""

    @abstractmethod
    def follow(self, stream: str, filters: Sequence[str], start: Start) -> AsyncIterator[Stored]:
        """Yield a stream's messages in order."""

    async def last_sequence(self, stream: str, filter_: str = "") -> int:
        """Return a stream's last sequence, of its leader; with a filter, the last one under it."""
        if filter_:
            last = await self.last(stream, filter_)
            return last.sequence if last else 0
        info = await self.admin(f"STREAM.INFO.{stream}", {})
        return int(info["state"]["last_seq"])

    async def get(self, bucket: BucketSpec, key: str) -> Entry | None:
        """Return a key's entry, or None."""
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
        return await self.publish(f"$KV.{bucket.name}.{key}", value, headers=headers)

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
            # The key may have been removed: its marker has a revision, which then is the guard.
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

    async def watch(self, bucket: BucketSpec, filter_: str = ">") -> AsyncIterator[Entry]:
        """Every key's present entry, then every change, for ever; survives reconnection."""
        filters = (f"$KV.{bucket.name}.{filter_}",)
        async for stored in self.follow(f"KV_{bucket.name}", filters, "last_per_subject"):
            yield to_entry(bucket, stored)


def _ttl(seconds: int) -> dict[str, str]:
    return {h.TTL: f"{seconds}s"} if seconds else {}


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
