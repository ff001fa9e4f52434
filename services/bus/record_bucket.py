"""The records of one bucket: read, written under their revision, changed by compare-and-set."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from schemas.messages import Record, decoder, encode
from schemas.stream_specs import BucketSpec
from services.bus.port import Bus, Entry
from services.primitives.errors import Conflict, Retry, UnreadableRecord

ATTEMPTS_MAX: Final = 50
"""Each failed attempt means that another writer succeeded."""

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)
T = TypeVar("T")


class Versioned(NamedTuple, Generic[R]):
    """A record as it was last read or written; `written`: by this change."""

    record: R | None
    revision: int
    """0: there is no record."""
    written: bool = False


async def retry_conflicts(attempt: Callable[[], Awaitable[T]], about: str) -> T:
    """Repeat an attempt to read, decide and write until no other writer is faster; else Retry."""
    for _ in range(ATTEMPTS_MAX):
        try:
            return await attempt()
        except Conflict:
            continue
    raise Retry(f"{about}: other writers were faster {ATTEMPTS_MAX} times")


class RecordBucket(Generic[R]):
    """Reads and writes one kind of record in one bucket."""

    def __init__(
        self,
        bus: Bus,
        bucket: BucketSpec,
        kind: type[R],
        ttl_seconds: Callable[[R], int] = lambda _: 0,
        *,
        replaceable: bool = False,
    ) -> None:
        """`ttl_seconds`: after how long a written record expires; 0: never.

        `replaceable`: an unreadable record counts as none and is overwritten, as its content can be
        observed or decided again; any other one waits for an operator.
        """
        self._bus = bus
        self._bucket = bucket
        self._decoder = decoder(kind)
        self._ttl_seconds = ttl_seconds
        self._replaceable = replaceable

    def decode(self, entry: Entry) -> R:
        """Decode an entry of the bucket; raise UnreadableRecord where that fails."""
        try:
            record: R = self._decoder.decode(entry.value)
        except msgspec.DecodeError as error:
            raise UnreadableRecord(self._bucket.name, entry.key, str(error)) from error
        return record

    async def read(self, key: str) -> Versioned[R]:
        """Read a record from the server; one to be replaced is None with its revision."""
        entry = await self._bus.get(self._bucket, key)
        if entry is None:
            return Versioned(None, 0)
        try:
            return Versioned(self.decode(entry), entry.revision)
        except UnreadableRecord as error:
            if not self._replaceable:
                raise
            log.error("%s; the next write replaces it", error)  # noqa: TRY400 - says it all
            return Versioned(None, entry.revision)

    async def write(self, key: str, record: R, revision: int) -> int:
        """Write over a revision (0: there is no record) and return the new one; else Conflict."""
        value, ttl = encode(record), self._ttl_seconds(record)
        if revision:
            return await self._bus.update(self._bucket, key, value, revision, ttl_seconds=ttl)
        return await self._bus.create(self._bucket, key, value, ttl_seconds=ttl)

    async def change(
        self,
        key: str,
        decide: Callable[[R | None], R | None],
        known: Versioned[R] | None = None,
    ) -> Versioned[R]:
        """Write what a pure function makes of the record; None or the same record: write nothing.

        `known` saves the first read; it may be old.
        """

        async def attempt() -> Versioned[R]:
            nonlocal known
            old, known = known or await self.read(key), None
            new = decide(old.record)
            if new is None or new is old.record or new == old.record:
                return old
            return Versioned(new, await self.write(key, new, old.revision), written=True)

        return await retry_conflicts(attempt, f"{self._bucket.name} {key}")
