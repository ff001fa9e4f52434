"""The current step of a saga, since when, what it waits for, and what follows. Pure."""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from schemas.step_declarations import waits_for
from services.saga.definition import Step
from services.saga.definitions import DEFINITIONS
from services.saga.saga_state import SagaState


class StepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one step of a saga and its times."""

    step: str
    status: str
    """pending, started, succeeded, failed, expired, undo-started, undone or undo-failed."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    """When the action ended; None: it has not."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the state of a saga to operators."""

    saga: str
    kind: str
    pool: str
    node: str = ""
    new_node: str = ""
    status: str
    reason: str = ""
    """Why it is unwinding or stuck, else why it started."""
    step: str = ""
    """The current, failed or next step; empty once the saga has ended."""
    since: datetime
    deadline: datetime | None = None
    waiting_for: str = ""
    next: tuple[str, ...] = ()
    """Remaining steps; while unwinding, those still to be undone."""
    leaves: str = ""
    """The result of unwinding."""
    steps: tuple[StepProgress, ...] = ()
    """Every step, in order."""


def progress(state: SagaState) -> Progress:
    """Derive the progress from a folded log."""
    steps = DEFINITIONS[state.kind].steps(state.params)
    params = state.params
    current = Progress(
        saga=state.saga,
        kind=state.kind,
        pool=params.pool,
        node=params.node,
        new_node=params.new_node,
        status=state.status,
        reason=state.reason or params.reason,
        since=state.started_at,
        leaves=DEFINITIONS[state.kind].left(params),
        steps=tuple(_timed(state, step.name) for step in steps),
    )
    match state.status:
        case "running":
            return _forward(current, state, steps)
        case "unwinding":
            return _backward(current, state, steps)
        case "stuck":
            failed = state.step(state.failed_step)
            remedy = f": {failed.remedy}" if failed.remedy else ""
            return msgspec.structs.replace(
                current,
                step=state.failed_step,
                since=failed.ended_at or failed.started_at or state.started_at,
                waiting_for=f"an operator{remedy}; then: navarch saga retry {state.saga}",
                next=_pending(state, steps) if state.stuck_while == "running" else (),
            )
        case _:
            return current


def _timed(state: SagaState, name: str) -> StepProgress:
    step = state.step(name)
    return StepProgress(
        step=name, status=step.status, started_at=step.started_at, ended_at=step.ended_at
    )


def _forward(current: Progress, state: SagaState, steps: Iterable[Step]) -> Progress:
    for step in steps:
        done = state.step(step.name)
        if done.status == "started":
            return msgspec.structs.replace(
                current,
                step=step.name,
                since=done.started_at or state.started_at,
                deadline=done.deadline,
                waiting_for=waits_for(step.name, current.node, current.new_node)
                + _proceed_hint(step, state),
                next=_pending(state, steps),
            )
        failed = done.status == "failed" and step.on_failure == "fail"
        if done.status == "pending" or failed:
            return msgspec.structs.replace(
                current,
                step=step.name,
                since=_last(state),
                waiting_for="the pool-manager to continue",
                next=_pending(state, steps),
            )
    return msgspec.structs.replace(
        current, since=_last(state), waiting_for="the pool-manager to close it"
    )


def _proceed_hint(step: Step, state: SagaState) -> str:
    """What an operator can do about a wait without a deadline."""
    if not step.cut_short or state.step(step.name).deadline is not None:
        return ""
    return f", without a deadline (to continue without it: navarch saga proceed {state.saga})"


def _backward(current: Progress, state: SagaState, steps: tuple[Step, ...]) -> Progress:
    behind = [step for step in reversed(steps) if state.step(step.name).status != "pending"]
    left = tuple(
        step.name
        for step in behind
        if step.undo and state.step(step.name).status not in ("undone", "undo-started")
    )
    for step in behind:
        done = state.step(step.name)
        if done.status == "undo-started":
            waiting = waits_for(step.name, current.node, current.new_node, undone=True)
        elif done.status == "started" and step.waits is None and not step.superseded:
            waiting = f"{step.name} to be stopped"
        else:
            continue
        return msgspec.structs.replace(
            current,
            step=step.name,
            since=done.ended_at or done.started_at or state.started_at,
            deadline=done.deadline if done.status == "started" else None,
            waiting_for=waiting,
            next=left,
        )
    return msgspec.structs.replace(
        current,
        step=state.failed_step,
        since=_last(state),
        waiting_for="the pool-manager to undo the completed steps",
        next=left,
    )


def _pending(state: SagaState, steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps if state.step(step.name).status == "pending")


def _last(state: SagaState) -> datetime:
    ends = [each.ended_at for each in state.steps.values() if each.ended_at is not None]
    return max([state.started_at, *ends])
