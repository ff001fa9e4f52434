"""What each entry of a saga's log means for nodes, pools and the people who watch. Pure.

Steps mean the same in every saga, so this is one table. Every effect is idempotent: a record is
changed only while the saga still has it, and an event's id derives from the entry's.
"""

from dataclasses import dataclass
from typing import Any

from schemas import node_events as ne
from schemas import pool_events as pe
from schemas.messages import Message
from schemas.reasons import DEADLINE_PASSED
from schemas.records import NodeRecord
from schemas.sagas import (
    SagaDone,
    SagaEntry,
    SagaStarted,
    SagaStuck,
    SagaUnwound,
    StepExpired,
    StepSucceeded,
    UndoSucceeded,
)
from services.pool_manager.core import REMOVING, UNASKED
from services.saga.log import SagaState


@dataclass(frozen=True, slots=True)
class NewNode:
    """Record a node that is to come, unless it is recorded already."""

    record: NodeRecord


@dataclass(frozen=True, slots=True)
class ChangeNode:
    """Change a node's record, if this saga has it (or, with `take`, if none has)."""

    node: str
    fields: dict[str, Any]
    take: bool = False
    ended: bool = False
    """Also give the node back: one more saga about it has ended."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the world."""

    event: Message


@dataclass(frozen=True, slots=True)
class CloseSaga:
    """Take the saga off its pool's record, and look at the pool again."""

    failed: bool


Effect = NewNode | ChangeNode | Publish | CloseSaga


def effects(state: SagaState, entry: SagaEntry) -> tuple[Effect, ...]:
    """What one entry brings about, in order."""
    match entry:
        case SagaStarted():
            return _started(state, entry)
        case StepSucceeded(step=step):
            return _succeeded(state, entry, step)
        case StepExpired(step="drain"):
            return (Publish(_drained(state, entry, expired=True)),)
        case UndoSucceeded(step="provision"):
            gone = {"state": "terminated", "changed_at": entry.time}
            return (ChangeNode(state.params.new_node, gone),)
        case UndoSucceeded(step="cordon"):
            return _uncordoned(state, entry)
        case SagaDone() | SagaUnwound():
            return _ended(state, entry)
        case SagaStuck(step=step, reason=reason, remedy=remedy):
            return (
                Publish(
                    pe.SagaIsStuck(
                        **_about_pool(state, entry, "stuck"),
                        saga=state.saga,
                        step=step,
                        reason=reason,
                        remedy=remedy,
                    )
                ),
            )
        case _:
            return ()


def _about_pool(state: SagaState, entry: SagaEntry, what: str) -> dict[str, Any]:
    return {
        "id": f"{what}-{state.saga}",
        "time": entry.time,
        "cause": entry.id,
        "pool": state.params.pool,
    }


def _about_node(state: SagaState, entry: SagaEntry, what: str, node: str) -> dict[str, Any]:
    return {**_about_pool(state, entry, what), "node": node}


def _started(state: SagaState, entry: SagaStarted) -> tuple[Effect, ...]:
    params = state.params
    found: list[Effect] = []
    if params.new_node:
        found.append(
            NewNode(
                NodeRecord(
                    pool=params.pool,
                    node=params.new_node,
                    saga=state.saga,
                    launch=params.launch,
                    reason=params.reason,
                    changed_at=entry.time,
                )
            )
        )
    if params.node:
        fields = {"saga": state.saga, "reason": params.reason, "changed_at": entry.time}
        if state.kind in REMOVING:
            fields["state"] = "leaving"
        found.append(ChangeNode(params.node, fields, take=True))
    found.append(
        Publish(
            pe.SagaBegan(
                **_about_pool(state, entry, "began"),
                saga=state.saga,
                kind=state.kind,
                node=params.node,
                new_node=params.new_node,
                reason=params.reason,
            )
        )
    )
    return tuple(found)


def _succeeded(state: SagaState, entry: StepSucceeded, step: str) -> tuple[Effect, ...]:
    params, now = state.params, entry.time
    match step:
        case "cordon":
            about = _about_node(state, entry, "cordoned", params.node)
            return (
                ChangeNode(params.node, {"cordoned": True, "changed_at": now}),
                Publish(ne.Cordoned(**about, reason=params.reason, saga=state.saga)),
            )
        case "uncordon":
            return _uncordoned(state, entry)
        case "drain":
            return (
                ChangeNode(params.node, {"drained": True, "changed_at": now}),
                Publish(_drained(state, entry, expired=False)),
            )
        case "terminate":
            about = _about_node(state, entry, "terminated", params.node)
            return (
                ChangeNode(params.node, {"state": "terminated", "changed_at": now}),
                Publish(ne.Terminated(**about, saga=state.saga)),
            )
        case "provision":
            made = {k: entry.outputs.get(k, "") for k in ("region", "zone", "address")}
            return (ChangeNode(params.new_node, {**made, "changed_at": now}),)
        case "admit":
            about = _about_node(state, entry, "admitted", params.new_node)
            fields = {"state": "active", "admitted_at": now, "changed_at": now, "reason": ""}
            return (
                ChangeNode(params.new_node, fields),
                Publish(ne.Admitted(**about, saga=state.saga)),
            )
        case _:
            return ()


def _uncordoned(state: SagaState, entry: SagaEntry) -> tuple[Effect, ...]:
    node = state.params.node
    fields = {"cordoned": False, "drained": False, "changed_at": entry.time}
    about = _about_node(state, entry, "uncordoned", node)
    return (
        ChangeNode(node, fields),
        Publish(ne.Uncordoned(**about, reason=state.params.reason, saga=state.saga)),
    )


def _drained(state: SagaState, entry: SagaEntry, *, expired: bool) -> ne.Drained:
    about = _about_node(state, entry, "drained", state.params.node)
    return ne.Drained(**about, saga=state.saga, expired=expired)


def _ended(state: SagaState, entry: SagaEntry) -> tuple[Effect, ...]:
    params, failed = state.params, isinstance(entry, SagaUnwound)
    found: list[Effect] = []
    if params.node:
        gone = state.step("terminate").status == "succeeded"
        fields: dict[str, Any] = {"saga": "", "changed_at": entry.time}
        if failed and state.kind in REMOVING and not gone:
            fields["state"] = "active"
        found.append(ChangeNode(params.node, fields, ended=True))
    if params.new_node:
        fields = {"saga": "", "changed_at": entry.time}
        if failed:
            fields |= {"state": "terminated", "reason": state.reason}
        found.append(ChangeNode(params.new_node, fields))
    if isinstance(entry, SagaUnwound):
        found.append(
            Publish(
                pe.SagaFailed(
                    **_about_pool(state, entry, "failed"),
                    saga=state.saga,
                    step=entry.step,
                    reason=_why(state, entry),
                    node=params.node,
                    new_node=params.new_node,
                )
            )
        )
    elif state.kind == "replace":
        found.append(
            Publish(
                pe.NodeReplaced(
                    **_about_pool(state, entry, "replaced"),
                    old_node=params.node,
                    new_node=params.new_node,
                    saga=state.saga,
                    reason=params.reason,
                    duration_seconds=(entry.time - state.started_at).total_seconds(),
                )
            )
        )
    found.append(CloseSaga(failed=failed and state.kind in UNASKED))
    return tuple(found)


def _why(state: SagaState, entry: SagaUnwound) -> str:
    if entry.reason == DEADLINE_PASSED:
        return f"{entry.step} was not done when its deadline passed"
    return entry.reason or state.reason
