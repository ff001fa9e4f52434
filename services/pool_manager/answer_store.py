"""Stores the last answer about each pool, for who asks while no pool-manager is there."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

import msgspec

from schemas.messages import decoder, encode
from schemas.node_records import node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.present_answers import BlockedGroup, PresentAnswer
from schemas.stops import Stop
from schemas.topology import ANSWERS
from services.bus.bucket_mirror import readable_record
from services.bus.port import Bus
from services.pool_manager.planner.explanation.node_explanation import about, blocked_node
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.safety.stop_gate import any_of
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, Retry
from services.runtime.stop_watch import StopWatch

log = logging.getLogger(__name__)

STORE_SECONDS: Final = 1.0
"""From a change to its answer in the bucket, and between two: no decision waits for one."""

_answers = decoder(PresentAnswer)


class AnswerStore:
    """Writes what pools wait for, at most once a second each and only when it changed."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        replica: str,
        stops: StopWatch,
    ) -> None:
        """Read from `store` and `stops`; `replica` is named in what is written."""
        self._stops = stops
        self._bus = bus
        self._clock = clock
        self._store = store
        self._replica = replica
        self._due: set[str] = set()
        self._failing: set[str] = set()
        self._woken = asyncio.Event()
        self._written: dict[str, tuple[PresentAnswer, int]] = {}
        """Pool -> its answer as this process last read or wrote it, with the bucket's revision."""

    def note(self, pool: str) -> None:
        """Say that a pool was looked at: its answer may have changed."""
        self._due.add(pool)
        self._woken.set()

    async def run(self) -> None:
        """Write the answers that changed, until cancelled."""
        with suppress(BusError):  # of pools that were removed while no pool-manager was there
            for entry in await self._bus.entries(ANSWERS):
                self.note(entry.key.removeprefix(pool_key("")))
        while True:
            await self._woken.wait()
            await self._clock.sleep(STORE_SECONDS)
            self._woken.clear()
            due, self._due = self._due, set()
            for pool in sorted(due):
                try:
                    await self._write(pool)
                except Conflict:
                    self._written.pop(pool, None)  # another replica wrote; its next look compares
                except (BusError, Retry) as error:
                    if pool not in self._failing:  # once: each look at a pool tries again
                        log.warning("answers about pool %s are not stored: %s", pool, error)
                    self._failing.add(pool)
                else:
                    self._failing.discard(pool)

    async def answer(self, pool: str) -> PresentAnswer | None:
        """Return what a pool and its nodes wait for now; None: there is no such pool."""
        found = await self._store.pool(pool)  # other replicas decide about pools, too
        return self._answer(*found) if found is not None else None

    async def of_node(self, pool: str, node: str) -> PresentAnswer | None:
        """Return what a node waits for now; None: it is not recorded."""
        record = self._store.nodes.records.get(node_key(pool, node))
        if record is None:
            return None
        found, now = await self._store.pool(pool), self._clock.now()
        proposed = None
        if found is not None:
            nodes = Nodes(self._store.nodes_of(pool))
            proposed = about(found[0], nodes, now, self._stop(found[0]))
        blocked = blocked_node(record, proposed)
        named = BlockedGroup(nodes=(node,), **msgspec.structs.asdict(blocked))
        return PresentAnswer(pool=pool, at=now, replica=self._replica, groups=(named,))

    def _answer(self, pool: PoolRecord, revision: int) -> PresentAnswer:
        nodes = Nodes(self._store.nodes_of(pool.name))
        return present_answer(
            *(pool, nodes, self._clock.now()),
            stop=self._stop(pool),
            revision=revision,
            replica=self._replica,
        )

    def _stop(self, pool: PoolRecord) -> Stop | None:
        return any_of(self._stops.state(), pool.name, pool.spec, self._clock.now())

    async def _write(self, pool: str) -> None:
        found = self._store.last_read(pool) or await self._store.pool(pool)
        before, revision = await self._before(pool)
        if found is not None and before is not None and before.revision > found[1]:
            # Another replica has decided since, or the pools were set back.
            found = await self._store.pool(pool)
        if found is None:
            self._written.pop(pool, None)
            await self._bus.delete(ANSWERS, pool_key(pool))
            return
        answer = self._answer(*found)
        if before is not None and _same(before, answer):
            return
        data = encode(answer)
        if before is None and not revision:
            revision = await self._bus.create(ANSWERS, pool_key(pool), data)
        else:
            revision = await self._bus.update(ANSWERS, pool_key(pool), data, revision)
        self._written[pool] = answer, revision

    async def _before(self, pool: str) -> tuple[PresentAnswer | None, int]:
        """Return the stored answer, and its revision; of an unreadable one the revision alone."""
        if pool in self._written:
            return self._written[pool]
        entry = await self._bus.get(ANSWERS, pool_key(pool))
        return readable_record(entry, _answers), entry.revision if entry is not None else 0


def _same(before: PresentAnswer, answer: PresentAnswer) -> bool:
    """Return whether two answers say the same, from any replica and at any time."""
    dated = msgspec.structs.replace(
        answer, at=before.at, replica=before.replica, revision=before.revision
    )
    return dated == before
