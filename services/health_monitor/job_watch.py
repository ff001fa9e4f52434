"""Follows every fault of the fleet, so that this replica knows what each job's nodes have.

Every replica does it for itself: a fault is judged by one of them, and what the job's other nodes
have was perhaps judged by another. It is kept in memory and read again at every start.
"""

import logging
from datetime import timedelta
from typing import Final

from schemas import subjects
from schemas.node_events import Fault
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS
from services.bus.port import Bus
from services.health_monitor.rules.job_faults import AFTER_SECONDS, JobFaultHistory
from services.primitives.clock import Clock
from services.primitives.errors import BusError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0


class JobWatch:
    """Keeps `jobs` as it is on the bus."""

    def __init__(self, bus: Bus, clock: Clock, jobs: JobFaultHistory) -> None:
        """Note in `jobs` what is published on `bus`."""
        self._bus = bus
        self._clock = clock
        self._jobs = jobs

    async def run(self) -> None:
        """Follow for ever."""
        since = self._clock.now() - timedelta(seconds=AFTER_SECONDS)
        faults = [subjects.node_event_wildcard("fault")]
        while True:
            try:
                async for stored in self._bus.follow(EVENTS.name, faults, "new", after=since):
                    since = stored.time
                    fault = decode_stored(stored)
                    if isinstance(fault, Fault):
                        self._jobs.saw(fault, stored.time.timestamp())
            except BusError as error:
                log.info("jobs are not followed just now", extra={"reason": str(error)})
            except Exception:
                log.exception("the fault stored at %s is not taken into its job's history", since)
            await self._clock.sleep(RETRY_SECONDS)
