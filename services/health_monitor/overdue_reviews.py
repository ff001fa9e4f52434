"""Reviews degraded nodes whose timer was lost: TIMERS was deleted, purged or rolled back.

A timer is set for the moment at which the first condition of a node wears off. The holder of the
lease looks for nodes whose moment has passed and reviews them as their timers would have.
"""

import logging
from datetime import timedelta
from functools import partial
from typing import Final

from schemas.health_records import HealthRecord
from schemas.messages import decoder
from schemas.topology import HEALTH
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.health_monitor.health_store import HealthStore
from services.health_monitor.rules import node_health
from services.health_monitor.rules.health_state import working_of
from services.health_monitor.verdict_publisher import Performer
from services.primitives.clock import Clock

EVERY_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 5.0
OVERDUE: Final = timedelta(seconds=120)
"""A timer that is so late is lost; most are seconds late."""

log = logging.getLogger(__name__)

_health: Final = decoder(HealthRecord)


class OverdueReviews:
    """Reviews nodes while it holds the lease."""

    def __init__(
        self, bus: Bus, clock: Clock, store: HealthStore, performer: Performer, lease: Lease
    ) -> None:
        """Perform what a review leads to through `performer`."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._performer = performer
        self._lease = lease

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
        """Review what is overdue, once."""
        now = self._clock.now()
        before = (now - OVERDUE).timestamp()
        for _, record in readable(await self._bus.entries(HEALTH), _health):
            ends = [each.until for each in working_of(record).conditions.values()]
            if not ends or (first := min(ends)) >= before:
                continue
            log.warning("overdue for review: its timer was lost", extra={"node": record.node})
            seen = node_health.Trigger(f"overdue-{record.pool}.{record.node}-{first:.0f}", 0, now)
            await self._store.change(
                record.pool,
                record.node,
                partial(node_health.decide_review, seen=seen),
                self._performer.perform,
            )
