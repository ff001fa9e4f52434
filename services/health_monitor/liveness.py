"""Tells which nodes have fallen silent and which are back, from the server's heartbeat markers.

Nothing polls: when a heartbeat's TTL runs out the server leaves a marker, and the watch sees it.
One replica watches, the one that holds the lease; whoever takes the lease over begins the watch
anew and so sees every marker that stood meanwhile. A node without a health record is not known
(or is gone), and its silence says nothing. What silence *means* is the pool-manager's decision.
"""

import asyncio
import logging
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from schemas.records import HealthRecord, decoder
from schemas.topology import HEALTH, HEARTBEATS
from services.health_monitor import core
from services.health_monitor.effects import Performer
from services.health_monitor.store import HealthStore
from services.health_monitor.working import working_of
from services.runtime.bus import Bus, Entry
from services.runtime.clock import Clock
from services.runtime.errors import BusError, Reject, Retry
from services.runtime.leases import Lease
from services.runtime.tracing import Tracing

log = logging.getLogger(__name__)

LEASE: Final = "health-liveness"
EXPIRED: Final = "MaxAge"
LOOK_SECONDS: Final = 0.2
RETRY_SECONDS: Final = 0.5
WORKERS: Final = 32
"""Nodes told of side by side; the words about one node stay in order."""
WAITING_MAX: Final = 2_000
"""Entries that wait at one worker before the watch itself waits."""

_health: Final = decoder(HealthRecord)


@dataclass(frozen=True, slots=True)
class _Word:
    """What a heartbeat's entry says of its node."""

    key: str
    silent: bool
    revision: int
    time: datetime


class Liveness:
    """Watches heartbeats while it holds the lease."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: HealthStore,
        performer: Performer,
        lease: Lease,
        tracing: Tracing,
    ) -> None:
        """Tell of silence through `performer`, as the holder of `lease`."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._performer = performer
        self._lease = lease
        self._tracing = tracing
        self._silent: set[str] = set()
        """Nodes whose next beat is news."""
        self._queues: list[asyncio.Queue[_Word]] = []

    async def run(self) -> None:
        """Contend for the lease and watch while it is held, for ever."""
        keeping = asyncio.create_task(self._lease.keep())
        watching: asyncio.Task[None] | None = None
        try:
            while True:
                if keeping.done():
                    keeping.result()
                if self._lease.held and watching is None:
                    watching = asyncio.create_task(self._watch())
                elif watching is not None and (watching.done() or not self._lease.held):
                    await _end(watching)
                    watching = None
                await self._clock.sleep(LOOK_SECONDS)
        finally:
            for task in (keeping, watching):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
            await self._lease.release()

    async def _watch(self) -> None:
        """Tell of every marker and every return, from the present state on."""
        self._queues = [asyncio.Queue(WAITING_MAX) for _ in range(WORKERS)]
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                group.create_task(self._work(queue))
            await self._take_stock()
            async for entry in self._bus.watch(HEARTBEATS):
                await self._take(entry)

    async def _take_stock(self) -> None:
        """Learn who is lost, and who fell silent so long ago that the marker is gone too."""
        alive = {entry.key for entry in await self._bus.entries(HEARTBEATS)}
        now = self._clock.now()
        self._silent.clear()
        for entry in await self._bus.entries(HEALTH):
            try:
                record: HealthRecord = _health.decode(entry.value)
            except msgspec.DecodeError as error:
                log.warning("unreadable record", extra={"key": entry.key, "error": str(error)})
                continue
            untouched_seconds = (now - entry.time).total_seconds()
            if record.lost:
                self._silent.add(entry.key)
            elif (
                entry.key not in alive
                and working_of(record).registered
                and untouched_seconds > HEARTBEATS.marker_ttl_seconds
            ):
                await self._put(_Word(entry.key, silent=True, revision=entry.revision, time=now))

    async def _take(self, entry: Entry) -> None:
        """Sort one entry of the watch: nearly all are beats of nodes that were not lost."""
        silent = entry.removed == EXPIRED
        if silent:
            self._silent.add(entry.key)
        elif not entry.removed and entry.key in self._silent:
            self._silent.discard(entry.key)
        else:
            return
        await self._put(_Word(entry.key, silent, entry.revision, entry.time))

    async def _put(self, word: "_Word") -> None:
        await self._queues[zlib.crc32(word.key.encode()) % WORKERS].put(word)

    async def _work(self, queue: "asyncio.Queue[_Word]") -> None:
        while True:
            word = await queue.get()
            while self._lease.held:
                try:
                    await self._tell(word)
                except (BusError, Retry) as error:
                    log.info("cannot tell yet", extra={"key": word.key, "reason": str(error)})
                    await self._clock.sleep(RETRY_SECONDS)
                except Reject as error:
                    log.error("%s", error)  # noqa: TRY400 - the text is the whole story
                    break
                else:
                    break

    async def _tell(self, word: "_Word") -> None:
        pool, _, node = word.key.partition(".")
        decide = core.decide_silent if word.silent else core.decide_beating
        with self._tracing.span("heartbeat", {}, node=node):
            await self._store.change(
                pool,
                node,
                lambda record: decide(record, word.revision, word.time),
                self._performer.perform,
            )


async def _end(task: asyncio.Task[None]) -> None:
    """End the watch; why it ended by itself is logged, and it is begun anew."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("the watch of heartbeats ended", exc_info=error)
