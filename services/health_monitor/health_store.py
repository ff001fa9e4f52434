"""Reads and writes HEALTH: every change is decided on a record and saved by compare-and-set.

Effects of a message are performed before the record is saved: after a crash between the two the
message is delivered again and repeats them, under the same IDs. What the watches decide has no such
message; it is saved first, with the event in the record's outbox, and published then. A record kept
in memory saves the read, and is trusted for changes without effects only: a verdict always rests on
what the bucket holds.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from schemas.health_records import HealthRecord
from schemas.node_records import node_key
from schemas.topology import HEALTH
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket, retry_conflicts
from services.health_monitor.rules.health_outbox import (
    WatchDecision,
    WatchEvent,
    unpublished,
    with_event,
    without_events,
)
from services.health_monitor.rules.node_health import Decision, Effect
from services.primitives.errors import Conflict

CACHED_NODES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class CachedRecord:
    """A node's record as last seen."""

    record: HealthRecord
    revision: int
    """0: there is none, and `record` is a blank one."""


Decide = Callable[[HealthRecord], Decision]
Perform = Callable[[HealthRecord, Effect], Awaitable[None]]
MayBegin = Callable[[str, str], Awaitable[bool]]


async def never(_pool: str, _node: str) -> bool:
    """For what changes a record and never begins one."""
    return False


class HealthStore:
    """The HEALTH bucket, as its one writer uses it."""

    def __init__(self, bus: Bus) -> None:
        """Keep records in `bus`."""
        self._bus = bus
        self._records = RecordBucket(bus, HEALTH, HealthRecord)
        self._cache: OrderedDict[str, CachedRecord] = OrderedDict()

    async def read(self, pool: str, node: str) -> CachedRecord:
        """Read what the bucket holds now."""
        key = node_key(pool, node)
        record, revision, _ = await self._records.read(key)
        if record is None:
            self._cache.pop(key, None)
            return CachedRecord(HealthRecord(pool=pool, node=node), 0)
        held = CachedRecord(record, revision)
        self._keep(key, held)
        return held

    async def change(
        self,
        pool: str,
        node: str,
        decide: Decide,
        perform: Perform,
        *,
        may_begin: MayBegin = never,
    ) -> None:
        """Decide on a node's record, perform the effects, save; again where another was first.

        `may_begin` is asked where there is no record; where it says no, nothing is done.
        """
        key = node_key(pool, node)
        held = self._cache.get(key)
        if held is not None:
            record, effects = decide(held.record)
            if not effects:
                with suppress(Conflict):
                    await self._save(key, held, record)
                    return

        async def attempt() -> None:
            held = await self.read(pool, node)
            if not held.revision and not await may_begin(pool, node):
                return
            record, effects = decide(held.record)
            for effect in effects:
                await perform(record, effect)
            await self._save(key, held, record)

        await retry_conflicts(attempt, f"HEALTH {key}")

    async def publish(
        self,
        pool: str,
        node: str,
        decide: Callable[[HealthRecord], WatchDecision],
        publish: Callable[[WatchEvent], Awaitable[None]],
    ) -> None:
        """Decide on a node's record, save it with the event, publish, and empty the outbox.

        Events that an earlier attempt left in the outbox are published before.
        """
        key = node_key(pool, node)

        async def attempt() -> None:
            held = await self.read(pool, node)
            if not held.revision:
                return
            record, event = decide(held.record)
            if event is not None:
                record = with_event(record, event)
            held = await self._save(key, held, record)
            events = unpublished(record)
            for each in events:
                await publish(each)
            if events:
                await self._save(key, held, without_events(record))

        await retry_conflicts(attempt, f"HEALTH {key}")

    async def remove(self, pool: str, node: str) -> None:
        """Forget a node that is gone."""
        key = node_key(pool, node)
        self._cache.pop(key, None)
        await self._bus.delete(HEALTH, key)

    async def _save(self, key: str, held: CachedRecord, record: HealthRecord) -> CachedRecord:
        if record == held.record:
            return held
        try:
            revision = await self._records.write(key, record, held.revision)
        except Conflict:
            self._cache.pop(key, None)
            raise
        saved = CachedRecord(record, revision)
        self._keep(key, saved)
        return saved

    def _keep(self, key: str, held: CachedRecord) -> None:
        self._cache[key] = held
        self._cache.move_to_end(key)
        if len(self._cache) > CACHED_NODES_MAX:
            self._cache.popitem(last=False)
