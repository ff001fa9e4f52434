"""A saga's state is a fold over its log. Pure; an entry that does not fit is a corrupt log: loud.

```
        started ──► succeeded ─┐
pending ──►│                   ├──► undo-started ──► undone
           ├──► failed ────────┤                └──► undo-failed
           └──► expired ───────┘
```

A stuck saga that a person retries goes on as what it was: a failed undo may be started again, and
so may a step that failed beyond the pivot.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from schemas.enums import SAGA_STEPS, SagaKind
from schemas.headers import TRACEPARENT
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaRetried,
    SagaStarted,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
    StepEntry,
    StepExpired,
    StepFailed,
    StepOverdue,
    StepStarted,
    StepSucceeded,
    UndoFailed,
    UndoStarted,
    UndoSucceeded,
)
from schemas.saga_params import SagaParams

StepStatus = Literal[
    "pending", "started", "succeeded", "failed", "expired", "undo-started", "undone", "undo-failed"
]
SagaStatus = Literal["running", "unwinding", "done", "unwound", "stuck"]

STEP_NEXT: dict[type[StepEntry], tuple[frozenset[StepStatus], StepStatus]] = {
    StepStarted: (frozenset({"pending"}), "started"),
    StepOverdue: (frozenset({"started"}), "started"),
    StepSucceeded: (frozenset({"started"}), "succeeded"),
    StepFailed: (frozenset({"started"}), "failed"),
    StepExpired: (frozenset({"started"}), "expired"),
    UndoStarted: (frozenset({"started", "succeeded", "failed", "expired"}), "undo-started"),
    UndoSucceeded: (frozenset({"undo-started"}), "undone"),
    UndoFailed: (frozenset({"undo-started"}), "undo-failed"),
}
"""Entry -> the statuses it may follow, and the status it leads to."""

SAGA_NEXT: dict[type[SagaEntry], tuple[frozenset[SagaStatus], SagaStatus]] = {
    SagaUnwinding: (frozenset({"running"}), "unwinding"),
    SagaDone: (frozenset({"running"}), "done"),
    SagaUnwound: (frozenset({"unwinding"}), "unwound"),
    SagaStuck: (frozenset({"running", "unwinding"}), "stuck"),
    SagaRetried: (frozenset({"stuck"}), "running"),
}
"""Entry -> the statuses it may follow, and the status it leads to; retried: the one it was in."""

ENDED: frozenset[SagaStatus] = frozenset({"done", "unwound"})
"""A stuck saga has not ended: a person is to bring it on."""


class CorruptLogError(Exception):
    """An entry that the log before it does not allow."""


class StepState(msgspec.Struct, frozen=True):
    """One step, as its entries left it."""

    status: StepStatus = "pending"
    outputs: Mapping[str, Any] = {}
    reason: str = ""
    error: str = ""
    """What kind of failure it was."""
    started_at: datetime | None = None
    deadline: datetime | None = None
    overdue: datetime | None = None
    overdue_reported: bool = False
    ended_at: datetime | None = None
    """When the action succeeded, failed or was given up."""
    remedy: str = ""
    before: StepStatus = "pending"
    """What the undo began from: where a retry begins again."""
    sequence: int = 0
    """Sequence of the last entry about this step."""


_PENDING = StepState()


class SagaState(msgspec.Struct, frozen=True, kw_only=True):
    """A saga, folded from its log."""

    saga: str
    kind: SagaKind
    params: SagaParams
    started_at: datetime
    cause: str
    trace: str
    """traceparent of the first entry."""
    sequence: int
    """Sequence of the last entry: the guard of the next append."""
    last_id: str
    status: SagaStatus = "running"
    reason: str = ""
    failed_step: str = ""
    stuck_while: SagaStatus = "running"
    """What a stuck saga was doing, and does again when it is retried."""
    retries: int = 0
    asked: str = ""
    """Id of the last request that this log has taken in, so that a redelivery is known again."""
    cancelled: bool = False
    """Whether it is unwound because it was requested."""
    then: str = ""
    """Id of the uncordon saga that follows; empty: none."""
    unwinding_at: datetime | None = None
    """Since when it is unwound; None: it is not."""
    steps: Mapping[str, StepState] = {}
    skipped: frozenset[int] = frozenset()
    """Sequences of entries that do not belong in the log."""

    def step(self, name: str) -> StepState:
        """A step's state; pending where no entry names it."""
        return self.steps.get(name, _PENDING)

    @property
    def outputs(self) -> dict[str, Mapping[str, Any]]:
        """Return what succeeded steps put out, by step name."""
        return {name: step.outputs for name, step in self.steps.items() if step.outputs}

    @property
    def ended(self) -> bool:
        """Return whether nothing more will happen."""
        return self.status in ENDED


def fold(
    state: SagaState | None, entry: SagaEntry, sequence: int, headers: Mapping[str, str]
) -> SagaState:
    """Add one entry to a state; raise CorruptLogError where it does not fit."""
    if state is None:
        if not isinstance(entry, SagaStarted):
            raise CorruptLogError(f"{entry.saga}: begins with {type(entry).__name__}")
        return SagaState(
            saga=entry.saga,
            kind=entry.kind,
            params=entry.params,
            started_at=entry.time,
            cause=entry.cause,
            trace=headers.get(TRACEPARENT, ""),
            sequence=sequence,
            last_id=entry.id,
        )
    if isinstance(entry, StepEntry):
        folded = replace(_fold_step(state, entry), sequence=sequence)
        steps = {**state.steps, entry.step: folded}
        asked = entry.cause if isinstance(entry, StepExpired) and entry.requested else state.asked
        return replace(state, steps=steps, sequence=sequence, last_id=entry.id, asked=asked)
    allowed = SAGA_NEXT.get(type(entry))
    if allowed is None or state.status not in allowed[0]:
        raise CorruptLogError(f"{entry.saga}: {type(entry).__name__} while {state.status}")
    changed = replace(state, status=allowed[1], sequence=sequence, last_id=entry.id)
    match entry:
        case SagaUnwinding(step=step, reason=reason, cancelled=cancelled, then=then):
            unwinding = replace(
                changed, failed_step=step, reason=reason, then=then, unwinding_at=entry.time
            )
            return replace(unwinding, cancelled=True, asked=entry.cause) if cancelled else unwinding
        case SagaStuck(step=step, reason=reason):
            return replace(changed, failed_step=step, reason=reason, stuck_while=state.status)
        case SagaRetried():
            return _retried(changed, entry)
        case _:
            return changed


def skip(state: SagaState | None, sequence: int) -> SagaState | None:
    """Pass over an entry that does not belong: the guard moves on, and it is remembered."""
    if state is None:
        return None
    return replace(state, sequence=sequence, skipped=state.skipped | {sequence})


def _retried(state: SagaState, entry: SagaRetried) -> SagaState:
    name = state.failed_step
    step = state.step(name)
    # A failed undo is undone again; what failed beyond the pivot is done again.
    begun = replace(step, status=step.before) if step.status == "undo-failed" else StepState()
    return replace(
        state,
        status=state.stuck_while,
        steps={**state.steps, name: replace(begun, sequence=state.sequence)},
        retries=state.retries + 1,
        asked=entry.cause,
    )


def _fold_step(state: SagaState, entry: StepEntry) -> StepState:
    if entry.step not in SAGA_STEPS[state.kind]:
        raise CorruptLogError(f"{entry.saga}: a {state.kind} saga has no step {entry.step}")
    step = state.step(entry.step)
    allowed, status = STEP_NEXT[type(entry)]
    if step.status not in allowed or state.ended:
        raise CorruptLogError(
            f"{entry.saga}: {entry.step} {type(entry).__name__} while {step.status}"
        )
    match entry:
        case StepStarted(deadline=deadline, overdue=overdue):
            begun = replace(step, status=status, started_at=entry.time)
            return replace(begun, deadline=deadline, overdue=overdue)
        case StepOverdue():
            return replace(step, overdue_reported=True)
        case StepSucceeded(outputs=outputs):
            return replace(step, status=status, outputs=outputs, ended_at=entry.time)
        case StepFailed(reason=reason, error=error):
            return replace(step, status=status, reason=reason, error=error, ended_at=entry.time)
        case StepExpired(reason=reason):
            return replace(step, status=status, reason=reason, ended_at=entry.time)
        case UndoStarted():
            return replace(step, status=status, before=step.status)
        case UndoFailed(reason=reason, remedy=remedy):
            return replace(step, status=status, reason=reason, remedy=remedy)
        case _:
            return replace(step, status=status)
