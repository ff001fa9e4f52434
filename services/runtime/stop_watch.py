"""Follows both copies of the record of stops, and writes them.

The copy with the higher number counts, whichever bucket has lost the other. What a process has read
it keeps: a copy that is gone, unreadable or set back changes nothing.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from schemas.stops import PLACES, Stop, StopsRecord, StopState
from schemas.stream_specs import BucketSpec
from services.bus.port import Bus, Entry
from services.bus.record_bucket import RecordBucket, retry_conflicts
from services.primitives.errors import BusError, Conflict, Retry, UnreadableRecord
from services.primitives.race import race

log = logging.getLogger(__name__)

NONE: Final = StopsRecord()
Change = Callable[[Mapping[str, Stop]], Mapping[str, Stop]]


class StopWatch:
    """Knows every stop; `run` must be running."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._buckets = {
            place: RecordBucket(bus, place[0], StopsRecord, replaceable=True) for place in PLACES
        }
        self._record: StopsRecord | None = None
        """The newest that was read; None: no copy could be read."""

    def state(self) -> StopState:
        """Return every stop, also those that have ended by themselves."""
        if self._record is None:
            return StopState(known=False)
        return StopState(self._record.stops)

    async def read(self) -> None:
        """Read both copies, before anything is decided."""
        await self._stored()

    async def fresh(self) -> StopState:
        """Return every stop, with those whose news a watch has not brought yet."""
        place = PLACES[0]
        with suppress(BusError):
            self._take(place, await self._bus.get(*place))
        return self.state()

    async def run(self) -> None:
        """Follow both copies, for ever."""
        for each in await race(*(self._follow(place) for place in PLACES)):
            if not each.cancelled():
                each.result()

    async def _follow(self, place: tuple[BucketSpec, str]) -> None:
        async for entry in self._bus.watch(*place):
            self._take(place, entry)

    def _take(self, place: tuple[BucketSpec, str], entry: Entry | None) -> StopsRecord | None:
        """Take one copy in; None: it cannot be read."""
        record = NONE
        if entry is not None and entry.value:
            try:
                record = self._buckets[place].decode(entry)
            except UnreadableRecord as error:
                log.error("%s; the other copy counts", error)  # noqa: TRY400 - it says it all
                return None
        self._know(record)
        return record

    def _know(self, record: StopsRecord) -> None:
        """Keep the newer record; of two writers that reached one copy each, what either stops."""
        known = self._record
        if known is None or record.number > known.number:
            self._record = record
        elif record.number == known.number:
            self._record = msgspec.structs.replace(known, stops={**record.stops, **known.stops})

    async def _stored(self) -> dict[tuple[BucketSpec, str], StopsRecord | None]:
        """Read each copy from the server; None where that fails."""
        found: dict[tuple[BucketSpec, str], StopsRecord | None] = {}
        for place in PLACES:
            try:
                found[place] = self._take(place, await self._bus.get(*place))
            except BusError as error:
                log.warning("stops of %s are not read: %s", place[0].name, error)
                found[place] = None
        return found

    async def change(self, change: Change) -> StopState:
        """Write a change into both copies, and return every stop after it.

        One that is written is enough. A writer that was faster has the change decided again.
        """

        async def attempt() -> StopState:
            await self._stored()
            before = self._record or NONE
            after = dict(change(before.stops))
            if after != before.stops or self._record is None:
                await self._write(StopsRecord(number=before.number + 1, stops=after))
            return self.state()

        return await retry_conflicts(attempt, "stops")

    async def restore(self) -> None:
        """Write the record where a copy lacks it; where none was ever written, read nothing."""
        if self._record is None or not self._record.number:
            return
        copies = (await self._stored()).values()
        newest = self._record
        if any(each is None or each.number < newest.number for each in copies):
            await self._write(newest)
        elif any(each != newest for each in copies):
            await self._write(msgspec.structs.replace(newest, number=newest.number + 1))

    async def _write(self, record: StopsRecord) -> None:
        """Write a record over older ones; raise Conflict where a copy has a newer one.

        One copy that takes it is enough; where none does, what the last of them raised is raised.
        """
        newer, failed = False, list[BusError | Retry]()

        def decide(found: StopsRecord | None) -> StopsRecord | None:
            nonlocal newer
            beaten = found is not None and found.number >= record.number and found != record
            newer = newer or beaten
            return found if beaten else record

        for (spec, key), bucket in self._buckets.items():
            try:
                await bucket.change(key, decide)
            except (BusError, Retry) as error:
                log.warning("stops are not written to %s: %s", spec.name, error)
                failed.append(error)
            if newer:
                raise Conflict("stops: another change was faster")
        if len(failed) == len(self._buckets):
            raise failed[-1]
        self._know(record)
