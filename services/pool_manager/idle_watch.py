"""Watches the nodes of pools with `idle_after`, and has those that are idle leave.

The replica with the lease asks: agents by their heartbeats, the workload system by way of the
notifier. What it knows is in memory, so another replica that takes over begins again.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from schemas.autoscaling_advice import IDLE, AutoscalingAdvice
from schemas.pool_records import PoolRecord
from services.bus.leases import Lease
from services.bus.port import Bus
from services.pool_manager.autoscaling.scaling_decision import unanswered, with_advice
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.planner.pool_snapshot import Rest
from services.pool_manager.planner.sizing import idle_shutdown
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, Retry

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 30.0
WORK_SECONDS_MAX: Final = 120.0
"""For the answers about the work of a pool's nodes."""
LOOKED_AT_MAX: Final = 2_000
"""Nodes of a pool in one round; the next round goes on with others."""


class IdleWatch:
    """Knows since when nodes are idle."""

    def __init__(self, bus: Bus, clock: Clock, store: Store, lease: Lease) -> None:
        """Ask while `lease` is held."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._lease = lease
        self._uses = NodeUseReader(bus, clock, HeartbeatReader(bus))
        self._known: dict[str, dict[str, Rest]] = {}
        self._due: dict[str, dict[str, Rest]] = {}
        self._round = 0

    def due(self, pool: str) -> Mapping[str, Rest]:
        """Nodes of a pool that are to leave, as far as was found a moment ago."""
        return self._due.get(pool, {})

    async def run(self, reconcile: Callable[[str], Awaitable[None]]) -> None:
        """Look at each interval, for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if not self._lease.held:
                self._known.clear()
                continue
            try:
                records = [each for each in await self._store.pools() if each.spec.idle_after]
            except BusError as error:
                log.info("idle nodes are not looked for: %s", error)
                self._known.clear()
                continue
            self._known = {each.name: self._known.get(each.name, {}) for each in records}
            self._round += 1
            for record in records:
                try:
                    await self._look(record, reconcile)
                except (BusError, Retry, Conflict, msgspec.DecodeError) as error:
                    self._known[record.name] = {}
                    log.info("not idle", extra={"pool": record.name, "reason": str(error)})
                except Exception:
                    self._known[record.name] = {}
                    log.exception("pool %s: its idle nodes are not looked for", record.name)

    async def _look(self, record: PoolRecord, reconcile: Callable[[str], Awaitable[None]]) -> None:
        pool, now = record.name, self._clock.now()
        able = idle_shutdown.candidates(record, list(self._store.nodes_of(pool)), now)
        asked = self._some(able)
        use = await self._uses.read(pool, asked)
        resting = [name for name, each in use.items() if each.gpus and not each.gpus.busy]
        work = await self._uses.work(pool, resting, WORK_SECONDS_MAX)
        silent = len(use) - sum(each.gpus is not None for each in use.values())
        unknown = work.unknown
        if silent and not unknown:
            unknown = f"agents that do not say whether their GPUs are in use: {silent}"
        before = self._known[pool]
        found = idle_shutdown.rests(before, use, work.idle, now)
        kept = {name: before[name] for name in able if name in before and name not in use}
        self._known[pool] = found | kept
        await self._note(record, unknown)
        # Only what was found in this round: what is older may have work by now.
        self._due[pool] = idle_shutdown.due(record, found, now)
        try:
            if self._due[pool]:
                await reconcile(pool)
        finally:
            del self._due[pool]

    def _some(self, able: list[str]) -> list[str]:
        if len(able) <= LOOKED_AT_MAX:
            return able
        begin = self._round * LOOKED_AT_MAX % len(able)
        return (able[begin:] + able[:begin])[:LOOKED_AT_MAX]

    async def _note(self, record: PoolRecord, unknown: str) -> None:
        """Write down that it is not known which nodes are idle, where that is news."""
        advice: AutoscalingAdvice | None = None
        if unknown:
            advice = unanswered("source", IDLE, unknown, self._clock.now(), LOOK_SECONDS)
        stored = await self._store.pool(record.name)
        if stored is not None and (changed := with_advice(stored[0], advice)) is not None:
            await self._store.save_pool(changed, stored[1])
