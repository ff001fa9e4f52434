"""A saga's log, on `navarch.v1.saga.<saga>.<step>.<status>`: the conversation *is* the state.

The coordinator appends `<step>.started`, which is the command the step's participant consumes; the
participant appends `<step>.succeeded` or `<step>.failed`. Every append is guarded by the last
sequence of the whole tree, so that of two writers one is refused and reads again.
"""

from typing import Any, Final

from schemas.enums import SagaKind
from schemas.messages import Codec, Message, UtcTime
from schemas.saga_params import SagaParams

WHOLE: Final = "saga"
"""The step token of entries about the saga as a whole."""


class SagaEntry(Message, frozen=True, kw_only=True):
    """What every entry of a saga's log carries."""

    saga: str


class SagaStarted(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.started"):
    """First entry: the saga exists."""

    kind: SagaKind
    params: SagaParams


class SagaUnwinding(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.unwinding"):
    """No way forward: what was done is undone, last step first."""

    step: str
    reason: str
    cancelled: bool = False
    """Nothing failed: somebody asked for it; `cause` is the request."""
    then: str = ""
    """Id of the `uncordon` saga that follows once this one is unwound; empty: none follows."""


class SagaDone(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.done"):
    """Last entry of a saga that reached its end."""


class SagaUnwound(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.unwound"):
    """Last entry of a saga that was undone."""

    step: str = ""
    reason: str = ""


class SagaStuck(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.stuck"):
    """An undo failed; a person is needed."""

    step: str
    reason: str
    remedy: str = ""


class SagaRetried(SagaEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.retried"):
    """A person has mended what a stuck saga was stuck at: it goes on where it was."""

    step: str
    reason: str = ""


class StepEntry(SagaEntry, frozen=True, kw_only=True):
    """What every entry about one step carries."""

    step: str


class StepStarted(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_started"
):
    """The command: whoever takes part in this step performs it now."""

    inputs: dict[str, Any] = {}
    deadline: UtcTime | None = None
    """None: it may take as long as it takes."""
    overdue: UtcTime | None = None
    """When people are told that it still lasts."""


class StepOverdue(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_overdue"
):
    """The step lasts longer than it should; it is waited for all the same."""


class StepSucceeded(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_succeeded"
):
    """The step's action is in effect."""

    outputs: dict[str, Any] = {}


class StepFailed(StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_failed"):
    """The step's action cannot be brought about."""

    reason: str
    error: str = ""
    """An error kind, or a word of schemas.enums."""


class StepExpired(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.step_expired"
):
    """The step's deadline passed; the definition says whether that fails it or lets it go on."""

    reason: str = ""
    """Why it was not waited for any longer, where it was not the deadline."""
    asked: bool = False
    """Somebody asked for it; `cause` is the request."""


class UndoStarted(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.undo_started"
):
    """The command to take a step's action back, whether or not it came into effect."""

    inputs: dict[str, Any] = {}


class UndoSucceeded(
    StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.undo_succeeded"
):
    """The step's action is no longer in effect."""


class UndoFailed(StepEntry, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.undo_failed"):
    """The step's action cannot be taken back."""

    reason: str
    remedy: str = ""


class TimerDue(Message, frozen=True, kw_only=True, tag="io.navarch.saga.event.v1.timer_due"):
    """A timer fired: a step's deadline, a pool's next try, a node's health to look at again."""

    saga: str = ""
    step: str = ""
    pool: str = ""
    node: str = ""


STATUSES: Final[dict[type[SagaEntry], str]] = {
    SagaStarted: "started",
    SagaUnwinding: "unwinding",
    SagaDone: "done",
    SagaUnwound: "unwound",
    SagaStuck: "stuck",
    SagaRetried: "retried",
    StepStarted: "started",
    StepOverdue: "overdue",
    StepSucceeded: "succeeded",
    StepFailed: "failed",
    StepExpired: "expired",
    UndoStarted: "undo-started",
    UndoSucceeded: "undo-succeeded",
    UndoFailed: "undo-failed",
}
"""The last token of each entry's subject."""

saga_codec = Codec(STATUSES)
timer_codec = Codec((TimerDue,))
