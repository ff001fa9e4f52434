"""Ends drains that have nothing left to wait for, and unwinds sagas that are no longer needed.

That is what a withdrawn notice has begun, what is repaired of a node that was silent and is heard
again, and the launches of a pool that is being removed. Which those are, the records alone say; so
the next replica that looks does what a crashed replica has left undone.
Each is one guarded entry in the saga's log, and a log that cannot go back any more is left alone.
"""

import logging
from collections.abc import Callable
from datetime import datetime

from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaEntry, StepStarted
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.planner import cloud_notices
from services.pool_manager.planner.remediation.recovered_nodes import (
    HEARD,
    has_other_reason,
    is_for_silence,
    recovered,
)
from services.pool_manager.planner.saga_projection import has_succeeded
from services.pool_manager.planner.sizing.withdrawn_notices import WITHDRAWN
from services.pool_manager.pool_store import Store
from services.pool_manager.sagas import DEFINITIONS
from services.primitives.clock import Clock
from services.saga.coordinator import Coordinator
from services.saga.next_entry import Impossible, cancel, proceed
from services.saga.saga_state import SagaState

log = logging.getLogger(__name__)

Decide = Callable[[SagaState], "SagaEntry | Impossible"]


class SagaInterventions:
    """Brings sagas in step with what has become of their nodes and their pool."""

    def __init__(
        self,
        clock: Clock,
        store: Store,
        heartbeats: HeartbeatReader,
        coordinator: Callable[[], Coordinator],
    ) -> None:
        """`coordinator` is asked for late: it and the reconciler call each other."""
        self._heartbeats = heartbeats
        self._clock = clock
        self._store = store
        self._coordinator = coordinator

    async def look(self, record: PoolRecord) -> None:
        """Do what is due in one pool, as its record and its nodes are now."""
        if record.removing:
            for saga, opened in record.open.items():
                if opened.kind == "scale-up":
                    await self._call_off(saga, record)
        nodes = self._store.nodes_named(record.name, {each.node for each in record.open.values()})
        concerned = [each for each in nodes.values() if each.notices or each.lost]
        now = self._clock.now()
        for hurry in cloud_notices.hurries(record, concerned):
            if hurry.at <= now:
                await self._hurry(hurry)
        for saga, node in cloud_notices.withdrawn(record, concerned):
            await self._unwind(saga, node, WITHDRAWN, f"withdrawn-{saga}")
        for saga, node in recovered(record, nodes):
            await self._unwind(saga, node, HEARD, f"heard-{saga}")

    async def _call_off(self, saga: str, record: PoolRecord) -> None:
        """Cancel a launch of a pool that is being removed."""

        def entry(state: SagaState) -> SagaEntry | Impossible:
            return cancel(
                DEFINITIONS[state.kind],
                state,
                self._clock.now(),
                reason=f"pool {record.name} is being removed",
                cause=record.removing,
            )

        await self._intervene(saga, entry)

    async def _hurry(self, hurry: cloud_notices.Hurry) -> None:
        def entry(state: SagaState) -> SagaEntry | Impossible:
            definition = DEFINITIONS[state.kind]
            return proceed(definition, state, self._clock.now(), reason=hurry.reason)

        await self._intervene(hurry.saga, entry)

    async def _unwind(self, saga: str, node: NodeRecord, reason: str, cause: str) -> None:
        """Take a saga back, and the node into service again.

        What is kept in reserve stays cordoned. So does a node whose place a spare has: the pool has
        one too many then, and that is the one whose work has been asked to leave.
        """

        def entry(state: SagaState) -> SagaEntry | Impossible:
            return _taken_back(state, node, self._clock.now(), reason, cause)

        await self._intervene(saga, entry)

    async def confirm(self, state: SagaState, entry: SagaEntry) -> SagaEntry:
        """The entry to append; where a saga for silence is about to go too far, look first.

        Its node's heartbeat and record are read from the server: a node that beats is kept.
        """
        if not (isinstance(entry, StepStarted) and is_for_silence(state.kind, state.params)):
            return entry
        steps = DEFINITIONS[state.kind].steps(state.params)
        if not any(each.name == entry.step and (each.pivot or each.irrevocable) for each in steps):
            return entry
        pool, name = state.params.pool, state.params.node
        if not await self._heartbeats.beating(pool, [name]):
            return entry
        node = await self._store.fresh_node(pool, name)
        if node is None or has_other_reason(node):
            return entry
        instead = _taken_back(state, node, entry.time, HEARD, f"heard-{state.saga}")
        if isinstance(instead, Impossible):
            return entry
        log.warning("a node that was recorded as lost beats", extra={"saga": state.saga})
        return instead

    async def _intervene(self, saga: str, decide: Decide) -> None:
        coordinator = self._coordinator()

        async def attempt() -> None:
            state = await coordinator.state(saga)
            if state is None:
                return
            entry = decide(state)
            if isinstance(entry, Impossible):
                log.debug("left as it is", extra={"saga": saga, "reason": entry.reason})
                return
            await coordinator.intervene(state, entry)
            log.info("intervened", extra={"saga": saga, "entry": entry.id})
            await coordinator.advance(saga)

        await retry_conflicts(attempt, f"saga {saga}")


def _taken_back(
    state: SagaState, node: NodeRecord, now: datetime, reason: str, cause: str
) -> SagaEntry | Impossible:
    """The entry that unwinds a saga, and uncordons its node unless that stays out of service."""
    stays = node.spare or has_succeeded(state, "promote")
    return cancel(
        DEFINITIONS[state.kind],
        state,
        now,
        reason=reason,
        cause=cause,
        then="" if stays else f"uncordon-{node.node}-{node.sagas + 2}",
    )
