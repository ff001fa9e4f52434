"""Publishes `lost` and `returned` events from the server's heartbeat markers.

Nothing polls: when a heartbeat's TTL runs out the server leaves a marker, and the watch sees it.
One replica watches, the one that holds the lease; the replica that takes over the lease begins the
watch again, sees every marker that is still there, and publishes what its predecessor has decided
and not published. A node without a health record is not
known (or is gone), and its silence says nothing. What silence *means* is the pool-manager's
decision.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from schemas.health_records import HealthRecord
from schemas.messages import decoder
from schemas.topology import HEALTH, HEARTBEATS
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, while_held
from services.bus.port import Bus, Entry
from services.health_monitor.health_store import HealthStore
from services.health_monitor.leased_work import NodeWorkers
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_outbox import WatchDecision, keep, unpublished
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.verdict_publisher import Performer
from services.primitives.clock import Clock
from services.runtime.tracing import Tracing

LEASE: Final = "health-liveness"
EXPIRED: Final = "MaxAge"

_health: Final = decoder(HealthRecord)


@dataclass(frozen=True, slots=True)
class _HeartbeatChange:
    """What a heartbeat's entry says of its node."""

    key: str
    silent: bool
    revision: int
    time: datetime


class HeartbeatWatch:
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
        """Publish through `performer` while `lease` is held."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._performer = performer
        self._lease = lease
        self._tracing = tracing
        self._silent: set[str] = set()
        """Nodes whose next beat is news."""
        self._workers = NodeWorkers(clock, lease)

    async def run(self) -> None:
        """Contend for the lease and watch while it is held, for ever."""
        await while_held(self._lease, self._clock, self._watch)

    async def _watch(self) -> None:
        """Publish every marker and every return, from the present state on."""
        self._workers = NodeWorkers(self._clock, self._lease)
        async with asyncio.TaskGroup() as group:
            self._workers.start(group)
            await self._take_stock()
            async for entry in self._bus.watch(HEARTBEATS):
                await self._take(entry)

    async def _take_stock(self) -> None:
        """Learn who is lost, and who fell silent so long ago that the marker is gone too."""
        alive = {entry.key for entry in await self._bus.entries(HEARTBEATS)}
        now = self._clock.now()
        self._silent.clear()
        for entry, record in readable(await self._bus.entries(HEALTH), _health):
            untouched_seconds = (now - entry.time).total_seconds()
            if unpublished(record):
                await self._workers.put(entry.key, partial(self._change, entry.key, keep))
            if record.lost:
                self._silent.add(entry.key)
            elif (
                entry.key not in alive
                and working_of(record).registered
                and untouched_seconds > HEARTBEATS.marker_ttl_seconds
            ):
                await self._put(
                    _HeartbeatChange(entry.key, silent=True, revision=entry.revision, time=now)
                )

    async def _take(self, entry: Entry) -> None:
        """Sort one entry of the watch: nearly all are beats of nodes that were not lost."""
        silent = entry.removed == EXPIRED
        if silent:
            self._silent.add(entry.key)
        elif not entry.removed and entry.key in self._silent:
            self._silent.discard(entry.key)
        else:
            return
        await self._put(_HeartbeatChange(entry.key, silent, entry.revision, entry.time))

    async def _put(self, word: "_HeartbeatChange") -> None:
        await self._workers.put(word.key, lambda: self._report(word))

    async def _report(self, word: "_HeartbeatChange") -> None:
        decide = node_health.decide_silent if word.silent else node_health.decide_heartbeat
        await self._change(word.key, lambda record: decide(record, word.revision, word.time))

    async def _change(self, key: str, decide: Callable[[HealthRecord], WatchDecision]) -> None:
        pool, _, node = key.partition(".")
        with self._tracing.span("heartbeat", {}, node=node):
            await self._store.publish(pool, node, decide, self._performer.publish)
