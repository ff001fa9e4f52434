"""Brings sagas on: reads a log, decides the next entry, appends it under the guard.

Every replica may bring on every saga: of two that append at once one is refused and reads again.
Nothing is kept but a bounded cache of folded logs, which is only trusted where the next entry's own
guard proves that nothing lies between.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final
from weakref import WeakValueDictionary

from schemas import headers as h
from schemas import subjects
from schemas.enums import SagaKind
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.saga_log_entries import (
    WHOLE,
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaUnwound,
    StepOverdue,
    StepStarted,
    TimerDue,
)
from schemas.saga_params import SagaParams
from schemas.stream_specs import DurableSpec
from schemas.topology import SAGAS
from services.bus.port import Bus, Stored
from services.primitives.clock import Clock
from services.primitives.errors import Conflict, Reject, Retry
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.tracing import current_headers
from services.saga import saga_timers
from services.saga.definition import Definition
from services.saga.next_entry import Waiting, next_entry, waits_for_node
from services.saga.saga_log import append, decode_entry, fold_stored, read_log, read_state, saga_of
from services.saga.saga_state import SagaState, fold

log = logging.getLogger(__name__)

CACHE_MAX: Final = 20_000
TRIES_MAX: Final = 10
APPENDS_MAX: Final = 64
"""More than any saga has steps; a decision that never ends is a defect and must show."""

KEPT_SECONDS: Final = 30 * 86_400.0
"""How long the log of an ended saga is kept, as long as the facts in EVENTS."""
TIMER_KEY_CHARS_MAX: Final = 96

Look = Callable[[SagaState, NodeRecord | None], Awaitable[NodeRecord | None]]
"""The new node as the bucket has it now, not as some mirror last saw it; or as the caller has just
written it, if that is the one."""

Project = Callable[[SagaState, SagaEntry], Awaitable[None]]
"""Brings the effects of one entry about (records, events); idempotent."""

Confirm = Callable[[SagaState, SagaEntry], Awaitable[SagaEntry | Waiting | None]]
"""Looks once more before an entry is appended; returns it, the one to append in its place, or that
it waits: the saga is looked at again. None: the saga has ended, and its log has lost the end."""


async def confirm_always(_: SagaState, entry: SagaEntry) -> SagaEntry | Waiting | None:
    """Append what the log calls for."""
    return entry


class Coordinator:
    """Runs the sagas of a set of definitions."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        definitions: Mapping[SagaKind, Definition],
        look: Look,
        project: Project,
        timer_owner: str,
        *,
        make_up: Project | None = None,
        confirm: Confirm = confirm_always,
    ) -> None:
        """`look` shows the node a waiting step is about; timers fire to `timer_owner`.

        `make_up`: the effects of an entry that no later entry's projection brings about.
        """
        self._bus = bus
        self._clock = clock
        self._definitions = definitions
        self._look = look
        self._project = project
        self._timer_owner = timer_owner
        self._make_up = make_up
        self._confirm = confirm
        self._cache: OrderedDict[str, SagaState] = OrderedDict()
        self._rests: dict[str, tuple[int, str]] = {}
        """Saga -> the last entry of a log that waits for a node, whose record names the saga: who
        changes that brings the saga on. By its ID as well: a sequence may be given twice."""
        self._advancing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._highest = 0
        """The highest sequence that was seen in SAGAS."""
        self._last_received: tuple[int, datetime] | None = None
        """Sequence of the last entry of SAGAS that was received, and when the latest was stored."""
        self.shortened = False
        """Whether sequences are given again: SAGAS has lost its end, or was rolled back."""

    def consumer(self, durable: DurableSpec) -> Consumer:
        """The consumer that drives it; what it misses of a log is found by the next look at it."""
        return Consumer(
            durable=durable,
            decode=decode_entry,
            handle=self.handle,
            key=saga_of,
            make_up=self._make_up_for,
        )

    async def start(
        self,
        saga: str,
        kind: SagaKind,
        params: SagaParams,
        *,
        cause: str,
        headers: Mapping[str, str],
    ) -> bool:
        """Begin a saga and its first step; False where its log already has a beginning.

        After a restored backup an operator may have published again what was set aside of a log
        that is gone: what lies before the beginning is skipped by every reader.
        """
        entry = SagaStarted(
            id=f"{saga}.started",
            time=self._clock.now(),
            cause=cause,
            saga=saga,
            kind=kind,
            params=params,
        )
        async with self._advancing_of(saga):
            sequence, first = await asyncio.gather(
                self._begin(entry, headers), self._confirm_first(fold(None, entry, 0, headers))
            )
            if sequence is None:
                return False
            self._keep(fold(None, entry, sequence, headers))
            await self._advance(saga, None, first=first)
        return True

    async def _begin(self, entry: SagaStarted, headers: Mapping[str, str]) -> int | None:
        """Append the beginning of a log; None where the log has one."""
        last = 0
        for _ in range(TRIES_MAX):
            try:
                return await self._append(entry, last, headers)
            except Conflict:
                state, last = await read_log(self._bus, entry.saga)
                if state is not None:
                    return None
        raise Retry(f"{entry.saga}: its log cannot be begun after entry {last}")

    async def _confirm_first(self, state: SagaState) -> SagaEntry | None:
        """Confirm the first step while the beginning is stored: that saves a round trip.

        Return None where it has to be confirmed again once the beginning is stored.
        """
        entry = next_entry(self._definitions[state.kind], state, None, self._clock.now())
        if entry is None or isinstance(entry, Waiting):
            return None
        try:
            confirmed = await self._confirm(state, entry)
        except Retry:
            return None
        return None if isinstance(confirmed, Waiting) else confirmed

    async def state(self, saga: str) -> SagaState | None:
        """Read a saga's log as it is now; None where there is none."""
        state, _ = await self._load(saga)
        return state

    async def intervene(self, state: SagaState, entry: SagaEntry) -> None:
        """Append what a person asked for, decided on this state; Conflict where it has gone on."""
        sequence = await self._append(entry, state.sequence, _trace(state))
        self._keep(fold(state, entry, sequence, {}))

    async def _append(self, entry: SagaEntry, expected: int, headers: Mapping[str, str]) -> int:
        """Append an entry; a sequence that is not higher than any before shows a loss."""
        before = self._highest
        sequence = await append(self._bus, entry, expected, headers)
        if sequence <= before:
            self._note_loss()
        return sequence

    async def handle(self, received: Received[SagaEntry]) -> None:
        """Take one entry in: its effects first, then whatever the log calls for next."""
        entry = received.message
        if entry.saga != saga_of(received.stored):
            raise Reject(f"says it is of {entry.saga}, but is in another saga's log")
        state = await self._state_with(entry, received.stored)
        if received.stored.sequence in state.skipped:
            raise Reject(f"{entry.saga}: does not follow from the log before it")
        if isinstance(entry, StepStarted) and (at := saga_timers.to_store(state, entry)):
            await self._remind(state, entry.id, entry.step, at)
        if isinstance(entry, StepOverdue) and (last := state.step(entry.step).deadline):
            await self._remind(state, entry.id, entry.step, last)
        if isinstance(entry, SagaDone | SagaUnwound):
            ends = entry.time + timedelta(seconds=KEPT_SECONDS)
            await self._remind(state, entry.id, WHOLE, ends)
        await self._project(state, entry)
        async with self._advancing_of(entry.saga):
            if not self._is_at_rest(entry.saga):
                await self._advance(entry.saga, None)

    def _is_at_rest(self, saga: str) -> bool:
        """Whether this process has looked at the node already since the log's last entry."""
        cached = self._cache.get(saga)
        return cached is not None and self._rests.get(saga) == (cached.sequence, cached.last_id)

    def _note_rest(self, state: SagaState, node: NodeRecord | None) -> None:
        # Where a node belongs may hang on others, whose events bring on their own sagas alone.
        if node is None or node.saga != state.saga or node.misplaced_reason is None:
            self._rests.pop(state.saga, None)
            return
        if len(self._rests) >= CACHE_MAX:
            self._rests.clear()
        self._rests[state.saga] = state.sequence, state.last_id

    def _note_loss(self) -> None:
        self.shortened = True
        self.forget_cached()

    def _compare(self, stored: Stored) -> None:
        """Forget what is cached where an entry was stored after one of a higher sequence.

        Else an entry of the log as it is now would be taken for one of the log that is gone.
        """
        sequence, time = self._last_received or (0, stored.time)
        if stored.sequence <= sequence:
            if stored.time <= time:
                return  # redelivered
            self._note_loss()
        # Another server of a cluster, whose clock is behind, may have stored this one.
        self._last_received = stored.sequence, max(time, stored.time)

    async def _make_up_for(self, received: Received[SagaEntry]) -> None:
        """Bring about what a dead letter's entry would have, and no other does."""
        entry, stored = received.message, received.stored
        state = await self._state_with(entry, stored)
        if self._make_up is not None and stored.sequence not in state.skipped:
            await self._make_up(state, entry)

    async def on_timer(self, due: TimerDue, fired_at: datetime) -> None:
        """Bring on the saga of a timer, and store the one that follows it; or end its keeping."""
        if due.step == WHOLE:
            await self.forget(due.saga)
            return
        state = await self.advance(due.saga, at=fired_at, fresh=True)
        if state is not None and (later := saga_timers.next_due(state, fired_at)):
            await self._remind(state, state.last_id, later.step, later.at)

    async def _remind(self, state: SagaState, cause: str, step: str, at: datetime) -> None:
        """Store a timer: a step's deadline, or (step `saga`) the end of a log's keeping."""
        due = TimerDue(
            id=f"{cause}.due", time=self._clock.now(), cause=cause, saga=state.saga, step=step
        )
        key = f"{state.saga}-{step}"[-TIMER_KEY_CHARS_MAX:].lstrip("-")
        await self._bus.schedule(self._timer_owner, key, at, encode(due), headers=_trace(state))

    async def forget(self, saga: str) -> None:
        """Remove the log of a saga that has ended; an open one never ages out."""
        state = await read_state(self._bus, saga)
        if state is not None and state.ended:
            await self._bus.purge(SAGAS.name, subjects.saga_tree(saga))
            self._cache.pop(saga, None)

    async def drop(self, saga: str) -> None:
        """Remove what is left of the log of a saga that has ended, unless it has its end.

        An end is appended before any record has it, so it is there now if it was not lost.
        """
        state = await read_state(self._bus, saga)
        if state is not None and not state.ended:
            log.warning("the end of its log is lost: the rest is removed", extra={"saga": saga})
            await self._bus.purge(SAGAS.name, subjects.saga_tree(saga))
        self._cache.pop(saga, None)

    async def open_logs(self) -> list[str]:
        """Every saga whose log has a beginning and no end; sequences count from here on."""
        self.forget_cached()
        found: dict[str, set[str]] = {}
        for status in ("started", "done", "unwound"):
            stored = await self._bus.read(SAGAS.name, subjects.saga_step_wildcard(WHOLE, status))
            found[status] = {saga_of(each) for each in stored}
        self._highest = await self._bus.last_sequence(SAGAS.name)
        self.shortened = False
        return sorted(found["started"] - found["done"] - found["unwound"])

    async def advance(
        self,
        saga: str,
        *,
        at: datetime | None = None,
        fresh: bool = False,
        seen: NodeRecord | None = None,
    ) -> SagaState | None:
        """Append what the log calls for until it waits or ends; None where there is no log.

        `at`: the moment at the server, where a timer brought it; a clock of ours that lags behind
        must not take a deadline that has passed for one that has not. `fresh`: read the log even
        where it is cached, because what changed lies outside of it. `seen`: a node's record, just
        written.
        """
        async with self._advancing_of(saga):
            if fresh:
                await self._freshen(saga)
            return await self._advance(saga, at, seen)

    def _advancing_of(self, saga: str) -> asyncio.Lock:
        """Held while a saga is brought on: two tasks of one process need not contend for it."""
        lock = self._advancing.get(saga)
        if lock is None:
            lock = self._advancing[saga] = asyncio.Lock()
        return lock

    async def _advance(
        self,
        saga: str,
        at: datetime | None,
        seen: NodeRecord | None = None,
        *,
        first: SagaEntry | None = None,
    ) -> SagaState | None:
        """Append what the log calls for; `first` is its first entry, where that is confirmed."""
        for _ in range(APPENDS_MAX):
            state = self._cache.get(saga) or await self.state(saga)
            if state is None:
                return None
            now = self._clock.now()
            now = max(now, at) if at is not None else now
            definition = self._definitions[state.kind]
            # Looked at after the step's own start was appended, and the node's record is written
            # before this log is read by its writer: one of the two sees the other.
            node = await self._look(state, seen) if waits_for_node(definition, state) else None
            seen = None
            entry = next_entry(definition, state, node, now)
            if entry is None or isinstance(entry, Waiting):
                self._note_rest(state, node)
                return state
            follows = first is not None and first.cause == state.last_id
            confirmed = first if follows else await self._confirm(state, entry)
            first = None
            if isinstance(confirmed, Waiting):
                return state
            if confirmed is None:
                await self.drop(saga)
                return None
            entry = confirmed
            headers = current_headers() if _same_trace(state) else _trace(state)
            try:
                sequence = await self._append(entry, state.sequence, headers)
            except Conflict:
                # Another replica went on with it, or the cache is old: read again, decide again.
                self._cache.pop(saga, None)
                continue
            self._keep(fold(state, entry, sequence, headers))
        raise Retry(f"{saga} does not come to rest after {APPENDS_MAX} appends")

    async def _state_with(self, entry: SagaEntry, stored: Stored) -> SagaState:
        """The folded log, with this entry in it."""
        self._compare(stored)
        cached = self._cache.get(entry.saga)
        if cached is not None:
            if cached.sequence > stored.sequence or _ends_with(cached, stored):
                return cached
            state = _followed(cached, stored)
            if state is not None:
                self._keep(state)
                return state
        for _ in range(TRIES_MAX):
            state_or_none, last = await self._load(entry.saga)
            if state_or_none is not None and state_or_none.sequence >= stored.sequence:
                return state_or_none
            if state_or_none is None and last >= stored.sequence:
                raise Reject(f"{entry.saga}: its log has no beginning")
        raise Retry(f"{entry.saga}: its log cannot yet be read up to {stored.sequence}")

    async def _freshen(self, saga: str) -> None:
        """Bring what is cached of a log up to what it is now, or forget it."""
        if saga not in self._cache:
            return
        last = await self._bus.last(SAGAS.name, subjects.saga_tree(saga))
        cached = self._cache.get(saga)
        if cached is None or (last is not None and _ends_with(cached, last)):
            return
        state = _followed(cached, last) if last is not None else None
        if state is None:
            self._cache.pop(saga, None)
        else:
            self._keep(state)

    async def _load(self, saga: str) -> tuple[SagaState | None, int]:
        """Read a log and keep its state; its last sequence is 0 where there is no log."""
        state, last = await read_log(self._bus, saga)
        if state is not None:
            self._keep(state)
        return state, last

    def forget_cached(self) -> None:
        """Read every log again: SAGAS may have been rolled back, and sequences used twice."""
        self._cache.clear()
        self._rests.clear()

    def _keep(self, state: SagaState) -> None:
        self._highest = max(self._highest, state.sequence)
        self._cache[state.saga] = state
        self._cache.move_to_end(state.saga)
        if len(self._cache) > CACHE_MAX:
            self._cache.popitem(last=False)


def _ends_with(state: SagaState, stored: Stored) -> bool:
    """Whether an entry is the last of a state; its sequence may be that of a lost one."""
    entry = decode_entry(stored)
    same = isinstance(entry, SagaEntry) and entry.id == state.last_id
    return state.sequence == stored.sequence and same


def _followed(state: SagaState, stored: Stored) -> SagaState | None:
    """The state with one more entry, where nothing lies between; None where something may.

    The entry's own guard and cause name what came before it: in a log that was set back the same
    sequence may be another entry's.
    """
    entry, guard = decode_entry(stored), stored.headers.get(h.EXPECTED_LAST_SUBJECT_SEQ)
    caused = isinstance(entry, SagaEntry) and entry.cause == state.last_id
    return fold_stored(state, stored) if caused and guard == str(state.sequence) else None


def _trace(state: SagaState) -> dict[str, str]:
    return {h.TRACEPARENT: state.trace} if state.trace else {}


def _same_trace(state: SagaState) -> bool:
    """Whether the current span belongs to the saga's trace; an agent's event has its own."""
    current = current_headers().get(h.TRACEPARENT, "")
    return bool(state.trace) and current.split("-")[1:2] == state.trace.split("-")[1:2]
