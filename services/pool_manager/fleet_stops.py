"""Answers the orders to stop and to resume, and keeps what they have recorded."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas import subjects
from schemas.fleet_events import AutomationStopped
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_records import node_key
from schemas.operations import RESUME, STOP
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.stops import (
    FLEET,
    STOPS_MAX,
    STOPS_QUERY,
    ResumeRequest,
    Stop,
    StopRequest,
    StopsAnswer,
    StopState,
    WaitingStart,
    scope_of,
)
from schemas.topology import INSTANCES
from services.bus.bucket_mirror import readable
from services.bus.port import Bus, Endpoint, Headers
from services.bus.protocol.endpoint_replies import requester
from services.pool_manager.planner.safety import stop_gate
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import Conflict
from services.runtime.event_publisher import publish_event
from services.runtime.stop_watch import StopWatch

log = logging.getLogger(__name__)

AGAIN: Final = timedelta(hours=4)
"""A stop without an end is published again after so long."""
POOLS_AT_ONCE_MAX: Final = 16
"""Decided on at once, to see what waits in them."""
WAITING_MAX: Final = 200
"""Named in an answer."""

_instance: Final = decoder(InstanceRecord)
WouldBegin = Callable[[str, StopState], Awaitable[Mapping[str, OpenSaga]]]


class StopRefusedError(ValueError):
    """A stop or its end makes no sense; the reason says why."""


class FleetStops:
    """Serves the endpoints of one replica."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        watch: StopWatch,
        would_begin: WouldBegin,
        providers: frozenset[str],
    ) -> None:
        """`would_begin`: what would begin in a pool under some stops. `providers`: configured."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._watch = watch
        self._would_begin = would_begin
        self._providers = providers
        self._published: dict[tuple[str, datetime], int] = {}
        """Scope and beginning of a stop -> how often it was published to be in force."""

    def stops_pool(self, pool: str) -> bool:
        """Return whether nothing automatic begins in a pool now."""
        return stop_gate.stop_of(self._watch.state(), pool, self._clock.now()) is not None

    def endpoints(self) -> Mapping[str, Endpoint]:
        """Return the endpoints, by their subjects."""
        return {
            subjects.order_wildcard(STOP.name): self._stop,
            subjects.order_wildcard(RESUME.name): self._resume,
            subjects.query(STOPS_QUERY): self._view,
        }

    async def _stop(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=StopRequest)
        now = self._clock.now()
        await self._check(asked, now)
        scope = scope_of(asked.pool, asked.provider)
        by = requester(headers, asked.by)

        def change(stops: Mapping[str, Stop]) -> Mapping[str, Stop]:
            lasting = {key: each for key, each in stops.items() if each.lasts(now)}
            known = lasting.get(scope)
            if known is None and len(lasting) >= STOPS_MAX:
                raise StopRefusedError(f"{STOPS_MAX} stops are in force; stop the whole fleet")
            lasting[scope] = Stop(
                pool=asked.pool,
                provider=asked.provider,
                running=asked.running,
                until=asked.until,
                reason=asked.reason,
                by=by,
                since=known.since if known is not None else now,
            )
            return lasting

        state = await self._watch.change(change)
        log.warning("stopped", extra={"scope": scope, "by": by, "reason": asked.reason})
        await self._publish_news(now, scope)
        for pool in await self._pools():
            await self._fence(pool)
        return encode(StopsAnswer(stops=tuple(state.at(now).values())))

    async def _fence(self, pool: str) -> None:
        """Write a pool's record as it is: an earlier decision can no longer be written."""
        found = await self._store.pool(pool)
        if found is not None:
            with suppress(Conflict):
                await self._store.save_pool(*found)

    async def _check(self, asked: StopRequest, now: datetime) -> None:
        """Refuse what would stop nothing."""
        if asked.until is not None and asked.until <= now:
            raise StopRefusedError(f"until {asked.until:%Y-%m-%d %H:%M:%S} UTC is over already")
        if asked.pool and asked.pool not in (known := await self._pools()):
            raise StopRefusedError(f"there is no pool {asked.pool!r}: {_known(known)}")
        if asked.provider and asked.provider not in self._providers:
            known = sorted(self._providers)
            raise StopRefusedError(f"there is no provider {asked.provider!r}: {_known(known)}")

    async def _pools(self) -> list[str]:
        return sorted(each.name for each in await self._store.pools())

    async def _resume(self, data: bytes, headers: Headers) -> bytes:
        asked = msgspec.json.decode(data, type=ResumeRequest)
        now, scope = self._clock.now(), scope_of(asked.pool, asked.provider)
        by, ended = requester(headers, asked.by), list[Stop]()
        unknown = not self._watch.state().known

        def change(stops: Mapping[str, Stop]) -> Mapping[str, Stop]:
            ended[:] = [stops[scope]] if scope in stops else []
            if not ended and not unknown:
                # A caller who may see one pool alone learns of no other.
                there = StopState(stops).at(now).items()
                others = sorted(key for key, each in there if not (asked.pool and each.pool))
                known = ", ".join(others) or "nothing"
                raise StopRefusedError(f"{scope} is not stopped; stopped: {known}")
            return {key: each for key, each in stops.items() if key != scope}

        state = await self._watch.change(change)
        for stop in ended:
            await self._publish_end(stop, by, asked.reason, now)
        log.warning("resumed", extra={"scope": scope, "by": by, "reason": asked.reason})
        return encode(StopsAnswer(stops=tuple(state.at(now).values())))

    async def _view(self, data: bytes, _: Headers) -> bytes:
        """Answer every stop in force, and what would begin if one of them ended.

        Without a pool or provider: the fleet's; where the fleet is not stopped, all of them.
        """
        asked = msgspec.json.decode(data or b"{}", type=ResumeRequest)
        state, now = self._watch.state(), self._clock.now()
        stops = state.at(now)
        if not stops:
            return encode(StopsAnswer())
        scope = scope_of(asked.pool, asked.provider)
        alone = scope != FLEET or FLEET in state.stops
        after = state.without(scope) if alone else StopState()
        dollars, limit = await self._dollars(), asyncio.Semaphore(POOLS_AT_ONCE_MAX)

        async def waiting(record: PoolRecord) -> list[WaitingStart]:
            async with limit:
                begins = await self._would_begin(record.name, after)
            name, spec = record.name, record.spec
            return [
                _waiting(name, each, dollars)
                for each in begins.values()
                if stop_gate.holds(state, name, spec, each.kind, each, now)
            ]

        pools = sorted(await self._store.pools(), key=lambda each: each.name)
        found = [one for each in await asyncio.gather(*map(waiting, pools)) for one in each]
        answer = StopsAnswer(
            stops=tuple(stops.values()),
            waiting=tuple(found[:WAITING_MAX]),
            waiting_total=len(found),
            dollars_per_hour=sum(each.dollars_per_hour for each in found),
        )
        return encode(answer)

    async def _dollars(self) -> dict[str, float]:
        """Return what each instance costs an hour, by its node's key."""
        found = readable(await self._bus.entries(INSTANCES), _instance)
        return {entry.key: each.dollars_per_hour for entry, each in found}

    # --- what lasts -------------------------------------------------------------------------------

    async def keep(self) -> None:
        """End what is over, write a copy again that is lost, and publish what lasts."""
        now = self._clock.now()
        over = [each for each in self._watch.state().stops.values() if not each.lasts(now)]
        for stop in over:
            await self._publish_end(stop, "", "its time is over", now)
        if over:
            await self._watch.change(lambda stops: StopState(stops).at(now))
        await self._watch.restore()
        await self._publish_news(now)

    async def _publish_news(self, now: datetime, fresh: str = "") -> None:
        """Publish each stop when it begins, and every four hours where it has no end.

        A process that starts publishes the last of these again, under the same ID. `fresh`: the
        scope of one that was ordered just now.
        """
        for scope, stop in self._watch.state().at(now).items():
            times = 0 if stop.until is not None else (now - stop.since) // AGAIN
            key = scope, stop.since
            if self._published.get(key, -1) >= times and scope != fresh:
                continue
            mark = f"-{now.timestamp():.0f}" if scope == fresh and now != stop.since else ""
            event = AutomationStopped(
                id=f"stopped-{stop.scope}-{stop.since.timestamp():.0f}-{times}{mark}",
                time=now,
                status="stopped",
                scope=stop.scope,
                **msgspec.structs.asdict(stop),
            )
            await publish_event(self._bus, event)
            self._published[key] = times

    async def _publish_end(self, stop: Stop, by: str, reason: str, now: datetime) -> None:
        fields = {**msgspec.structs.asdict(stop), "by": by, "reason": reason}
        event = AutomationStopped(
            id=f"resumed-{stop.scope}-{stop.since.timestamp():.0f}",
            time=now,
            status="resumed",
            scope=stop.scope,
            **fields,
        )
        await publish_event(self._bus, event)
        self._published.pop((stop.scope, stop.since), None)


def _waiting(pool: str, opened: OpenSaga, dollars: Mapping[str, float]) -> WaitingStart:
    cost = dollars.get(node_key(pool, opened.node), 0.0) if opened.node else 0.0
    return WaitingStart(
        pool=pool,
        kind=opened.kind,
        node=opened.node,
        reason=opened.reason,
        dollars_per_hour=cost,
    )


def _known(names: Sequence[str]) -> str:
    return f"known: {', '.join(names) or 'none'}"
