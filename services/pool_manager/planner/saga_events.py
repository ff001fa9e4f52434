"""The events that a saga's log entries publish. Pure.

Every event's ID derives from the saga, so publishing it twice stores it once.
"""

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
from services.pool_manager.planner.saga_projection import has_succeeded, outcome
from services.saga.definitions import DEFINITIONS
from services.saga.definitions.saga_steps import gpus_reset_at, new_boot_id
from services.saga.saga_state import SagaState


def events_of(state: SagaState, entry: SagaEntry) -> tuple[Event, ...]:
    """Return the events of one entry."""
    params, saga = state.params, state.saga
    match entry:
        case SagaStarted():
            opened = pe.SagaOpened(
                id=f"began-{saga}",
                time=entry.time,
                cause=entry.id,
                pool=params.pool,
                saga=saga,
                kind=state.kind,
                node=params.node,
                new_node=params.new_node,
                reason=params.reason,
            )
            return (opened,)
        case StepSucceeded():
            return _step_events(state, entry)
        case StepOverdue(step=step):
            overdue = pe.SagaOverdue(
                id=f"overdue-{step}-{saga}{_retry(entry, saga, f'{step}.overdue')}",
                time=entry.time,
                cause=entry.id,
                pool=params.pool,
                saga=saga,
                step=step,
                node=params.node,
                since=state.step(step).started_at,
                reason=f"{params.node} is still not drained; the saga waits until it is",
                remedy="see what still runs there; to go on without it: "
                f"navarch saga proceed {saga}",
            )
            return (overdue,)
        case StepExpired(step="drain"):
            return (_drained(state, entry, expired=True),)
        case UndoSucceeded():
            return _undo_events(state, entry)
        case SagaDone() if state.kind == "replace" and state.params.new_node:
            return (_replaced(state, entry),)
        case SagaDone() if DEFINITIONS[state.kind].in_place:
            return (_remediated(state, entry),)
        case SagaUnwound() if DEFINITIONS[state.kind].in_place:
            return (_remediated(state, entry), _unwound(state, entry))
        case SagaUnwound():
            return (_unwound(state, entry),)
        case SagaStuck(step=step, reason=reason, remedy=remedy):
            stuck = pe.SagaIsStuck(
                id=f"stuck-{saga}{_retry(entry, saga, 'stuck')}",
                time=entry.time,
                cause=entry.id,
                pool=params.pool,
                saga=saga,
                step=step,
                reason=reason,
                remedy=remedy,
            )
            return (stuck,)
        case _:
            return ()


def _retry(entry: SagaEntry, saga: str, name: str) -> str:
    """What may occur again after a retry is a new event: its ID ends like its entry's."""
    return entry.id.removeprefix(f"{saga}.{name}")


def _step_events(state: SagaState, entry: StepSucceeded) -> tuple[Event, ...]:
    params, saga = state.params, state.saga
    match entry.step:
        case "cordon":
            event: Event = ne.Cordoned(
                id=f"cordoned-{saga}",
                time=entry.time,
                cause=entry.id,
                pool=params.pool,
                node=params.node,
                saga=saga,
                reason=params.reason,
            )
        case "uncordon":
            event = _uncordoned(state, entry)
        case "drain":
            event = _drained(state, entry, expired=False)
        case "terminate":
            event = _terminated(state, entry, params.node)
        case "admit":
            event = ne.Admitted(
                id=f"admitted-{saga}",
                time=entry.time,
                cause=entry.id,
                pool=params.pool,
                node=params.new_node,
                saga=saga,
                spare=params.spare,
            )
        case "promote":
            event = ne.Promoted(
                id=f"promoted-{saga}",
                time=entry.time,
                cause=entry.id,
                pool=params.pool,
                node=params.promotes,
                saga=saga,
                instead_of=params.node if params.node != params.promotes else "",
            )
        case _:
            return ()
    return (event,)


def _undo_events(state: SagaState, entry: UndoSucceeded) -> tuple[Event, ...]:
    match entry.step:
        case "cordon":
            return (_uncordoned(state, entry),)
        case "provision":
            return (_terminated(state, entry, state.params.new_node),)
        case _:
            return ()


def _terminated(state: SagaState, entry: SagaEntry, node: str) -> Event:
    undone = isinstance(entry, UndoSucceeded)
    return ne.Terminated(
        id=f"{'undone' if undone else 'terminated'}-{state.saga}",
        time=entry.time,
        cause=entry.id,
        pool=state.params.pool,
        node=node,
        saga=state.saga,
    )


def _uncordoned(state: SagaState, entry: SagaEntry) -> Event:
    params, outputs = state.params, state.outputs
    reset_at, boot_id = gpus_reset_at(outputs), new_boot_id(outputs)
    reason = params.reason
    if DEFINITIONS[state.kind].in_place:
        what = "its GPUs were reset" if state.kind == "reset-gpu" else "it was rebooted"
        reason = f"{what} ({reason})"
    if state.kind == "recheck":
        detail = outputs.get("check", {}).get("detail", "")
        reason = f"only the kernel log reported a fault, and the test passed: {detail}"
    is_remediated = reset_at is not None or boot_id
    return ne.Uncordoned(
        id=f"uncordoned-{state.saga}",
        time=entry.time,
        cause=entry.id,
        pool=params.pool,
        node=params.node,
        saga=state.saga,
        reason=reason,
        since=reset_at,
        boot_id=boot_id,
        cleared_at=None if is_remediated else params.cleared_at or state.started_at,
    )


def _drained(state: SagaState, entry: SagaEntry, *, expired: bool) -> Event:
    outputs = entry.outputs if isinstance(entry, StepSucceeded) else {}
    is_confirmed = bool(outputs.get("drain_confirmed", True))
    return ne.Drained(
        id=f"drained-{state.saga}",
        time=entry.time,
        cause=entry.id,
        pool=state.params.pool,
        node=state.params.node,
        saga=state.saga,
        expired=expired,
        waited=state.params.drain != "immediate" and is_confirmed,
    )


def _remediated(state: SagaState, entry: SagaEntry) -> Event:
    params = state.params
    return ne.Remediated(
        id=f"remediated-{state.saga}",
        time=entry.time,
        cause=entry.id,
        pool=params.pool,
        node=params.node,
        saga=state.saga,
        remediation=state.kind,
        outcome=outcome(state),
        attempt=params.attempt,
        attempts_max=params.attempts_max,
        fault_signature=params.fault_signature,
        step=state.failed_step,
        reason=_sentence(state.reason, state.failed_step) if state.reason else params.reason,
        duration_seconds=(entry.time - state.started_at).total_seconds(),
    )


def _replaced(state: SagaState, entry: SagaEntry) -> Event:
    params = state.params
    return pe.NodeReplaced(
        id=f"replaced-{state.saga}",
        time=entry.time,
        cause=entry.id,
        pool=params.pool,
        old_node=params.node,
        new_node=params.new_node,
        promoted=params.promotes if has_succeeded(state, "promote") else "",
        saga=state.saga,
        reason=params.reason,
        duration_seconds=(entry.time - state.started_at).total_seconds(),
    )


def _unwound(state: SagaState, entry: SagaUnwound) -> Event:
    params, reason = state.params, entry.reason or state.reason
    if state.cancelled:
        return pe.SagaCancelled(
            id=f"cancelled-{state.saga}",
            time=entry.time,
            cause=entry.id,
            pool=params.pool,
            saga=state.saga,
            step=entry.step,
            reason=reason,
            node=params.node,
            new_node=params.new_node,
            node_gone=has_succeeded(state, "terminate"),
            then=state.then,
        )
    return pe.SagaFailed(
        id=f"failed-{state.saga}",
        time=entry.time,
        cause=entry.id,
        pool=params.pool,
        saga=state.saga,
        step=entry.step,
        reason=_sentence(reason, entry.step),
        node=params.node,
        new_node=params.new_node,
        node_gone=has_succeeded(state, "terminate"),
    )


def _sentence(reason: str, step: str) -> str:
    if reason != DEADLINE_PASSED:
        return reason
    orders = ("cordon", "uncordon", "cordon-gpus", "drain", "reserve", "open", "promote")
    by = ": the workload system did not carry it out" if step in orders else ""
    return f"{step} was not done when its deadline passed{by}"
