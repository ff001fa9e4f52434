"""How a service takes part in sagas: it performs the steps whose `started` entries it consumes.

A step is performed at least once, so every action is idempotent with the key (saga, step). The
result is appended under the guard of the log: where the coordinator has meanwhile gone on (the
deadline passed, the saga unwinds) the append is refused and the result is dropped; undoing is then
the coordinator's next command and not this one's business.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from schemas import headers as h
from schemas import subjects
from schemas.messages import encode
from schemas.sagas import (
    STATUSES,
    WHOLE,
    SagaEntry,
    StepEntry,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoFailed,
    UndoStarted,
    UndoSucceeded,
    saga_codec,
)
from schemas.topology import SAGAS, DurableSpec
from services.runtime.bus import Bus, Stored
from services.runtime.clock import Clock
from services.runtime.consumer import Consumer, Received
from services.runtime.errors import Conflict
from services.runtime.tracing import current_headers

log = logging.getLogger(__name__)

REASON_CHARS_MAX: Final = 2_000


class StepFailure(Exception):  # noqa: N818 - it is the step's outcome, not an error of the code
    """The step's action cannot be brought about; retrying is of no use."""

    def __init__(self, reason: str, error: str = "", remedy: str = "") -> None:
        """Say why, with an error kind where there is one, and what a person can do."""
        super().__init__(reason)
        self.reason = reason[:REASON_CHARS_MAX]
        self.error = error
        self.remedy = remedy


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One step to perform or undo."""

    saga: str
    step: str
    inputs: dict[str, Any]
    id: str
    """The entry's id: the cause of whatever follows."""
    deliveries: int = 1

    @property
    def key(self) -> str:
        """What makes the action idempotent."""
        return f"{self.saga}/{self.step}"


Action = Callable[[Command], Awaitable[msgspec.Struct | None]]
"""Performs a step and returns its outputs; raises StepFailure, or Retry for another try."""


class Participant:
    """Performs steps for one service."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        actions: Mapping[str, Action],
        undos: Mapping[str, Action],
    ) -> None:
        """`actions` and `undos`: step name -> what performs it."""
        self._bus = bus
        self._clock = clock
        self._actions = actions
        self._undos = undos

    def consumer(self, durable: DurableSpec) -> Consumer:
        """The consumer that drives it; steps of one saga are performed in order."""
        return Consumer(durable=durable, decode=decode_entry, handle=self.handle, key=saga_of)

    async def handle(self, received: Received[SagaEntry]) -> None:
        """Perform one command and append its result, unless the log has gone on."""
        entry = received.message
        match entry:
            case StepStarted(step=step, inputs=inputs):
                table, undo = self._actions, False
            case UndoStarted(step=step, inputs=inputs):
                table, undo = self._undos, True
            case _:
                return
        action = table.get(step)
        if action is None:
            return
        if await self._overtaken(received):
            return
        command = Command(saga=entry.saga, step=step, inputs=inputs, id=entry.id)
        result = await self._perform(action, command, undo=undo)
        try:
            await append(self._bus, result, received.stored.sequence, current_headers())
        except Conflict:
            log.info("the saga went on without this result", extra={"saga": entry.saga})

    async def _overtaken(self, received: Received[SagaEntry]) -> bool:
        """Whether the log has an entry after this command: then it is not to be performed."""
        last = await self._bus.last(SAGAS.name, subjects.saga_tree(received.message.saga))
        return last is not None and last.sequence > received.stored.sequence

    async def _perform(self, action: Action, command: Command, *, undo: bool) -> StepEntry:
        names = {"saga": command.saga, "step": command.step, "cause": command.id}
        now = self._clock.now
        kind = "undo-" if undo else ""
        try:
            outputs = await action(command)
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


def decode_entry(stored: Stored) -> Any:
    """Decode an entry of a saga's log."""
    return saga_codec.decode(stored.data)


def saga_of(stored: Stored) -> str:
    """The saga an entry belongs to: the key that keeps its entries in order."""
    parsed = subjects.parse_saga(stored.subject)
    return parsed.saga if parsed else stored.subject


async def append(bus: Bus, entry: SagaEntry, expected: int, headers: Mapping[str, str]) -> int:
    """Append an entry if `expected` is still the log's last sequence, else raise Conflict."""
    step = entry.step if isinstance(entry, StepEntry) else WHOLE
    return await bus.append(
        subjects.saga_entry(entry.saga, step, STATUSES[type(entry)]),
        encode(entry),
        tree=subjects.saga_tree(entry.saga),
        expected=expected,
        headers={**headers, h.MSG_ID: f"{entry.id}@{expected}"},
    )
