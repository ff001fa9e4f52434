"""What each entry of a saga's log tells the world. Pure.

Every fact's id derives from the saga, so that telling it again tells nothing new.
"""

from typing import Any

from schemas import node_events as ne
from schemas import pool_events as pe
from schemas.enums import DEADLINE_PASSED
from schemas.event_subjects import Event
from schemas.saga_log_entries import (
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaStuck,
    SagaUnwound,
    StepExpired,
    StepOverdue,
    StepSucceeded,
    UndoSucceeded,
)
from services.pool_manager.planner.saga_projection import done, outcome
from services.pool_manager.sagas import DEFINITIONS
from services.pool_manager.sagas.saga_steps import booted, mended_at
from services.saga.saga_state import SagaState


def facts(state: SagaState, entry: SagaEntry) -> tuple[Event, ...]:
    """What one entry tells the world; ids derive from the saga, so repeating tells nothing new."""
    params = state.params
    match entry:
        case SagaStarted():
            began = pe.SagaOpened(
                **_pool(state, entry, "began"),
                saga=state.saga,
                kind=state.kind,
                node=params.node,
                new_node=params.new_node,
                reason=params.reason,
            )
            return (began,)
        case StepSucceeded(step=step):
            return _step_facts(state, entry, step)
        case StepOverdue(step=step):
            return (_overdue_fact(state, entry, step),)
        case StepExpired(step="drain"):
            return (_drained_fact(state, entry, expired=True),)
        case UndoSucceeded(step="cordon"):
            return (_uncordoned_fact(state, entry),)
        case SagaDone() if state.kind == "replace":
            return (_replaced_fact(state, entry),)
        case SagaDone() if DEFINITIONS[state.kind].in_place:
            return (_remediated_fact(state, entry),)
        case SagaUnwound() if DEFINITIONS[state.kind].in_place:
            return (_remediated_fact(state, entry), _failed_fact(state, entry))
        case SagaUnwound():
            return (_failed_fact(state, entry),)
        case SagaStuck(step=step, reason=reason, remedy=remedy):
            stuck = pe.SagaIsStuck(
                **_again(state, entry, "stuck", "stuck"),
                saga=state.saga,
                step=step,
                reason=reason,
                remedy=remedy,
            )
            return (stuck,)
        case _:
            return ()


def _pool(state: SagaState, entry: SagaEntry, what: str) -> dict[str, Any]:
    return {
        "id": f"{what}-{state.saga}",
        "time": entry.time,
        "cause": entry.id,
        "pool": state.params.pool,
    }


def _again(state: SagaState, entry: SagaEntry, what: str, name: str) -> dict[str, Any]:
    """Of what may come again after a retry, which is news then: named like its entry."""
    retry = entry.id.removeprefix(f"{state.saga}.{name}")
    return {**_pool(state, entry, what), "id": f"{what}-{state.saga}{retry}"}


def _node(state: SagaState, entry: SagaEntry, what: str, node: str) -> dict[str, Any]:
    return {**_pool(state, entry, what), "node": node, "saga": state.saga}


def _step_facts(state: SagaState, entry: StepSucceeded, step: str) -> tuple[Event, ...]:
    params = state.params
    match step:
        case "cordon":
            about = _node(state, entry, "cordoned", params.node)
            return (ne.Cordoned(**about, reason=params.reason),)
        case "uncordon":
            return (_uncordoned_fact(state, entry),)
        case "drain":
            return (_drained_fact(state, entry, expired=False),)
        case "terminate":
            return (ne.Terminated(**_node(state, entry, "terminated", params.node)),)
        case "admit":
            about = _node(state, entry, "admitted", params.new_node)
            return (ne.Admitted(**about, spare=params.spare),)
        case "promote":
            about = _node(state, entry, "promoted", params.promotes)
            instead = params.node if params.node != params.promotes else ""
            return (ne.Promoted(**about, instead_of=instead),)
        case _:
            return ()


def _uncordoned_fact(state: SagaState, entry: SagaEntry) -> Event:
    about = _node(state, entry, "uncordoned", state.params.node)
    outputs = state.outputs
    mended = mended_at(outputs) is not None or booted(outputs) != ""
    return ne.Uncordoned(
        **about,
        reason=_cured(state) if DEFINITIONS[state.kind].in_place else state.params.reason,
        since=mended_at(outputs),
        boot_id=booted(outputs),
        cleared_at=None if mended else state.params.cleared_at or state.started_at,
    )


def _cured(state: SagaState) -> str:
    what = "its GPUs were reset" if state.kind == "reset-gpu" else "it was rebooted"
    return f"{what} ({state.params.reason})"


def _remediated_fact(state: SagaState, entry: SagaEntry) -> Event:
    params = state.params
    return ne.Remediated(
        **_node(state, entry, "remediated", params.node),
        remedy=state.kind,
        outcome=outcome(state),
        attempt=params.attempt,
        attempts_max=params.attempts_max,
        fault_signature=params.fault_signature,
        step=state.failed_step,
        reason=_spoken(state.reason, state.failed_step) if state.reason else params.reason,
        duration_seconds=(entry.time - state.started_at).total_seconds(),
    )


def _drained_fact(state: SagaState, entry: SagaEntry, *, expired: bool) -> Event:
    about = _node(state, entry, "drained", state.params.node)
    return ne.Drained(**about, expired=expired, waited=state.params.drain != "immediate")


def _overdue_fact(state: SagaState, entry: SagaEntry, step: str) -> Event:
    return pe.SagaOverdue(
        **_again(state, entry, f"overdue-{step}", f"{step}.overdue"),
        saga=state.saga,
        step=step,
        node=state.params.node,
        since=state.step(step).started_at,
        reason=f"{state.params.node} is still not drained; the saga waits until it is",
        remedy=f"see what still runs there; to go on without it: navarch saga proceed {state.saga}",
    )


def _replaced_fact(state: SagaState, entry: SagaEntry) -> Event:
    params = state.params
    return pe.NodeReplaced(
        **_pool(state, entry, "replaced"),
        old_node=params.node,
        new_node=params.new_node,
        promoted=params.promotes if done(state, "promote") else "",
        saga=state.saga,
        reason=params.reason,
        duration_seconds=(entry.time - state.started_at).total_seconds(),
    )


def _failed_fact(state: SagaState, entry: SagaUnwound) -> Event:
    reason = entry.reason or state.reason
    if state.cancelled:
        return pe.SagaCancelled(
            **_pool(state, entry, "cancelled"),
            saga=state.saga,
            step=entry.step,
            reason=reason,
            node=state.params.node,
            new_node=state.params.new_node,
            then=state.then,
        )
    reason = _spoken(reason, entry.step)
    return pe.SagaFailed(
        **_pool(state, entry, "failed"),
        saga=state.saga,
        step=entry.step,
        reason=reason,
        node=state.params.node,
        new_node=state.params.new_node,
    )


def _spoken(reason: str, step: str) -> str:
    return f"{step} was not done when its deadline passed" if reason == DEADLINE_PASSED else reason
