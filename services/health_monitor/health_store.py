"""Reads and writes HEALTH: every change is decided on a record and saved by compare-and-set.

Effects of a message are performed before the record is saved: after a crash between the two the
message is delivered again and repeats them, under the same IDs. What the watches decide has no such
message; it is saved first, with the event in the record's outbox, and published then. A record kept
in memory saves the read, and is trusted for changes without effects only: a verdict always rests on
what the bucket holds.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from schemas.enums import NodeState
from schemas.health_records import HealthRecord
from schemas.node_records import NodeRecord, node_key
from schemas.topology import HEALTH, NODES
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket, retry_conflicts
from services.health_monitor.rules.health_state import (
    WatchDecision,
    WatchEvent,
    unpublished,
    with_event,
    without_events,
)
from services.health_monitor.rules.lost_health import (
    is_of_other_boot,
    may_begin,
    recovered_health,
)
from services.health_monitor.rules.node_health import Decision, Effect
from services.primitives.clock import Clock
from services.primitives.errors import Conflict, UnreadableRecord

log = logging.getLogger(__name__)

CACHED_NODES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class CachedRecord:
    """A node's record as last seen."""

    record: HealthRecord
    revision: int
    """0: there is none, and `record` is a blank one."""


Decide = Callable[[HealthRecord], Decision]
Perform = Callable[[HealthRecord, Effect], Awaitable[None]]


class HealthStore:
    """The HEALTH bucket, as its one writer uses it."""

    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._records = RecordBucket(bus, HEALTH, HealthRecord)
        self._nodes = RecordBucket(bus, NODES, NodeRecord)
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

    async def _read_or_recover(
        self, pool: str, node: str, *, boot: str | None = None
    ) -> CachedRecord | None:
        """Read a node's record, or make the one that was lost or is the node's first.

        The record may still be of an earlier node of the name, whose end is not published yet.
        """
        held = await self.read(pool, node)
        if held.revision and not is_of_other_boot(held.record, boot):
            return held
        try:
            known = (await self._nodes.read(node_key(pool, node))).record
        except UnreadableRecord as error:
            log.warning("%s", error)
            return held if boot is not None else None
        if held.revision:
            gone = known is not None and known.state == "terminated"
            blank = CachedRecord(HealthRecord(pool=pool, node=node), held.revision)
            return blank if gone and may_begin(known, boot or "") else held
        recovered = recovered_health(known, self._clock.now()) if known is not None else None
        if recovered is not None:
            return CachedRecord(recovered, 0)
        return held if boot is not None and may_begin(known, boot) else None

    async def is_in_service(self, pool: str, node: str) -> bool:
        """Return whether a node is in service, by a record that can be read."""
        try:
            known = (await self._nodes.read(node_key(pool, node))).record
        except UnreadableRecord:
            return False
        return known is not None and known.state == "active"

    async def is_new(self, pool: str, node: str, boot: str) -> bool:
        """Return whether a node's health is not known yet and this boot may be the node's first."""
        held = await self._read_or_recover(pool, node, boot=boot)
        return held is not None and held.record.status == "unknown"

    async def change(
        self,
        pool: str,
        node: str,
        decide: Decide,
        perform: Perform,
        *,
        boot: str | None = None,
    ) -> None:
        """Decide on a node's record, perform the effects, save; again where another was first.

        Without a record nothing is done, unless NODES has the node; `boot`: or what it does is the
        first that is heard of this boot's node.
        """
        key = node_key(pool, node)
        held = self._cache.get(key)
        if held is not None and not is_of_other_boot(held.record, boot):
            record, effects = decide(held.record)
            if not effects:
                with suppress(Conflict):
                    await self._save(key, held, record)
                    return

        async def attempt() -> None:
            held, refused = await asyncio.gather(
                self._read_or_recover(pool, node, boot=boot), self._refuses(key, boot)
            )
            if held is None or refused:
                return
            record, effects = decide(held.record)
            for effect in effects:
                await perform(record, effect)
            await self._save(key, held, record)

        await retry_conflicts(attempt, f"HEALTH {key}")

    async def _refuses(self, key: str, boot: str | None) -> bool:
        """Return whether NODES says that a boot is of another machine than the node's.

        HEALTH lacks it while it cannot be written, and effects are performed all the same.
        """
        if not boot:
            return False
        try:
            known = (await self._nodes.read(key)).record
        except UnreadableRecord:
            return False
        identity = known.identity if known is not None else None
        return identity is not None and identity.refuses(boot)

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
            held = await self._read_or_recover(pool, node)
            if held is None:
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

    async def node_state(self, pool: str, node: str) -> NodeState | Literal["absent", "unreadable"]:
        """Return a node's state in NODES, absent without a record, or unreadable."""
        try:
            known = (await self._nodes.read(node_key(pool, node))).record
        except UnreadableRecord as error:
            log.warning("%s", error)
            return "unreadable"
        return known.state if known is not None else "absent"

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
