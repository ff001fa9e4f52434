"""Compares what the nodes of pools with `consolidation` cost with what is offered now.

The replica with the lease asks the provisioner; the planner finds in the pool's record which nodes
cost too much, and what is older than some minutes there counts no more.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from schemas.pool_records import PoolRecord
from services.bus.leases import Lease
from services.bus.port import Bus
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.offering_reader import read_offerings
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.remediation import consolidation
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import AnswerError, BusError, Conflict, Retry

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 300.0
NODES_MAX: Final = 2_000
"""Nodes of a pool whose prices are read in one round, the oldest first."""


class PriceWatch:
    """Notes in pools' records which nodes cost too much."""

    def __init__(self, bus: Bus, clock: Clock, store: Store, lease: Lease) -> None:
        """Ask while `lease` is held."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._lease = lease
        self._uses = NodeUseReader(bus, clock, HeartbeatReader(bus))

    async def run(self, reconcile: Callable[[str], Awaitable[None]]) -> None:
        """Compare at each interval, for ever."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if not self._lease.held:
                continue
            try:
                records = await self._store.pools()
            except BusError as error:
                log.info("prices are not compared: %s", error)
                continue
            for record in records:
                if not (record.spec.consolidation.min_saving or record.dear):
                    continue
                try:
                    if await self._compare(record):
                        await reconcile(record.name)
                except (AnswerError, BusError, Retry, Conflict, msgspec.DecodeError) as error:
                    extra = {"pool": record.name, "reason": str(error)}
                    log.info("prices are not compared", extra=extra)
                except Exception:
                    log.exception("pool %s: its prices are not compared", record.name)

    async def _compare(self, record: PoolRecord) -> bool:
        """Note which nodes are dear; whether there are any."""
        found = {}
        if record.spec.consolidation.min_saving:
            now, nodes = self._clock.now(), Nodes(self._store.nodes_of(record.name))
            old = [each for each in nodes if consolidation.is_old_enough(each, record, now)]
            old.sort(key=lambda each: (each.admitted_at or now, each.node))
            use = await self._uses.read(record.name, [each.node for each in old[:NODES_MAX]])
            offered = await read_offerings(self._bus, record.name) if use else []
            found = consolidation.dear_nodes(record, nodes, use, offered, now)
        stored = await self._store.pool(record.name)
        if stored is not None and stored[0].dear != found:
            await self._store.save_pool(msgspec.structs.replace(stored[0], dear=found), stored[1])
        return bool(found)
