"""What a saga's log calls for next. Pure: the same log, moment and node give the same entry."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from schemas.reasons import DEADLINE_PASSED
from schemas.records import NodeRecord
from schemas.sagas import (
    SagaDone,
    SagaEntry,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
    StepExpired,
    StepFailed,
    StepStarted,
    StepSucceeded,
    UndoStarted,
)
from services.saga.definition import Definition, Met, Step, Unmeetable
from services.saga.log import SagaState


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing to append: `step` is under way, at the latest until `deadline`."""

    step: str
    deadline: datetime | None


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
    """Whether the step under way waits for something to be true of the new node."""
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
            case "failed":
                return _give_up(state, step.name, done.reason, now, stuck=beyond_return)
            case "expired" if step.on_deadline == "fail":
                return _give_up(state, step.name, DEADLINE_PASSED, now, stuck=beyond_return)
            case _:
                beyond_return = beyond_return or step.pivot
    return SagaDone(id=f"{state.saga}.done", time=now, cause=state.last_id, saga=state.saga)


def _start(state: SagaState, step: Step, now: datetime) -> StepStarted:
    return StepStarted(
        id=f"{state.saga}.{step.name}.started",
        time=now,
        cause=state.last_id,
        saga=state.saga,
        step=step.name,
        inputs=msgspec.to_builtins(step.inputs(state.params, state.outputs)),
        deadline=now + timedelta(seconds=step.deadline_seconds(state.params)),
    )


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
                    id=f"{state.saga}.{step.name}.succeeded", outputs=dict(outputs), **names
                )
            case Unmeetable(reason=reason, error=error):
                return StepFailed(
                    id=f"{state.saga}.{step.name}.failed", reason=reason, error=error, **names
                )
            case None:
                pass
    if begun.deadline is not None and now >= begun.deadline:
        return StepExpired(id=f"{state.saga}.{step.name}.expired", **names)
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
        remedy = f"mend what keeps {step} from succeeding; the saga does not go back from here"
        return SagaStuck(id=f"{state.saga}.stuck", remedy=remedy, **names)
    return SagaUnwinding(id=f"{state.saga}.unwinding", **names)


def _backward(definition: Definition, state: SagaState, now: datetime) -> SagaEntry | Waiting:
    names: dict[str, Any] = {"time": now, "cause": state.last_id, "saga": state.saga}
    for step in reversed(definition.steps(state.params)):
        done = state.step(step.name)
        if not step.undo or done.status in ("pending", "undone"):
            continue
        if done.status == "undo-started":
            return Waiting(step.name, None)
        if done.status == "undo-failed":
            return SagaStuck(
                id=f"{state.saga}.stuck",
                step=step.name,
                reason=done.reason,
                remedy=done.remedy,
                **names,
            )
        return UndoStarted(
            id=f"{state.saga}.{step.name}.undo-started",
            step=step.name,
            inputs=msgspec.to_builtins(step.inputs(state.params, state.outputs)),
            **names,
        )
    return SagaUnwound(
        id=f"{state.saga}.unwound", step=state.failed_step, reason=state.reason, **names
    )
