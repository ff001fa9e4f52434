"""Ends drains that have nothing left to wait for, and unwinds sagas that are no longer needed.

That is what a withdrawn notice has begun, what is repaired of a node that was silent and is heard
again, and the launches of a pool that is being removed. Which those are, the records alone say; so
the next replica that looks does what a crashed replica has left undone.
Each is one guarded entry in the saga's log, and a log that cannot go back any more is left alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NamedTuple

from schemas.node_records import NodeRecord, node_key
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.saga_log_entries import (
    SagaEntry,
    SagaUnwinding,
    StepExpired,
    StepStarted,
    UndoStarted,
)
from schemas.stops import StopState
from services.bus.port import Bus
from services.bus.record_bucket import retry_conflicts
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.notice_reader import NoticeReader
from services.pool_manager.planner import cloud_notices, saga_audit
from services.pool_manager.planner.node_counts import is_for_silence, is_gone
from services.pool_manager.planner.remediation.recovered_nodes import (
    HEALTHY,
    HEARD,
    recovered,
    unfounded,
)
from services.pool_manager.planner.safety import incidents, stop_gate
from services.pool_manager.planner.safety.restored_store import has_ended_since
from services.pool_manager.planner.saga_projection import has_succeeded
from services.pool_manager.planner.sizing.withdrawn_notices import WITHDRAWN
from services.pool_manager.pool_store import Store
from services.primitives.clock import Clock
from services.primitives.coalesce import Joined
from services.primitives.errors import Retry
from services.saga.coordinator import Coordinator
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import PROVISION
from services.saga.next_entry import Impossible, Waiting, cancel, proceed
from services.saga.saga_state import SagaState

log = logging.getLogger(__name__)

DATED_SECONDS: Final = 0.5
"""Before an entry is decided on again that waits for that."""
IN_WAVE: Final = "the node is one of an incident that was noticed before this began"
CAUSES: Final = {HEARD: "heard", HEALTHY: "healthy", IN_WAVE: "wave"}
"""Why a remediation is taken back -> what the entry's cause begins with."""
ENDED_SINCE: Final = "it ended before the store was restored from a backup"


class UndoPutOff(Retry):
    """The answer whether a launch may be undone comes in a moment."""


Decide = Callable[[SagaState], "SagaEntry | Impossible"]


class _Seen(NamedTuple):
    """What the server has that an entry depends on, as far as it does."""

    restored_at: datetime | None = None
    """When it was last noticed that the store was restored from a backup."""
    node: NodeRecord | None = None
    pool: PoolRecord | None = None
    beats: bool = False
    """Whether the node's heartbeat has not expired; False where that does not matter."""


class SagaInterventions:
    """Brings sagas in step with what has become of their nodes and their pool."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        store: Store,
        heartbeats: HeartbeatReader,
        coordinator: Callable[[], Coordinator],
        beat_seconds: float,
        stops: Callable[[], StopState],
    ) -> None:
        """`coordinator` is asked for late: it and the reconciler call each other.

        `beat_seconds`: within so long every agent that is connected beats. `stops`: what operators
        have stopped.
        """
        self._stops = stops
        self._notices = NoticeReader(bus)
        self._beat_seconds = beat_seconds
        self._dated = -1
        self._fresh_until = 0.0
        self._heartbeats = heartbeats
        self._clock = clock
        self._store = store
        self._coordinator = coordinator
        self._restored_at = Joined(self._read_restored_at)
        self._pool = Joined(self._read_pool)

    async def look(self, record: PoolRecord) -> None:
        """Do what is due in one pool, as its record and its nodes are now."""
        for saga, opened in record.open.items():
            if opened.called_off:
                await self._call_off(saga, record, opened)
        names = dict.fromkeys(each.node for each in record.open.values())
        nodes = self._store.nodes_named(record.name, names)
        concerned = [each for each in nodes.values() if each.notices or each.lost]
        now = self._clock.now()
        for hurry in cloud_notices.hurries(record, concerned):
            if hurry.at <= now and not await self._is_withdrawn(hurry, concerned):
                await self._hurry(hurry)
        for saga, node in cloud_notices.withdrawn(record, concerned):
            await self._unwind(saga, node, WITHDRAWN, f"withdrawn-{saga}")
        for saga, node in recovered(record, nodes):
            await self._unwind(saga, node, HEARD, f"heard-{saga}")

    async def _call_off(self, saga: str, record: PoolRecord, opened: OpenSaga) -> None:
        """Give up a launch whose node the pool no longer wants."""

        def entry(state: SagaState) -> SagaEntry | Impossible:
            return self._given_up(state, record, opened, self._clock.now())

        await self._intervene(saga, entry)

    async def _is_withdrawn(self, hurry: cloud_notices.Hurry, nodes: Iterable[NodeRecord]) -> bool:
        """Whether the last word on a hurry's notice is a withdrawal that its record lacks still.

        Read from the server, since work that has been ended is not given back.
        """
        node = next((each for each in nodes if each.node == hurry.node), None)
        if not hurry.notice or node is None:
            return False
        return (await self._notices.heard(node)).notices[hurry.notice].withdrawn

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

    async def confirm(self, state: SagaState, entry: SagaEntry) -> SagaEntry | Waiting | None:
        """The entry to append, once the store is known not to have been restored from a backup.

        It waits where a stop holds it. None: the saga has ended, and SAGAS has lost the end of its
        log. What the entry depends on is read from the server at once.
        """
        _, seen = await asyncio.gather(self._store.nodes.caught_up(), self._look(state, entry))
        if not self._store.dated:
            raise Retry("whether the store was restored is not known yet", DATED_SECONDS)
        if await has_ended(self._store, state):
            return None
        await self._await_heartbeat(state, entry)
        entry = await self._unless_ended(state, entry, seen)
        entry = await self._unless_withdrawn(state, entry)
        entry = await self._unless_called_off(state, entry)
        entry = self._unless_over(state, entry, seen)
        return await self._unless_stopped(state, entry)

    async def _unless_stopped(self, state: SagaState, entry: SagaEntry) -> SagaEntry | Waiting:
        """Return the entry, or that it waits: the look at open sagas asks again after the stop."""
        stops, pool, now = self._stops(), state.params.pool, self._clock.now()
        asks = any(each.running for each in stops.at(now).values())
        if not asks or not isinstance(entry, StepStarted):
            return entry
        record = await self._pool(pool)
        opened = record.open.get(state.saga) if record is not None else None
        if record is None or opened is None:
            return entry
        steps = DEFINITIONS[state.kind].steps(state.params)
        step = next(each for each in steps if each.name == entry.step)
        stop = stop_gate.holds_step(stops, pool, record.spec, opened, step, now)
        if stop is None:
            return entry
        log.info("waits for a stop", extra={"saga": state.saga, "step": step.name})
        return Waiting(step.name, None)

    async def _look(self, state: SagaState, entry: SagaEntry) -> "_Seen":
        """Read what `_unless_ended` and `_unless_over` look at, all at once."""
        params = state.params
        if not isinstance(entry, StepStarted) or not params.node:
            return _Seen()
        if not _may_be_over(state, entry):
            return _Seen(restored_at=await self._restored_at(""))
        silent = [params.node] if is_for_silence(state.kind, params) else []
        restored_at, node, pool, beating = await asyncio.gather(
            self._restored_at(""),
            self._store.fresh_node(params.pool, params.node),
            self._pool(params.pool),
            self._heartbeats.beating(params.pool, silent),
        )
        return _Seen(restored_at, node, pool, params.node in beating)

    async def _read_restored_at(self, _: str) -> datetime | None:
        return await self._store.restored_at()

    async def _read_pool(self, pool: str) -> PoolRecord | None:
        found = await self._store.pool(pool)
        return found[0] if found is not None else None

    async def _await_heartbeat(self, state: SagaState, entry: SagaEntry) -> None:
        """Put off what undoes a launch until its node's agent has had the time to beat.

        What the agent has read shows whether the node was admitted and the store forgot it.
        """
        pool, name = state.params.pool, state.params.new_node
        if not name or isinstance(entry, StepStarted) or not self._is_fresh():
            return
        made = state.step("provision").status in ("started", "succeeded", "expired")
        undoes = isinstance(entry, StepExpired | SagaUnwinding | UndoStarted)
        if made and undoes and not await self._heartbeats.beating(pool, [name]):
            raise UndoPutOff(f"{name} may beat in a moment", DATED_SECONDS)

    def _is_fresh(self) -> bool:
        """Whether agents may not have beaten since this process started, or noticed a loss."""
        now = self._clock.monotonic()
        if self._dated != self._store.losses:
            self._dated, self._fresh_until = self._store.losses, now + self._beat_seconds
        return self._store.had_nodes and now < self._fresh_until

    async def _unless_ended(self, state: SagaState, entry: SagaEntry, seen: "_Seen") -> SagaEntry:
        """The entry; a saga that ended before the store was restored is cancelled in its place."""
        pool, name = state.params.pool, state.params.node
        if not name or not isinstance(entry, StepStarted):
            return entry
        if seen.restored_at is None or state.started_at >= seen.restored_at:
            return entry
        node, beat = await asyncio.gather(
            self._store.fresh_node(pool, name), self._heartbeats.last(pool, name)
        )
        if not has_ended_since(state.saga, node, beat):
            return entry
        log.warning("ended before the store was restored", extra={"saga": state.saga})
        instead = cancel(
            DEFINITIONS[state.kind],
            state,
            entry.time,
            reason=ENDED_SINCE,
            cause=f"restored-{state.saga}",
        )
        return entry if isinstance(instead, Impossible) else instead

    async def _unless_withdrawn(self, state: SagaState, entry: SagaEntry) -> SagaEntry:
        """The entry; a saga whose notice is withdrawn is taken back before it goes too far."""
        params = state.params
        if not params.notice or not _goes_far(state, entry):
            return entry
        node = await self._store.fresh_node(params.pool, params.node)
        found = await self._store.pool(params.pool)
        if node is None or found is None:
            return entry
        heard = await self._notices.heard(node)
        if (state.saga, heard) not in cloud_notices.withdrawn(found[0], [heard]):
            return entry
        cause = f"withdrawn-{state.saga}"
        instead = _taken_back(state, heard, entry.time, WITHDRAWN, cause)
        return entry if isinstance(instead, Impossible) else instead

    async def _unless_called_off(self, state: SagaState, entry: SagaEntry) -> SagaEntry:
        """Return the entry; a launch that the pool no longer wants is given up in its place."""
        if not isinstance(entry, StepStarted) or entry.step != PROVISION.name:
            return entry
        pool = await self._pool(state.params.pool)
        opened = pool.open.get(state.saga) if pool is not None else None
        if pool is None or opened is None or not opened.called_off:
            return entry
        instead = self._given_up(state, pool, opened, entry.time)
        return entry if isinstance(instead, Impossible) else instead

    def _given_up(
        self, state: SagaState, pool: PoolRecord, opened: OpenSaga, now: datetime
    ) -> SagaEntry | Impossible:
        """Return the entry that unwinds a launch that its pool has called off."""
        node = self._store.nodes.records.get(node_key(pool.name, opened.new_node))
        begun = state.step(PROVISION.name).status != "pending"
        if not begun and node is not None and node.registered_at is not None:
            return Impossible("its log was lost: it undoes the launch once it has it again")
        return cancel(
            DEFINITIONS[state.kind],
            state,
            now,
            reason=opened.called_off,
            cause=pool.removing or f"called-off-{state.saga}",
            launch=PROVISION.name,
        )

    def _unless_over(self, state: SagaState, entry: SagaEntry, seen: "_Seen") -> SagaEntry:
        """The entry; where a remediation begins, or is about to go too far for silence, look first.

        Heartbeat and record are read from the server: a node that beats is kept, and one that was
        judged healthy, or turned out to be one of a wave's, while the beginning waited.
        """
        node, kind, params = seen.node, state.kind, state.params
        if node is None or not _may_be_over(state, entry):
            return entry
        mute = is_for_silence(kind, params) and not seen.beats
        reason = "" if mute else unfounded(kind, params, node)
        if not reason and _begins(state) and self._is_held(state, node, seen.pool):
            reason = IN_WAVE
        if not reason:
            return entry
        cause = f"{CAUSES[reason]}-{state.saga}"
        instead = _taken_back(state, node, entry.time, reason, cause)
        if isinstance(instead, Impossible):
            return entry
        log.warning("not needed any more", extra={"saga": state.saga, "reason": reason})
        return instead

    def _is_held(self, state: SagaState, node: NodeRecord, pool: PoolRecord | None) -> bool:
        """Whether an incident that was noticed since it was decided on holds its node back."""
        if state.params.notice or state.params.gone or is_gone(node):
            return False
        if pool is None or not pool.incidents:
            return False
        health = self._store.health.records.get(node_key(node.pool, node.node))
        return not incidents.may_remediate(pool, node, health, self._clock.now())

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


async def has_ended(store: Store, state: SagaState) -> bool:
    """Return whether a saga whose log is open has ended, by the records of its nodes and pool."""
    pool, records = state.params.pool, store.nodes.records
    node, new = (records.get(node_key(pool, e)) for e in (state.params.node, state.params.new_node))
    if not saga_audit.has_ended(state, node, new):
        return False
    found = await store.pool(pool)
    return found is not None and state.saga not in found[0].open


def _begins(state: SagaState) -> bool:
    """Whether no step of a saga has begun."""
    steps = DEFINITIONS[state.kind].steps(state.params)
    return all(state.step(each.name).status == "pending" for each in steps)


def _may_be_over(state: SagaState, entry: SagaEntry) -> bool:
    """Whether an entry begins a remediation, or goes too far for silence."""
    params = state.params
    if not isinstance(entry, StepStarted) or params.by or not DEFINITIONS[state.kind].remediates:
        return False
    return _begins(state) or (is_for_silence(state.kind, params) and _goes_far(state, entry))


def _goes_far(state: SagaState, entry: SagaEntry) -> bool:
    """Whether an entry begins a step after which there is no way back."""
    steps = DEFINITIONS[state.kind].steps(state.params)
    return isinstance(entry, StepStarted) and any(
        each.name == entry.step and (each.pivot or each.irrevocable) for each in steps
    )


def _taken_back(
    state: SagaState, node: NodeRecord, now: datetime, reason: str, cause: str
) -> SagaEntry | Impossible:
    """The entry that unwinds a saga, and uncordons its node unless that stays as it is."""
    begun = any(each.status != "pending" for each in state.steps.values())
    # Unwinding a drain uncordons by itself.
    stays = not begun or node.spare or has_succeeded(state, "promote") or state.kind == "drain"
    return cancel(
        DEFINITIONS[state.kind],
        state,
        now,
        reason=reason,
        cause=cause,
        then="" if stays else f"uncordon-{node.node}-{node.sagas + 2}",
    )
