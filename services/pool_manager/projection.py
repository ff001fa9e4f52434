"""What a saga's log means for its nodes, and what each entry tells the world. Pure.

Records are derived from the log as a whole, never from one entry: replicas share the entries of a
saga and may take them in in any order. A record notes the sequence up to which it has taken the log
in, so an older view of the log changes nothing. Steps mean the same in every saga.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from schemas import node_events as ne
from schemas import pool_events as pe
from schemas.messages import Message
from schemas.reasons import DEADLINE_PASSED, AttemptOutcome, HealthStatus, NodeState
from schemas.records import Attempt, NodeRecord, OpenSaga, PoolRecord
from schemas.sagas import (
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
from services.pool_manager.nodes import launched
from services.pool_manager.sagas.steps import booted, mended_at
from services.pool_manager.world import CURING, REMOVING
from services.saga.log import SagaState

ATTEMPTS_MAX: Final = 16
"""Resets and reboots that a node's record remembers: more than any ladder has rungs."""

# --- records -------------------------------------------------------------------------------------


def leaving_node(record: NodeRecord | None, state: SagaState) -> NodeRecord | None:
    """The record of the node a saga acts on, with the log taken in; unchanged where it is stale."""
    if record is None or not _takes(record, state):
        return record
    cordoned, drained = _cordoned(record, state), _drained_now(record, state)
    return msgspec.structs.replace(
        record,
        saga="" if state.ended else state.saga,
        saga_entry=state.sequence,
        sagas=record.sagas + (1 if state.ended else 0),
        reason=_reason(state),
        state=_leaving_state(record, state),
        cordoned=cordoned,
        spare=record.spare and cordoned,
        drained=cordoned and drained,
        health=_health(record, state),
        attempts=_attempts(record, state),
    )


def promoted_node(record: NodeRecord | None, state: SagaState) -> NodeRecord | None:
    """The record of the spare that takes the place of the node a saga acts on.

    Once it is in service it is a node like any other: what the saga does after that is none of its
    business, and somebody may have cordoned it since.
    """
    if record is None or not _takes(record, state):
        return record
    promoted = _promoted(record, state)
    if promoted and not record.spare:
        return record
    left = promoted or state.ended
    return msgspec.structs.replace(
        record,
        saga="" if left else state.saga,
        saga_entry=state.sequence,
        sagas=record.sagas + (1 if left else 0),
        cordoned=record.cordoned and not promoted,
        spare=record.spare and not promoted,
        drained=record.drained and not promoted,
    )


def _promoted(record: NodeRecord, state: SagaState) -> bool:
    return state.params.promotes == record.node and _done(state, "promote")


def coming_node(record: NodeRecord | None, state: SagaState) -> NodeRecord | None:
    """The record of the node a saga brings, made where there is none."""
    params = state.params
    record = record or NodeRecord(pool=params.pool, node=params.new_node, launch=params.launch)
    if not _takes(record, state):
        return record
    made = {key: str(state.step("provision").outputs.get(key, "")) for key in _PLACE}
    admit = state.step("admit")
    return msgspec.structs.replace(
        record,
        saga="" if state.ended else state.saga,
        saga_entry=state.sequence,
        reason=state.reason if state.status == "unwound" else "",
        state=_coming_state(record, state),
        cordoned=_reserved(record, state),
        spare=record.spare if record.state == "active" else state.params.spare,
        admitted_at=record.admitted_at or (admit.ended_at if _done(state, "admit") else None),
        launch=launched(record, state.step("provision").outputs),
        **{key: value for key, value in made.items() if value},
    )


_PLACE = ("region", "zone", "address", "host")


def says_more(old: NodeRecord | None, new: NodeRecord, state: SagaState) -> bool:
    """Whether a record is worth writing: most entries of a log move nothing but how far it is read.

    What is left unwritten lets an older view in for a moment; the last view of a log is always
    written, and shuts out all others. After an uncordon each is: it wipes a verdict, and once only.
    """
    if old is None or state.ended or state.step("uncordon").status != "pending":
        return new != old
    return new != msgspec.structs.replace(old, saga_entry=new.saga_entry)


def _takes(record: NodeRecord, state: SagaState) -> bool:
    return record.saga in ("", state.saga) and state.sequence > record.saga_entry


def _done(state: SagaState, step: str) -> bool:
    return state.step(step).status == "succeeded"


def _cordoned(record: NodeRecord, state: SagaState) -> bool:
    match state.step("cordon").status, state.step("uncordon").status:
        case _ if _promoted(record, state):
            return False
        case "undone", _:
            return False
        case _, "succeeded":
            return False
        case "succeeded", _:
            return True
        case _:
            return record.cordoned


def _reserved(record: NodeRecord, state: SagaState) -> bool:
    """Whether a node that comes is cordoned; once it is in service others decide that."""
    if record.state == "active":
        return record.cordoned
    return _done(state, "reserve") and not _done(state, "open")


def _health(record: NodeRecord, state: SagaState) -> HealthStatus:
    """Whoever uncordons a sick node has it judged anew: until then it is not taken for sick.

    Once, with the view of the log that first shows the uncordon: a verdict that comes after it
    stands, whatever further entries of the log are taken in.
    """
    uncordon = state.step("uncordon")
    fresh = uncordon.status == "succeeded" and uncordon.sequence > record.saga_entry
    return "unknown" if fresh and record.health in ("degraded", "unhealthy") else record.health


def _attempts(record: NodeRecord, state: SagaState) -> tuple[Attempt, ...]:
    """The resets and reboots of a node, with this one as its log tells it now."""
    if state.kind not in CURING:
        return record.attempts
    told = Attempt(
        saga=state.saga,
        kind=state.kind,
        sickness=state.params.sickness,
        at=state.started_at,
        outcome=_outcome(state),
        ended_at=max((e.ended_at for e in state.steps.values() if e.ended_at), default=None)
        if state.ended
        else None,
        reason=state.reason,
    )
    others = tuple(each for each in record.attempts if each.saga != state.saga)
    return (*others, told)[-ATTEMPTS_MAX:]


def _outcome(state: SagaState) -> AttemptOutcome:
    if not state.ended:
        return "open"
    if state.status == "done":
        return "back"
    return "cancelled" if state.cancelled else "failed"


def _drained_now(record: NodeRecord, state: SagaState) -> bool:
    return record.drained or state.step("drain").status in ("succeeded", "expired")


def _reason(state: SagaState) -> str:
    if not state.ended:
        return state.params.reason
    return state.params.reason if _done(state, "terminate") else ""


def _leaving_state(record: NodeRecord, state: SagaState) -> NodeState:
    if _done(state, "terminate"):
        return "terminated"
    if state.kind not in REMOVING:
        return record.state
    return "active" if state.status == "unwound" else "leaving"


def _coming_state(record: NodeRecord, state: SagaState) -> NodeState:
    if state.status == "unwound" or state.step("provision").status == "undone":
        return "terminated"
    return "active" if _done(state, "admit") else record.state


# --- pools ---------------------------------------------------------------------------------------


def follow_up(
    before: PoolRecord, closed: PoolRecord, state: SagaState, now: datetime
) -> PoolRecord:
    """Add what follows a cancelled saga to the record that it leaves, in the same write.

    So nobody finds the node free in between. The id stands in the cancelled saga's log: repeating
    opens nothing more, because the saga is not in the record any more.
    """
    ended = before.open.get(state.saga)
    if ended is None or not state.cancelled or state.status != "unwound":
        return closed
    opened = dict(closed.open)
    if state.then:
        opened[state.then] = OpenSaga(
            kind="uncordon", node=ended.node, reason=state.reason, cause=state.asked, since=now
        )
    # Neither a failure nor a success: what is known of launches stays as it was.
    return msgspec.structs.replace(
        closed, open=opened, failures=before.failures, retry_at=before.retry_at
    )


# --- facts ---------------------------------------------------------------------------------------


def facts(state: SagaState, entry: SagaEntry) -> tuple[Message, ...]:
    """What one entry tells the world; ids derive from the saga, so repeating tells nothing new."""
    params = state.params
    match entry:
        case SagaStarted():
            began = pe.SagaBegan(
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
        case SagaDone() if state.kind in CURING:
            return (_remediated_fact(state, entry),)
        case SagaUnwound() if state.kind in CURING:
            return (_remediated_fact(state, entry), _failed_fact(state, entry))
        case SagaUnwound():
            return (_failed_fact(state, entry),)
        case SagaStuck(step=step, reason=reason, remedy=remedy):
            # After a retry it may be stuck again, which is news.
            again = entry.id.removeprefix(f"{state.saga}.stuck")
            stuck = pe.SagaIsStuck(
                **{**_pool(state, entry, "stuck"), "id": f"stuck-{state.saga}{again}"},
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


def _node(state: SagaState, entry: SagaEntry, what: str, node: str) -> dict[str, Any]:
    return {**_pool(state, entry, what), "node": node, "saga": state.saga}


def _step_facts(state: SagaState, entry: StepSucceeded, step: str) -> tuple[Message, ...]:
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


def _uncordoned_fact(state: SagaState, entry: SagaEntry) -> Message:
    about = _node(state, entry, "uncordoned", state.params.node)
    outputs = state.outputs
    return ne.Uncordoned(
        **about,
        reason=_cured(state) if state.kind in CURING else state.params.reason,
        since=mended_at(outputs),
        boot_id=booted(outputs),
    )


def _cured(state: SagaState) -> str:
    what = "its GPUs were reset" if state.kind == "reset-gpu" else "it was rebooted"
    return f"{what} ({state.params.reason})"


def _remediated_fact(state: SagaState, entry: SagaEntry) -> Message:
    params = state.params
    return ne.Remediated(
        **_node(state, entry, "remediated", params.node),
        remedy=state.kind,
        outcome=_outcome(state),
        attempt=params.attempt,
        attempts_max=params.attempts_max,
        sickness=params.sickness,
        step=state.failed_step,
        reason=_spoken(state.reason, state.failed_step) if state.reason else params.reason,
        duration_seconds=(entry.time - state.started_at).total_seconds(),
    )


def _drained_fact(state: SagaState, entry: SagaEntry, *, expired: bool) -> Message:
    about = _node(state, entry, "drained", state.params.node)
    return ne.Drained(**about, expired=expired, waited=state.params.drain != "immediate")


def _overdue_fact(state: SagaState, entry: SagaEntry, step: str) -> Message:
    return pe.SagaOverdue(
        **_pool(state, entry, f"overdue-{step}"),
        saga=state.saga,
        step=step,
        node=state.params.node,
        since=state.step(step).started_at,
        reason=f"{state.params.node} is still not drained; the saga waits until it is",
        remedy=f"see what still runs there; to go on without it: navarch saga proceed {state.saga}",
    )


def _replaced_fact(state: SagaState, entry: SagaEntry) -> Message:
    params = state.params
    return pe.NodeReplaced(
        **_pool(state, entry, "replaced"),
        old_node=params.node,
        new_node=params.new_node,
        promoted=params.promotes if _done(state, "promote") else "",
        saga=state.saga,
        reason=params.reason,
        duration_seconds=(entry.time - state.started_at).total_seconds(),
    )


def _failed_fact(state: SagaState, entry: SagaUnwound) -> Message:
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
    return pe.SagaFailed(
        **_pool(state, entry, "failed"),
        saga=state.saga,
        step=entry.step,
        reason=_spoken(reason, entry.step),
        node=state.params.node,
        new_node=state.params.new_node,
    )


def _spoken(reason: str, step: str) -> str:
    return f"{step} was not done when its deadline passed" if reason == DEADLINE_PASSED else reason
