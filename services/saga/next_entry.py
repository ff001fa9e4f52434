"""Decides what a saga's log calls for next. Pure: one log, moment and node give one entry."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from schemas.enums import DEADLINE_PASSED
from schemas.node_records import NodeRecord
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaRetried,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
    StepExpired,
    StepFailed,
    StepOverdue,
    StepStarted,
    StepSucceeded,
    UndoStarted,
)
from services.saga.definition import Definition, Met, Step, Unmeetable
from services.saga.saga_state import SagaState


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to append: `step` is under way, at the latest until `deadline`."""

    step: str
    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Impossible:
    """A person's request about a saga cannot be met; the reason says why, and what else to do."""

    reason: str


def next_entry(
    definition: Definition, state: SagaState, node: NodeRecord | None, now: datetime
) -> SagaEntry | Waiting | None:
    """Return the entry to append, what is being waited for, or None where the saga has ended.

    `node`: the new node as it is now, for steps that wait for it.
    """
    match state.status:
        case "running":
            return _forward(definition, state, node, now)
        case "unwinding":
            return _backward(definition, state, now)
        case "done" | "unwound" | "stuck":
            return None


def waits_for_node(definition: Definition, state: SagaState) -> bool:
    """Return whether the step under way waits for something to be true of the new node."""
    return state.status == "running" and any(
        step.waits is not None and state.step(step.name).status == "started"
        for step in definition.steps(state.params)
    )


def _forward(
    definition: Definition, state: SagaState, node: NodeRecord | None, now: datetime
) -> SagaEntry | Waiting:
    beyond_return = False
    for step in definition.steps(state.params):
        done = state.step(step.name)
        match done.status:
            case "pending":
                return _start(state, step, now)
            case "started":
                return _under_way(state, step, node, now)
            case "failed" if step.on_failure == "fail":
                return _give_up(state, step.name, done.reason, now, stuck=beyond_return)
            case "expired" if step.on_deadline == "fail":
                return _give_up(state, step.name, DEADLINE_PASSED, now, stuck=beyond_return)
            case _:
                beyond_return = beyond_return or step.pivot
    return SagaDone(id=_id(state, "done"), time=now, cause=state.last_id, saga=state.saga)


def _start(state: SagaState, step: Step, now: datetime) -> StepStarted:
    return StepStarted(
        id=_id(state, f"{step.name}.started"),
        time=now,
        cause=state.last_id,
        saga=state.saga,
        step=step.name,
        inputs=msgspec.to_builtins(step.inputs(state.params, state.outputs)),
        deadline=_after(now, step.deadline_seconds(state.params)),
        overdue=_after(now, step.overdue_seconds(state.params) if step.overdue_seconds else None),
    )


def _after(now: datetime, seconds: float | None) -> datetime | None:
    return None if seconds is None else now + timedelta(seconds=seconds)


def _under_way(
    state: SagaState, step: Step, node: NodeRecord | None, now: datetime
) -> SagaEntry | Waiting:
    begun = state.step(step.name)
    names: dict[str, Any] = {
        "time": now,
        "cause": state.last_id,
        "saga": state.saga,
        "step": step.name,
    }
    if step.waits is not None:
        match step.waits(state.params, node):
            case Met(outputs=outputs):
                return StepSucceeded(
                    id=_id(state, f"{step.name}.succeeded"), outputs=dict(outputs), **names
                )
            case Unmeetable(reason=reason, error=error):
                return StepFailed(
                    id=_id(state, f"{step.name}.failed"), reason=reason, error=error, **names
                )
            case None:
                pass
    if begun.deadline is not None and now >= begun.deadline:
        return StepExpired(id=_id(state, f"{step.name}.expired"), **names)
    if begun.overdue is not None and not begun.overdue_reported and now >= begun.overdue:
        return StepOverdue(id=_id(state, f"{step.name}.overdue"), **names)
    return Waiting(step.name, begun.deadline)


def _give_up(
    state: SagaState, step: str, reason: str, now: datetime, *, stuck: bool
) -> SagaUnwinding | SagaStuck:
    names: dict[str, Any] = {
        "time": now,
        "cause": state.last_id,
        "saga": state.saga,
        "step": step,
        "reason": reason,
    }
    if stuck:
        remedy = f"fix what keeps {step} from succeeding; the saga does not go back from here"
        return SagaStuck(id=_id(state, "stuck"), remedy=remedy, **names)
    return SagaUnwinding(id=_id(state, "unwinding"), **names)


def _backward(definition: Definition, state: SagaState, now: datetime) -> SagaEntry | Waiting:
    names: dict[str, Any] = {"time": now, "cause": state.last_id, "saga": state.saga}
    for step in reversed(definition.steps(state.params)):
        done = state.step(step.name)
        if done.status == "started" and step.waits is None and not step.superseded:
            # Cancelled under way: its participant must have stopped before anything is undone,
            # or it could come into effect afterwards.
            if done.deadline is None or now < done.deadline:
                return Waiting(step.name, done.deadline)
            return StepExpired(id=_id(state, f"{step.name}.expired"), step=step.name, **names)
        if step.irrevocable and done.status != "pending":
            # The node is no longer what it was: what stood before is not given back any more.
            break
        if not step.undo or done.status in ("pending", "undone"):
            continue
        if done.status == "undo-started":
            return Waiting(step.name, None)
        if done.status == "undo-failed":
            return SagaStuck(
                id=_id(state, "stuck"),
                step=step.name,
                reason=done.reason,
                remedy=done.remedy,
                **names,
            )
        return UndoStarted(
            id=_id(state, f"{step.name}.undo-started"),
            step=step.name,
            inputs=msgspec.to_builtins(step.inputs(state.params, state.outputs)),
            **names,
        )
    return SagaUnwound(
        id=_id(state, "unwound"), step=state.failed_step, reason=state.reason, **names
    )


def _id(state: SagaState, what: str) -> str:
    """An entry's id; after a retry the same steps come again, and are other entries."""
    again = f".{state.retries}" if state.retries else ""
    return f"{state.saga}.{what}{again}"


# --- what people ask -----------------------------------------------------------------------------


def cancel(
    definition: Definition,
    state: SagaState,
    now: datetime,
    *,
    reason: str,
    cause: str,
    then: str = "",
    launch: str = "",
) -> SagaUnwinding | Impossible:
    """Return the entry that unwinds a saga because it was requested, or why that cannot be.

    `launch`: the step with which the launch begins that alone is given up, and not before that: as
    after a launch that failed, what was done before and cannot be taken back stays done.
    """
    match state.status:
        case "running":
            pass
        case "unwinding":
            return Impossible(f"{state.saga} is being unwound already: {state.reason}")
        case "stuck":
            return Impossible(
                f"{state.saga} is stuck at {state.failed_step}; what it waits for is a retry"
            )
        case "done" | "unwound":
            return Impossible(f"{state.saga} has ended: it is {state.status}")
    current = ""
    steps = definition.steps(state.params)
    for step in steps:
        done = state.step(step.name)
        if step.pivot and done.status == "succeeded":
            return Impossible(
                f"{state.saga} has passed {step.name}: {state.params.new_node} is in service, and "
                "there is no way back from there"
            )
        begun = step.irrevocable and done.status != "pending"
        if begun and not (launch and done.status in ("succeeded", "expired")):
            return Impossible(f"{state.saga} has begun to {step.name}, which cannot be taken back")
        if not current and done.status not in ("succeeded", "expired"):
            current = step.name
        if step.name == launch and current not in ("", launch):
            return Impossible(f"{state.saga} has not come to {launch}")
    return SagaUnwinding(
        id=_id(state, "unwinding"),
        time=now,
        cause=cause,
        saga=state.saga,
        step=current or steps[-1].name,
        reason=reason,
        cancelled=True,
        then=then,
    )


def retry(state: SagaState, now: datetime, *, reason: str, cause: str) -> SagaRetried | Impossible:
    """Return the entry that brings a stuck saga on, or why there is nothing to bring on."""
    if state.status != "stuck":
        return Impossible(f"{state.saga} is {state.status}, not stuck")
    return SagaRetried(
        id=f"{state.saga}.retried.{state.retries + 1}",
        time=now,
        cause=cause,
        saga=state.saga,
        step=state.failed_step,
        reason=reason,
    )


def proceed(
    definition: Definition,
    state: SagaState,
    now: datetime,
    *,
    reason: str,
    cause: str = "",
    asked: bool = False,
) -> StepExpired | Impossible:
    """Return the entry that ends the waiting of the step under way, or why that cannot be."""
    if state.status != "running":
        return Impossible(f"{state.saga} is {state.status}: nothing is waited for that could end")
    for step in definition.steps(state.params):
        if state.step(step.name).status != "started":
            continue
        if not step.cut_short:
            return Impossible(f"{state.saga} is at {step.name}, which cannot be cut short")
        return StepExpired(
            id=_id(state, f"{step.name}.expired"),
            time=now,
            cause=cause or state.last_id,
            saga=state.saga,
            step=step.name,
            reason=reason,
            requested=asked,
        )
    return Impossible(f"{state.saga} has no step under way")
