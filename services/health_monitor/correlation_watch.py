"""Publishes incidents of equal faults on many nodes, under a lease; follows jobs' faults.

Replicas share the faults, so no fault handler sees all of them; this follower does. Open incidents
are read back from EVENTS by the replica that takes over the lease.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

from schemas import pool_events as pe
from schemas import subjects
from schemas.messages import LimitedDecoder
from schemas.node_events import Fault
from schemas.settings import HealthSpec, IncidentSpec, Settings
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, while_held
from services.bus.port import Bus, Stored
from services.health_monitor.rules.correlated_faults import (
    CorrelatedFaults,
    Crash,
    FaultCorrelator,
    NodePlacement,
    PoolPlacement,
    SharedFault,
    reason,
)
from services.health_monitor.rules.drill_faults import is_drill
from services.health_monitor.rules.health_policy import Policy
from services.health_monitor.rules.job_faults import AFTER_SECONDS, JobFaultHistory, of_program
from services.health_monitor.rules.level_faults import is_over
from services.primitives.clock import Clock
from services.primitives.errors import BusError
from services.runtime.event_publisher import publish_event

FOLLOW_AGAIN_SECONDS: Final = 1.0
log = logging.getLogger(__name__)

SWEEP_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 60.0
"""A wave to which no node was added for so long is over."""
PLACES_SECONDS: Final = 30.0
"""How long the placement of a pool's nodes is reused."""
RETRY_SECONDS: Final = 0.5

_place: Final = LimitedDecoder(NodePlacement)


class JobWatch:
    """Keeps `jobs` as it is on the bus.

    Every replica does it for itself: a fault is judged by one of them, and what the job's other
    nodes have was perhaps judged by another. It is kept in memory and read again at every start.
    """

    def __init__(self, bus: Bus, clock: Clock, jobs: JobFaultHistory) -> None:
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
            await self._clock.sleep(FOLLOW_AGAIN_SECONDS)


class CorrelationWatch:
    """Watches faults while it holds the lease."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        lease: Lease,
        policy: Callable[[], Policy],
        settings: Settings,
    ) -> None:
        """Publish incidents by the pools' settings."""
        self._bus = bus
        self._clock = clock
        self._lease = lease
        self._policy = policy
        self._settings = settings
        self._waves = FaultCorrelator()
        self._places: dict[str, tuple[PoolPlacement, float]] = {}

    async def run(self) -> None:
        """Contend for the lease and watch while it is held, for ever."""
        await while_held(self._lease, self._clock, self._watch)

    async def _watch(self) -> None:
        self._waves = FaultCorrelator()
        await self._adopt()
        faults = subjects.node_event_wildcard("fault")
        longest = max((float(self._spec(pool).window) for pool in self._settings.pools), default=60)
        since = self._clock.now() - timedelta(seconds=longest)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep())
            async for stored in self._bus.follow(EVENTS.name, [faults], "new", after=since):
                try:
                    await self._take(stored)
                except BusError:
                    raise
                except Exception:
                    log.exception("%s is not compared with other faults", stored.subject)

    async def _adopt(self) -> None:
        """Take over the incidents that are open; the pool-manager keeps its own."""
        opened: dict[tuple[str, str], pe.Incident] = {}
        for stored in await self._bus.read(EVENTS.name, subjects.pool_event_wildcard("incident")):
            event = decode_stored(stored)
            if not isinstance(event, pe.Incident) or not event.id.startswith("wave-"):
                continue
            opened.pop((event.pool, event.incident), None)
            if event.status == "opened":
                opened[event.pool, event.incident] = event
        for event in opened.values():
            what = SharedFault(event.pool, event.kind, event.code, event.scope, event.within)
            self._waves.adopt(what, event.first.timestamp(), event.last.timestamp())

    async def _take(self, stored: Stored) -> None:
        fault = decode_stored(stored)
        if not isinstance(fault, Fault) or is_over(fault) or is_drill(fault):
            return
        at, spec = stored.time.timestamp(), self._spec(fault.pool)
        judged = self._policy().judge(fault, {}, stored.time)
        if judged.result == "unhealthy" and (judged.fatal or not of_program(fault)):
            crash = Crash(fault.node, fault.kind, fault.code, fault.id, at, fault.job)
            self._waves.crashed(fault.pool, crash)
            return
        places = await self._places_of(fault.pool)
        what, groups = (
            SharedFault(fault.pool, fault.kind, fault.code),
            places.groups(fault.node, fault.job),
        )
        wave = self._waves.take(what, fault.node, at, groups, spec)
        if wave is not None:
            await self._publish(wave, "opened", reason(wave))
            self._waves.open(wave)

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            for wave in self._waves.over(self._clock.now().timestamp(), QUIET_SECONDS):
                await self._publish(wave, "closed", f"no node was added for {QUIET_SECONDS:g} s")

    async def _places_of(self, pool: str) -> PoolPlacement:
        """The placement of a pool's nodes; empty where nothing is known of it."""
        places, until = self._places.get(pool, (PoolPlacement(), 0.0))
        if self._clock.monotonic() >= until:
            nodes = await self._bus.entries(NODES, f"{pool}.>")
            places = PoolPlacement.of([found for _, found in readable(nodes, _place)])
            self._places[pool] = places, self._clock.monotonic() + PLACES_SECONDS
        return places

    def _spec(self, pool: str) -> IncidentSpec:
        found = self._settings.pools.get(pool)
        return (found.health if found is not None else HealthSpec()).incident

    async def _publish(
        self, wave: CorrelatedFaults, status: Literal["opened", "closed"], why: str
    ) -> None:
        what = wave.what
        within = f"{_token(what.within)}-" if what.within else ""
        name = f"{what.kind.replace('_', '-')}-{what.code}-{within}{wave.first:.0f}"
        event = pe.Incident(
            id=f"wave-{what.pool}-{name}-{status}",
            time=self._clock.now(),
            cause=wave.after.fault if wave.after is not None else "",
            pool=what.pool,
            incident=name,
            status=status,
            kind=what.kind,
            code=what.code,
            nodes=len(wave.nodes),
            named=wave.nodes[: pe.INCIDENT_NAMED_MAX] if status == "opened" else (),
            first=datetime.fromtimestamp(wave.first, UTC),
            last=datetime.fromtimestamp(wave.last, UTC),
            reason=why,
            scope=what.scope,
            within=what.within,
        )
        while True:
            try:
                await publish_event(self._bus, event)
            except BusError as error:
                log.info("not published yet", extra={"incident": name, "reason": str(error)})
                await self._clock.sleep(RETRY_SECONDS)
            else:
                log.warning("incident %s", status, extra={"incident": name, "reason": why})
                return


def _token(within: str) -> str:
    """A rack's or job's name, which may hold any character, as part of an ID."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in within.lower())[:40]
    return plain if plain == within else f"{plain}-{zlib.crc32(within.encode()):08x}"
