"""A bucket mirrored in memory by watching it: reads are free, and `caught_up` makes them fresh."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from schemas.messages import LimitedDecoder, Record, decoder
from schemas.stream_specs import BucketSpec
from services.bus.port import Bus, Entry
from services.primitives.coalesce import Joined
from services.primitives.errors import BusError, UnreadableRecord
from services.primitives.race import race

log = logging.getLogger(__name__)

EXPIRED: Final = "MaxAge"
RECHECK_SECONDS: Final = 5.0
"""After this long a bucket may have lost what is waited for."""
LOOK_SECONDS: Final = 30.0
"""Between two looks for what the watch does not bring: records that vanished without a marker."""
LOOKED_UP_MAX: Final = 100
"""Unreadable keys that one look asks the server for."""
OWN_MAX: Final = 1_000
"""Revisions of our own that are remembered before those that the watch has passed are dropped."""

R = TypeVar("R", bound=Record)
T = TypeVar("T", bound=msgspec.Struct)


class BucketView(Generic[R]):
    """Holds every record of a bucket, by key, as of a revision."""

    def __init__(
        self,
        bus: Bus,
        bucket: BucketSpec,
        kind: type[R],
        changed: Callable[[str], None] | None = None,
    ) -> None:
        """Mirror `bucket`; call `changed` with each key that changes."""
        self._bus = bus
        self._bucket = bucket
        self._decoder = decoder(kind)
        self._changed = changed
        self._seen = 0
        """Everything up to this revision is held."""
        self._own: set[int] = set()
        """What this process has written beyond that."""
        self._moved = asyncio.Condition()
        self._newest = ("", 0)
        """Key and revision of the newest entry that is held."""
        self._again = asyncio.Event()
        """Set: the bucket is watched from its beginning."""
        self._created = ""
        """When the bucket was created that is watched; empty: not known."""
        self._lacking = False
        """Whether the bucket had fewer entries than are held when it was looked at last."""
        self.records: dict[str, R] = {}
        self.revisions: dict[str, int] = {}
        self.losses = 0
        """How often the bucket lost records that were held: removed by hand, rolled back, gone."""
        self.before_loss: dict[str, R] = {}
        """What was held when the bucket was first found to be rolled back, until it is cleared."""
        self._unconfirmed: set[str] = set()
        """Held from before the last loss, and not seen since."""
        self.unreadable: dict[str, UnreadableRecord] = {}
        """Keys whose newest record cannot be read; `records` has the one before it, if any."""
        self._groups: dict[str, dict[str, R]] = {}
        """The same by the first token of their keys: a pool's nodes are not looked for in all."""
        self._last_stored: Joined[int] = Joined(self._ask_last_stored)
        """Asked once for all who want to know at the same time."""

    async def run(self) -> None:
        """Watch for ever, and from the beginning where the bucket was rolled back."""
        while True:
            self._again.clear()
            for each in await race(self._watch(), self._again.wait(), self._look_for_ever()):
                if not each.cancelled():
                    each.result()

    async def _look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.look()
            except BusError as error:
                log.info("bucket %s not looked at: %s", self._bucket.name, error)

    async def look(self) -> None:
        """Find what vanished without a marker, and drop it."""
        stream = f"KV_{self._bucket.name}"
        held = len(self.records.keys() | self.unreadable.keys())
        info = await self._bus.admin(f"STREAM.INFO.{stream}", {})
        replaced = self._created not in ("", info["created"])
        # Twice: what expires is replaced by its marker, perhaps not in the same moment.
        lacked, self._lacking = self._lacking, int(info["state"]["messages"]) < held
        if replaced or (lacked and self._lacking):
            self._watch_again()
        self._created = info["created"]
        for key, found in list(self.unreadable.items())[:LOOKED_UP_MAX]:
            stored = await self._bus.last_sequence(stream, f"$KV.{self._bucket.name}.{key}")
            if not stored and self.unreadable.get(key) is found:
                self.losses += key in self.records
                self._drop_gone(key)
        await self.caught_up()

    async def _watch(self) -> None:
        delivered = 0
        async for entry in self._bus.watch(self._bucket):
            if entry.revision <= delivered:
                # The same sequences once more: the bucket was rolled back or created again.
                self._forget_revisions()
            delivered = entry.revision
            self._apply(entry)
            async with self._moved:
                self._reached(entry.revision)
                self._moved.notify_all()

    def _apply(self, entry: Entry) -> None:
        if entry.revision <= self.revisions.get(entry.key, 0):
            return
        self.unreadable.pop(entry.key, None)
        self._unconfirmed.discard(entry.key)
        if entry.removed:
            if entry.removed != EXPIRED and entry.key in self.records:
                self.losses += 1
            self._drop(entry.key)
            self.revisions[entry.key] = entry.revision
        else:
            try:
                self._keep(entry.key, self._decoder.decode(entry.value), entry.revision)
            except msgspec.DecodeError as error:
                found = UnreadableRecord(self._bucket.name, entry.key, str(error))
                self.unreadable[entry.key] = found
                log.error("%s", found)  # noqa: TRY400 - the text is the whole story
                return
            self.revisions[entry.key] = entry.revision
        if self._changed is not None:
            self._changed(entry.key)

    def _keep(self, key: str, record: R, revision: int) -> None:
        if revision > self._newest[1]:
            self._newest = key, revision
        self.records[key] = self._group(key)[key] = record

    def _group(self, key: str) -> dict[str, R]:
        return self._groups.setdefault(key.partition(".")[0], {})

    def of(self, first: str) -> list[R]:
        """The records whose keys begin with this token, in no order that means anything."""
        return list(self._groups.get(first, {}).values())

    def wrote(self, key: str, record: R, revision: int) -> None:
        """Take in what this process has just written, before the watch brings it."""
        if revision > self.revisions.get(key, 0):
            self._keep(key, record, revision)
            self.revisions[key] = revision
            self._unconfirmed.discard(key)
        self._own.add(revision)
        self._reached(self._seen)

    def _reached(self, revision: int) -> None:
        """Advance to what the watch delivered, and past revisions that this process wrote."""
        self._seen = max(self._seen, revision)
        while self._seen + 1 in self._own:
            self._seen += 1
            self._own.discard(self._seen)
        if self._own and (revision in self._own or len(self._own) > OWN_MAX):
            self._own = {each for each in self._own if each > self._seen}

    async def caught_up(self) -> None:
        """Wait until the view holds everything that was written before this call."""
        reached = False
        while not reached:
            newest, losses = self._newest, self.losses
            target = await self._last_stored(self._bucket.name)
            if newest[1] > target and self._newest == newest and newest[0] in self.records:
                self._watch_again()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS), self._moved:
                    await self._moved.wait_for(
                        lambda: self._seen >= target or self.losses != losses  # noqa: B023
                    )
            reached = self._seen >= target and self.losses == losses
        self._drop_unconfirmed()

    async def _ask_last_stored(self, name: str) -> int:
        """The last entry still stored: one removed without a marker is never delivered."""
        return await self._bus.last_sequence(f"KV_{name}", f"$KV.{name}.>")

    def _watch_again(self) -> None:
        self._forget_revisions()
        self._again.set()

    def _forget_revisions(self) -> None:
        """Follow a bucket that was restored, shortened or created again.

        What it lost is held until everything that it has is held too.
        """
        log.warning("rolled back; mirrored again", extra={"bucket": self._bucket.name})
        self.losses += 1
        self._created, self._lacking = "", False
        self._unconfirmed = self.records.keys() | self.unreadable.keys()
        self.before_loss = self.before_loss or dict(self.records)
        self._seen, self._newest = 0, ("", 0)
        self._own.clear()
        self.revisions.clear()

    def _drop_unconfirmed(self) -> None:
        """Drop what the bucket had before its loss, once everything that it has is held."""
        while self._unconfirmed:
            self._drop_gone(self._unconfirmed.pop())

    def _drop_gone(self, key: str) -> None:
        self._drop(key)
        if self._changed is not None:
            self._changed(key)

    def _drop(self, key: str) -> None:
        self.records.pop(key, None)
        self.unreadable.pop(key, None)
        self._group(key).pop(key, None)


def readable(entries: Iterable[Entry], reader: LimitedDecoder[T]) -> Iterator[tuple[Entry, T]]:
    """Each entry with its record; one that cannot be read is logged, and passed over."""
    for entry in entries:
        try:
            yield entry, reader.decode(entry.value)
        except msgspec.DecodeError as error:
            log.error("unreadable record", extra={"key": entry.key, "error": str(error)})  # noqa: TRY400


def readable_record(entry: Entry | None, reader: LimitedDecoder[T]) -> T | None:
    """The record of one entry; None where there is none, or none that can be read."""
    return next((record for _, record in readable([entry] if entry else [], reader)), None)
