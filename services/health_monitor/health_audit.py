"""Makes up for timers and verdicts that were lost: their stream was deleted, purged or rolled back.

A timer is set for the moment at which something of a node first wears off or begins to count. The
holder of the lease looks for nodes whose moment has passed and reviews them as their timers would
have. And it publishes again what HEALTH says of a node and NODES does not: a verdict, and that it
is back. Of a node that NODES says is gone it removes what HEALTH has left. A node of unknown health
has registered while its name was another's: its registration is handled once more.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from schemas.health_records import HealthRecord
from schemas.messages import decoder
from schemas.node_records import NodeRecord, node_key
from schemas.topology import HEALTH, HEARTBEATS, NODES
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.health_monitor.health_store import HealthStore
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_state import next_review, working_of
from services.health_monitor.rules.lost_health import (
    has_not_joined,
    is_left_over,
    is_unregistered,
    missing_return,
    missing_verdict,
)
from services.health_monitor.verdict_publisher import Performer
from services.primitives.clock import Clock

EVERY_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 5.0
REGISTERED_MAX: Final = 256
"""In one look; the next one goes on."""
OVERDUE: Final = timedelta(seconds=120)
"""A timer that is so late is lost; most are seconds late."""

log = logging.getLogger(__name__)

_health: Final = decoder(HealthRecord)
_nodes: Final = decoder(NodeRecord)


class HealthAudit:
    """Looks at every node while it holds the lease."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: HealthStore,
        performer: Performer,
        lease: Lease,
        register: Callable[[NodeRecord], Awaitable[bool]],
        review: Callable[[str, str, node_health.Trigger], Awaitable[None]],
    ) -> None:
        """Publish through `performer`; `register` a node once more, or `review` it."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._performer = performer
        self._lease = lease
        self._register = register
        self._review = review
        self._published: dict[str, datetime] = {}
        """Node -> since when it is what its last verdict says that was published again: once, as
        the message may be one that ends every process that handles it."""

    async def run(self) -> None:
        """Contend for the lease and look at an interval, for ever."""
        async with self._lease.kept():
            await repeat_while_held(
                self._lease,
                self._clock,
                self.look,
                every_seconds=EVERY_SECONDS,
                look_seconds=LOOK_SECONDS,
            )

    async def look(self) -> None:
        """Look at every node once."""
        entries = await self._bus.entries(HEALTH)
        health = [each for _, each in readable(entries, _health)]
        await self._review_overdue(health)
        nodes = {
            entry.key: each for entry, each in readable(await self._bus.entries(NODES), _nodes)
        }
        for record in health:
            key = node_key(record.pool, record.node)
            node = nodes.get(key)
            if await self._is_left_over(key, record, node):
                log.warning("left over from a node that is gone", extra={"node": record.node})
                await self._store.remove(record.pool, record.node)
                continue
            await self._publish_missing(key, record, node)
            await self._publish_return(key, record, node)
        # One that says "unknown" was made again from NODES, which had no verdict either.
        unheard = {node_key(each.pool, each.node) for each in health if each.status == "unknown"}
        known = {entry.key for entry in entries} - unheard
        unknown = [each for key, each in nodes.items() if key not in known]
        late = [each for each in unknown if is_unregistered(each, self._clock.now())]
        for node in late[:REGISTERED_MAX]:
            if await self._register(node):
                log.warning("its registration was another's; repeated", extra={"node": node.node})

    async def _is_left_over(self, key: str, record: HealthRecord, node: NodeRecord | None) -> bool:
        now = self._clock.now()
        if has_not_joined(record, node, now):
            return await self._bus.get(HEARTBEATS, key) is None
        return is_left_over(record, node, now)

    async def _review_overdue(self, health: Iterable[HealthRecord]) -> None:
        now = self._clock.now()
        before = (now - OVERDUE).timestamp()
        for record in health:
            first = next_review(working_of(record))
            if not first or first >= before:
                continue
            log.warning("overdue for review: its timer was lost", extra={"node": record.node})
            seen = node_health.Trigger(f"overdue-{record.pool}.{record.node}-{first:.0f}", 0, now)
            await self._review(record.pool, record.node, seen)

    async def _publish_missing(
        self, key: str, record: HealthRecord, node: NodeRecord | None
    ) -> None:
        verdict = missing_verdict(record, node, self._clock.now())
        if verdict is None:
            self._published.pop(key, None)
            return
        # Only as it is now: an older verdict after its successor would raise an alert for good.
        current = (await self._store.read(record.pool, record.node)).record
        if current.since == verdict.time != self._published.get(key):
            log.warning("its verdict was lost; published again", extra={"node": record.node})
            await self._performer.perform(record, node_health.PublishVerdict(verdict))
            self._published[key] = verdict.time

    async def _publish_return(
        self, key: str, record: HealthRecord, node: NodeRecord | None
    ) -> None:
        """Publish that a node is back, where an earlier `lost` was handled after its return."""
        returned = missing_return(record, node, self._clock.now())
        if returned is None:
            return
        beats = await self._bus.get(HEARTBEATS, key) is not None
        if beats and not (await self._store.read(record.pool, record.node)).record.lost:
            log.warning("its return was lost; published again", extra={"node": record.node})
            await self._performer.publish(returned)
