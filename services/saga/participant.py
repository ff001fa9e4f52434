"""Takes a service's part in sagas: performs the steps whose `started` entries it consumes.

A step is performed at least once, so every action is idempotent with the key (saga, step). The
result is appended under the guard of the log: where the coordinator has meanwhile gone on (the
deadline passed, the saga unwinds) the append is refused and the result is dropped; undoing is then
the coordinator's next command and not this one's business.

Where a saga is cancelled, `watch` stops the action under way, and its failure is the word that it
has stopped: unwinding waits for that word, so that nothing comes into effect after its undo. Where
its step is given up, `watch` stops it too, and no result is expected. A call that was stopped may
yet take effect at the other end, so its command comes once more, to be put right.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

import msgspec

from schemas import subjects
from schemas.enums import STOPPED
from schemas.headers import EXPECTED_LAST_SUBJECT_SEQ
from schemas.saga_log_entries import (
    WHOLE,
    SagaEntry,
    SagaUnwinding,
    StepEntry,
    StepExpired,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoFailed,
    UndoStarted,
    UndoSucceeded,
)
from schemas.step_declarations import IRREVERSIBLE_STEPS
from schemas.stream_specs import DurableSpec
from schemas.topology import SAGAS
from schemas.value_limits import limited
from services.bus.port import Bus, Stored
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, Retry
from services.primitives.race import race
from services.primitives.redaction import redacted
from services.runtime.consumer_loop import Consumer, Received
from services.runtime.tracing import current_headers
from services.saga.saga_log import append, decode_entry, read_state, saga_of

log = logging.getLogger(__name__)

I = TypeVar("I", bound=msgspec.Struct)  # noqa: E741 - inputs

REASON_CHARS_MAX: Final = 2_000
APPEND_TRIES_MAX: Final = 10
LOOK_AGAIN_SECONDS: Final = 0.5
WATCH_BACK_SECONDS: Final = 60.0
"""How far back the watch begins: the moment between a command and the watch must not be missed."""
LATE: Final = "late"
"""In the key of an order that puts right what an action did after its saga had gone on."""
LANDED_SECONDS: Final = 60.0
"""After so long a call that was stopped has taken effect at the other end, or never will: twice
what proxies and API servers usually work on a request whose caller has gone."""
STOPPED_REASON: Final = "stopped, because the saga is being unwound"


class StepFailure(Exception):  # noqa: N818 - it is the step's outcome, not an error of the code
    """The step's action cannot be brought about; retrying is of no use."""

    def __init__(self, reason: str, error: str = "", remedy: str = "") -> None:
        """Say why, with an error kind where there is one, and what a person can do."""
        reason = redacted(reason)  # of libraries and other systems, which may repeat a secret
        super().__init__(reason)
        self.reason = reason[:REASON_CHARS_MAX]
        self.error = error
        self.remedy = remedy


class DeadlinePassed(Exception):  # noqa: N818 - reads as the state it names
    """The coordinator has given the step up."""


class Stopped(Exception):  # noqa: N818 - reads as the state it names
    """The saga was cancelled."""


@dataclass(frozen=True, slots=True)
class _OpenCommand:
    """A command that is not answered yet."""

    sequence: int
    """The log's last: the guard of the answer."""
    stopped: bool
    """The saga is being unwound: the action is not to be performed any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One step to perform or undo."""

    saga: str
    step: str
    inputs: dict[str, Any]
    id: str
    """The entry's id: the cause of whatever follows."""
    deadline: datetime | None = None
    """When the coordinator gives the step up; the action is cancelled then."""
    revision: int = 0
    """Of the saga's log when the command was found to be open."""
    deliveries: int = 1
    """More than one: an earlier try was cut short, and may have come into effect."""
    prepared: Any = None
    """What the participant's `prepare` returned."""
    late: bool = False
    """Set where the saga has gone on, and what the action may have done is put right."""

    @property
    def key(self) -> str:
        """Return what makes the action idempotent.

        What is put right has a key of its own for each delivery: a receiver that drops a key which
        it knows would drop the order that undoes the one before.
        """
        step = f"{self.saga}/{self.step}"
        return f"{step}/{LATE}-{self.deliveries}" if self.late else step

    def inputs_as(self, kind: type[I]) -> I:
        """Decode the step's inputs; StepFailure where they do not fit."""
        try:
            return limited(msgspec.convert(self.inputs, kind))
        except msgspec.ValidationError as error:
            reason = f"the inputs of {self.key} cannot be used: {error}"
            raise StepFailure(reason, error="INVALID") from error


Action = Callable[[Command], Awaitable[msgspec.Struct | None]]
"""Performs a step and returns its outputs; raises StepFailure, or Retry for another try."""
Prepare = Callable[[Command], Awaitable[Any]]
"""Reads what an action needs; it has no effects, because the command may not be open any more."""


async def prepare_nothing(_: Command) -> None:
    """Leave it to the action to read what it needs."""


async def align_nothing(_: Command) -> None:
    """Leave things as a late action has made them."""


def ends_when_stopped(_: Command) -> bool:
    """An action that was stopped takes no effect any more."""
    return False


class Participant:
    """Performs steps for one service."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        actions: Mapping[str, Action],
        undos: Mapping[str, Action],
        prepare: Prepare = prepare_nothing,
        align: Action = align_nothing,
        may_land_late: Callable[[Command], bool] = ends_when_stopped,
    ) -> None:
        """`actions` and `undos`: step name -> what performs it.

        `prepare` reads what they need at the same time as the log is read. `align` puts right what
        an action has done after its saga had gone on: this process may stall between the two, and
        `may_land_late` says of a command whose action was stopped whether a call was under way.
        """
        self._may_land_late = may_land_late
        self._prepare = prepare
        self._align = align
        self._bus = bus
        self._clock = clock
        self._actions = actions
        self._undos = undos
        self._acting: dict[str, asyncio.Event] = {}
        """Saga -> set when its action under way is to stop; one command of a saga at a time."""
        self._steps: dict[str, str] = {}
        """Saga -> the step under way."""

    def consumer(self, durable: DurableSpec) -> Consumer:
        """The consumer that drives it; steps of one saga are performed in order."""
        return Consumer(durable=durable, decode=decode_entry, handle=self.handle, key=saga_of)

    async def watch(self) -> None:
        """Stop actions that are not wanted any more: the saga unwinds, or has given the step up."""
        since = self._clock.now() - timedelta(seconds=WATCH_BACK_SECONDS)
        filters = [subjects.saga_step_wildcard(WHOLE, "unwinding")]
        filters += [subjects.saga_step_wildcard(step, "expired") for step in self._actions]
        async for stored in self._bus.follow(SAGAS.name, filters, "new", after=since):
            saga = saga_of(stored)
            stop = self._acting.get(saga)
            # It need not be an entry, nor one that the log before it allows.
            if stop is None or not isinstance(decode_entry(stored), SagaUnwinding | StepExpired):
                continue
            if await self._unwanted(saga):
                stop.set()

    async def _unwanted(self, saga: str) -> bool:
        """Whether a saga's log wants its action no more; asked while that is under way."""
        while saga in self._acting:
            try:
                state = await read_state(self._bus, saga)
            except BusError:
                await self._clock.sleep(LOOK_AGAIN_SECONDS)
            else:
                if state is None or saga not in self._acting:
                    return False
                given_up = state.step(self._steps[saga]).status == "expired"
                return state.status == "unwinding" or given_up
        return False

    async def handle(self, received: Received[SagaEntry]) -> None:
        """Perform one command and append its result, unless the saga has gone on."""
        entry = received.message
        match entry:
            case StepStarted(step=step, inputs=inputs, deadline=deadline):
                table, undo = self._actions, False
            case UndoStarted(step=step, inputs=inputs):
                table, undo, deadline = self._undos, True, None
            case _:
                return
        action = table.get(step)
        if action is None or entry.saga != saga_of(received.stored):
            return
        command = Command(
            saga=entry.saga,
            step=step,
            inputs=inputs,
            id=entry.id,
            deadline=deadline,
            deliveries=received.deliveries,
        )
        sequence = _guarded(received.stored)
        if undo:
            await self._settle(action, command, sequence, None)
            return
        # Registered before the log is looked at: a cancellation is seen by one or by the other.
        self._steps[entry.saga] = step
        self._acting[entry.saga] = stop = asyncio.Event()
        try:
            await self._settle(action, command, sequence, stop)
        finally:
            del self._acting[entry.saga], self._steps[entry.saga]

    async def _settle(
        self, action: Action, command: Command, sequence: int, stop: asyncio.Event | None
    ) -> None:
        """Perform a command that is still open, and answer it; `stop` None: it is an undo."""
        undo = stop is None
        open_command, prepared = await asyncio.gather(
            self._open_command(command.saga, command.step, sequence, undo=undo),
            self._prepare(command),
        )
        if open_command is None:
            if command.deliveries > 1 and not await self._has_succeeded(command, undo=undo):
                await self._align(replace(command, late=True))
            return
        command = replace(command, prepared=prepared)
        if open_command.stopped and stop is not None:
            stop.set()
        command = replace(command, revision=open_command.sequence)
        result = await self._perform(action, command, stop)
        if result is not None and not await self._answer(result, open_command.sequence, undo=undo):
            await self._align(replace(command, late=True))
        if self._may_land_late(command):
            raise Retry("a call that was stopped may yet take effect", LANDED_SECONDS)

    async def _has_succeeded(self, command: Command, *, undo: bool) -> bool:
        """Whether a command was performed and answered: its acknowledgement alone was lost."""
        state = await read_state(self._bus, command.saga)
        wanted = "undo-succeeded" if undo else "succeeded"
        return state is not None and state.step(command.step).status == wanted

    async def _open_command(
        self, saga: str, step: str, sequence: int, *, undo: bool
    ) -> _OpenCommand | None:
        """The command if it is open; None where the saga went on without it.

        `sequence`: of a command that need not be looked for in the log if it is the last entry.
        """
        if step not in IRREVERSIBLE_STEPS:
            last = await self._bus.last(SAGAS.name, subjects.saga_tree(saga))
            if last is not None and last.sequence == sequence:
                return _OpenCommand(sequence, stopped=False)
        state = await read_state(self._bus, saga)
        wanted = "undo-started" if undo else "started"
        if state is None or state.ended or state.step(step).status != wanted:
            return None
        return _OpenCommand(state.sequence, stopped=state.status == "unwinding")

    async def _answer(self, result: StepEntry, expected: int, *, undo: bool) -> bool:
        """Append a result; False: the saga has gone on without it."""
        for _ in range(APPEND_TRIES_MAX):
            try:
                await append(self._bus, result, expected, current_headers())
            except Conflict:
                again = await self._open_command(result.saga, result.step, 0, undo=undo)
                if again is None:
                    log.info("the saga went on without this result", extra={"saga": result.saga})
                    return False
                expected = again.sequence
            else:
                return True
        raise Retry(f"{result.saga}: others keep writing to its log")

    async def _bounded(
        self, action: Action, command: Command, stop: asyncio.Event | None
    ) -> msgspec.Struct | None:
        """Perform until stopped, or until the deadline: the next step must not wait."""
        if stop is None:
            return await action(command)
        if stop.is_set():
            raise Stopped
        left: float | None = None
        if command.deadline is not None:
            left = max((command.deadline - self._clock.now()).total_seconds(), 0.0)
        acting, _ = await race(action(command), stop.wait(), seconds_max=left)
        if not acting.cancelled():
            outputs: msgspec.Struct | None = acting.result()
            return outputs
        raise Stopped if stop.is_set() else DeadlinePassed

    async def _perform(
        self, action: Action, command: Command, stop: asyncio.Event | None
    ) -> StepEntry | None:
        undo = stop is None
        names = {"saga": command.saga, "step": command.step, "cause": command.id}
        now = self._clock.now
        kind = "undo-" if undo else ""
        try:
            outputs = await self._bounded(action, command, stop)
        except Stopped:
            entry_id = f"{command.saga}.{command.step}.failed"
            return StepFailed(
                id=entry_id, time=now(), reason=STOPPED_REASON, error=STOPPED, **names
            )
        except DeadlinePassed:
            log.info("the deadline passed", extra={"saga": command.saga, "step": command.step})
            return None
        except StepFailure as failure:
            entry_id = f"{command.saga}.{command.step}.{kind}failed"
            if undo:
                return UndoFailed(
                    id=entry_id, time=now(), reason=failure.reason, remedy=failure.remedy, **names
                )
            return StepFailed(
                id=entry_id, time=now(), reason=failure.reason, error=failure.error, **names
            )
        entry_id = f"{command.saga}.{command.step}.{kind}succeeded"
        if undo:
            return UndoSucceeded(id=entry_id, time=now(), **names)
        made = msgspec.to_builtins(outputs) if outputs is not None else {}
        return StepSucceeded(id=entry_id, time=now(), outputs=made, **names)


def _guarded(stored: Stored) -> int:
    """The sequence of an entry that was appended under the guard, 0 for any other.

    Who appends under the guard has read the log before it. What was put there by hand may not
    belong there, and is looked for among what does.
    """
    return stored.sequence if EXPECTED_LAST_SUBJECT_SEQ in stored.headers else 0
