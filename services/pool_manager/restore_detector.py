"""Recognises that the whole store was restored from a backup, and holds what would act on it.

Records and saga logs then agree with one another, and are older than the fleet. What is newer is
what this process had in memory, and what agents have read in their nodes' records and repeat in
their heartbeats.
"""

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from schemas.instance_records import InstanceRecord
from schemas.messages import decoder
from schemas.node_records import HeartbeatRecord
from schemas.pool_records import PoolRecord
from schemas.topology import HEARTBEATS, INSTANCES, SAGAS
from services.bus.bucket_mirror import readable, readable_record
from services.bus.port import Bus
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.planner.safety.restored_store import held, is_behind
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.5
NAMED_MAX: Final = 8
"""Nodes that the log names."""
SAME: Final = timedelta(minutes=1)
"""A restore that another replica noticed this recently is the same one."""

_beats: Final = decoder(HeartbeatRecord)
_instance: Final = decoder(InstanceRecord)


class RestoreDetector:
    """Compares the records with what is known from elsewhere."""

    def __init__(self, bus: Bus, clock: Clock, store: Store, beat_seconds: float) -> None:
        """Wait `beat_seconds` at most for the heartbeats of a server that has restarted."""
        self._bus = bus
        self._clock = clock
        self._store = store
        self._beat_seconds = beat_seconds

    async def detect(self, pools: Iterable[PoolRecord]) -> None:
        """Hold every pool if the store is older than the fleet; call it after the rebuild."""
        reason = await self._forgotten_entries() or await self.forgotten_nodes()
        now = self._clock.now()
        before = await self._store.restored_at()
        if not reason or (before is not None and now - before < SAME):
            return
        log.error("the store was restored from a backup: %s", reason)
        for pool in pools:
            await self._hold(pool.name)
        await self._store.record_restored(now)

    async def _forgotten_entries(self) -> str:
        """Say how many entries of sagas this process has seen that are gone; empty: none."""
        nodes = self._store.nodes.before_loss.values()
        seen = max((each.saga_entry for each in nodes), default=0)
        last = await self._bus.last_sequence(SAGAS.name)
        return f"SAGAS ends at {last}, and reached {seen} before" if last < seen else ""

    async def forgotten_nodes(self) -> str:
        """Say which nodes' agents have read more than their records have; empty: none."""
        beats = await self._beats()
        nodes = self._store.nodes.records
        behind = [key for key, beat in beats.items() if is_behind(nodes.get(key), beat)]
        # What has left since NODES was lost is not recorded again: INSTANCES has its end.
        gone = {
            key
            for key in behind
            if key not in nodes and await self._is_gone(key, beats[key].admitted_at)
        }
        behind = [key for key in behind if key not in gone]
        named = ", ".join(sorted(behind)[:NAMED_MAX])
        return f"agents have read newer records of {len(behind)} nodes: {named}" if behind else ""

    async def await_heartbeats(self) -> None:
        """Wait until every registered node in service beats, or would if it were connected."""
        until = self._clock.monotonic() + self._beat_seconds
        while self._clock.monotonic() < until:
            beats = await self._beats()
            expected = (
                key
                for key, each in self._store.nodes.records.items()
                if each.state == "active" and each.registered_at is not None and not each.lost
            )
            if all(key in beats for key in expected):
                return
            await self._clock.sleep(LOOK_SECONDS)

    async def _beats(self) -> dict[str, HeartbeatRecord]:
        entries = await self._bus.entries(HEARTBEATS)
        return {entry.key: beat for entry, beat in readable(entries, _beats)}

    async def _is_gone(self, key: str, admitted_at: datetime | None) -> bool:
        """Whether INSTANCES has the end of the machine that an agent beat from."""
        record = readable_record(await self._bus.get(INSTANCES, key), _instance)
        if record is None or record.state != "terminated":
            return False
        at = record.terminated_at
        return at is not None and admitted_at is not None and at >= admitted_at

    async def _hold(self, pool: str) -> None:
        async with self._store.deciding(pool):
            await retry_conflicts(partial(self._hold_once, pool), f"pool {pool}")

    async def _hold_once(self, pool: str) -> None:
        snapshot = await self._store.snapshot(pool)
        if snapshot is None:
            return
        record = held(snapshot, self._clock.now())
        if record is not snapshot.record:
            await self._store.save_pool(record, snapshot.revision)
