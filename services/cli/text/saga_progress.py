"""What a saga is doing now, for people: the step, since when, what it waits for, what comes next.

Pure: a folded log in, words out. The tables of steps are the pool-manager's own.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from services.pool_manager.sagas import DEFINITIONS
from services.saga.definition import Step
from services.saga.saga_state import SagaState

WAITS: Final[dict[str, str]] = {
    "cordon": "the notifier to cordon {node} at the workload system",
    "uncordon": "the notifier to uncordon {node} at the workload system",
    "drain": "the work on {node} to leave",
    "vacate": "the notifier to tell the work on {node} to leave",
    "terminate": "the provider to confirm that {node} is gone",
    "provision": "the provider to bring up {new_node}",
    "bootstrap": "the agent to be brought onto {new_node}",
    "register": "the agent on {new_node} to speak",
    "admit": "{new_node} to pass its checks",
    "reserve": "the notifier to cordon {new_node} at the workload system before it is tested",
    "check": "the agent on {checked} to run the diagnostic",
    "promote": "the notifier to uncordon the spare at the workload system",
    "open": "the notifier to uncordon {new_node} at the workload system",
    "reset": "the agent on {node} to reset its GPUs",
    "reboot": "the agent on {node}, or its provider, to reboot it",
    "return": "the agent on {node} to speak after the reboot",
}
"""Step under way -> what it waits for."""
UNDOES: Final[dict[str, str]] = {
    "cordon": "the notifier to uncordon {node} at the workload system",
    "provision": "the provider to confirm that {new_node} is gone",
}
"""Step being undone -> what that waits for."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a saga stands."""

    saga: str
    kind: str
    pool: str
    node: str = ""
    new_node: str = ""
    status: str
    reason: str = ""
    """Why it is unwound or stuck; else why it began."""
    step: str = ""
    """Under way, failed or next; empty where it has ended."""
    since: datetime
    deadline: datetime | None = None
    waiting_for: str = ""
    next: tuple[str, ...] = ()
    """Steps still to come; while unwinding, those still to be taken back."""
    leaves: str = ""
    """What unwinding leaves behind."""


def progress(state: SagaState) -> Progress:
    """Say where a saga stands."""
    steps = DEFINITIONS[state.kind].steps(state.params)
    params = state.params
    told = Progress(
        saga=state.saga,
        kind=state.kind,
        pool=params.pool,
        node=params.node,
        new_node=params.new_node,
        status=state.status,
        reason=state.reason or params.reason,
        since=state.started_at,
        leaves=DEFINITIONS[state.kind].left(params),
    )
    match state.status:
        case "running":
            return _forward(told, state, steps)
        case "unwinding":
            return _backward(told, state, steps)
        case "stuck":
            failed = state.step(state.failed_step)
            remedy = f": {failed.remedy}" if failed.remedy else ""
            return msgspec.structs.replace(
                told,
                step=state.failed_step,
                since=failed.ended_at or failed.started_at or state.started_at,
                waiting_for=f"a person to mend it{remedy}; then: navarch saga retry {state.saga}",
                next=_still(state, steps) if state.stuck_while == "running" else (),
            )
        case _:
            return told


def _forward(told: Progress, state: SagaState, steps: Iterable[Step]) -> Progress:
    for step in steps:
        done = state.step(step.name)
        if done.status == "started":
            return msgspec.structs.replace(
                told,
                step=step.name,
                since=done.started_at or state.started_at,
                deadline=done.deadline,
                waiting_for=_words(WAITS, step.name, told, "{step} to be done")
                + _way_on(step, state),
                next=_still(state, steps),
            )
        if done.status == "pending" or done.status == "failed":  # noqa: PLR1714 - typed words
            return msgspec.structs.replace(
                told,
                step=step.name,
                since=_last(state),
                waiting_for="the pool-manager to take it on",
                next=_still(state, steps),
            )
    return msgspec.structs.replace(
        told, since=_last(state), waiting_for="the pool-manager to close it"
    )


def _way_on(step: Step, state: SagaState) -> str:
    """What a person may do where a wait has no end of its own."""
    if not step.cut_short or state.step(step.name).deadline is not None:
        return ""
    return f", for as long as that takes (to go on without it: navarch saga proceed {state.saga})"


def _backward(told: Progress, state: SagaState, steps: tuple[Step, ...]) -> Progress:
    behind = [step for step in reversed(steps) if state.step(step.name).status != "pending"]
    left = tuple(
        step.name
        for step in behind
        if step.undo and state.step(step.name).status not in ("undone", "undo-started")
    )
    for step in behind:
        done = state.step(step.name)
        if done.status == "undo-started":
            waiting = _words(UNDOES, step.name, told, "{step} to be taken back")
        elif done.status == "started" and step.waits is None and not step.superseded:
            waiting = f"{step.name} to be stopped"
        else:
            continue
        return msgspec.structs.replace(
            told,
            step=step.name,
            since=done.ended_at or done.started_at or state.started_at,
            deadline=done.deadline if done.status == "started" else None,
            waiting_for=waiting,
            next=left,
        )
    return msgspec.structs.replace(
        told,
        step=state.failed_step,
        since=_last(state),
        waiting_for="the pool-manager to take back what was done",
        next=left,
    )


def _still(state: SagaState, steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps if state.step(step.name).status == "pending")


def _last(state: SagaState) -> datetime:
    ends = [each.ended_at for each in state.steps.values() if each.ended_at is not None]
    return max([state.started_at, *ends])


def _words(table: dict[str, str], step: str, told: Progress, otherwise: str) -> str:
    words = table.get(step, otherwise)
    checked = told.new_node or told.node
    return words.format(step=step, node=told.node, new_node=told.new_node, checked=checked)
