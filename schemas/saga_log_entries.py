"""Declares the entries of a saga's log, on `navarch.v1.saga.<saga>.<step>.<status>`, and timers.

The coordinator appends `<step>.started`, the command that the step's participant consumes; the
participant appends `<step>.succeeded` or `<step>.failed`. Every append compares the
last sequence of the saga's subjects, so that of two writers one is refused and reads again.
"""

from typing import Any, Final

from schemas.enums import SagaKind
from schemas.messages import SAGA, Codec, Message, last_word
from schemas.saga_params import SagaParams
from schemas.value_limits import SagaToken, Token, UtcTime

WHOLE: Final = "saga"
"""Step token of entries about the whole saga."""


class SagaEntry(Message, frozen=True, kw_only=True):
    """Declares the fields of every saga log entry."""

    saga: SagaToken


class SagaStarted(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.started"):
    """First entry: the saga exists."""

    kind: SagaKind
    params: SagaParams


class SagaUnwinding(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.unwinding"):
    """The saga unwinds: completed steps are undone, last first."""

    step: str
    reason: str
    cancelled: bool = False
    """An operator cancelled it; `cause` is the request."""
    then: str = ""
    """ID of the `uncordon` saga that follows; empty: none."""


class SagaDone(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.done"):
    """The saga is completed, and this is its last entry."""


class SagaUnwound(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.unwound"):
    """The saga is unwound, and this is its last entry."""

    step: str = ""
    reason: str = ""


class SagaStuck(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.stuck"):
    """An undo failed; an operator is needed."""

    step: str
    reason: str
    remedy: str = ""


class SagaRetried(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.retried"):
    """An operator resolved what a saga was stuck at; it continues from there."""

    step: str
    reason: str = ""


class StepEntry(SagaEntry, frozen=True, kw_only=True):
    """Declares the fields of every entry about one step."""

    step: Token


class StepStarted(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step's participant is commanded to perform it."""

    inputs: dict[str, Any] = {}
    deadline: UtcTime | None = None
    """None: no deadline."""
    overdue: UtcTime | None = None
    """When operators are notified that it has not ended."""


class StepOverdue(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step takes longer than expected and continues."""


class StepSucceeded(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step's action was performed."""

    outputs: dict[str, Any] = {}


class StepFailed(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step's action cannot be performed."""

    reason: str
    error: str = ""
    """An error kind, or a code of schemas.enums."""


class StepExpired(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step's deadline passed; the definition decides whether the saga unwinds or continues."""

    reason: str = ""
    """Why the wait ended, where it was not the deadline."""
    requested: bool = False
    """An operator ended the wait; `cause` is the request."""


class UndoStarted(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """Command to undo a step's action, whether or not it was performed."""

    inputs: dict[str, Any] = {}


class UndoSucceeded(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step's action was undone."""


class UndoFailed(StepEntry, frozen=True, kw_only=True, tag=SAGA):
    """The step's action cannot be undone."""

    reason: str
    remedy: str = ""


class TimerDue(Message, frozen=True, kw_only=True, tag=SAGA):
    """A timer fired: a step's deadline, a pool's retry, a node's health to evaluate again."""

    saga: str = ""
    step: str = ""
    pool: str = ""
    node: str = ""


STATUSES: Final[dict[type[SagaEntry], str]] = {
    each: last_word(each).removeprefix("step-")
    for each in (*SagaEntry.__subclasses__(), *StepEntry.__subclasses__())
    if each is not StepEntry
}
"""Entry class -> last token of its subject."""

saga_codec = Codec(STATUSES)
timer_codec = Codec((TimerDue,))
