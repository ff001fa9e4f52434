"""What people ask of pools: accepted or refused with a reason. Pure.

A request is a work-queue message without envelope; its id is the stream sequence it lies under, so
a redelivery decides the same and answers under the same event id.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from schemas.duration import decode_hook
from schemas.names import SAGA_TOKEN
from schemas.pool_events import (
    PoolEvent,
    RequestAccepted,
    RequestRefused,
    Scaled,
    ScaleRefused,
)
from schemas.reasons import Refusal, SagaKind
from schemas.records import NodeRecord, OpenSaga, PoolRecord
from schemas.requests import (
    REQUESTS,
    BreakerRequest,
    DrainRequest,
    HoldRequest,
    NodeRequest,
    Request,
    SagaRequest,
    ScaleRequest,
)
from schemas.sagas import SagaEntry
from services.pool_manager.admitting.admission import asked_again
from services.pool_manager.answers import Answer, Asked
from services.pool_manager.safety import touching
from services.pool_manager.safety.breaking import breaking
from services.pool_manager.safety.budget import limit, with_begun
from services.pool_manager.safety.holding import Holding, holding, problem
from services.pool_manager.sagas import DEFINITIONS
from services.pool_manager.sizing.opening import open_for
from services.pool_manager.sizing.spares import substitute
from services.pool_manager.world import DISRUPTIVE, World, unavailable
from services.saga.decide import Impossible, cancel, proceed, retry
from services.saga.log import SagaState

VERBS: dict[str, SagaKind] = {
    "cordon": "cordon",
    "uncordon": "uncordon",
    "drain": "drain",
    "replace": "replace",
    "reset-gpu": "reset-gpu",
    "reboot": "reboot",
}
UNWOUND_BY_UNCORDON: frozenset[SagaKind] = frozenset(
    {"replace", "drain", "scale-down", "cordon", "reset-gpu", "reboot"}
)
"""Kinds that an uncordon of their node cancels."""
RESTORING: frozenset[SagaKind] = frozenset({"replace", "reset-gpu", "reboot"})
"""Kinds that give a node back that was well before: it would count as out of service for ever."""
DETAIL_CHARS_MAX = 300


EXAMPLES: dict[type[Request], str] = {
    ScaleRequest: '{"nodes": 5}',
    NodeRequest: '{"node": "<name>"}',
    DrainRequest: '{"node": "<name>", "mode": "deadline", "timeout": "10m"}',
    SagaRequest: '{"saga": "<id>"}',
    HoldRequest: '{"node": "<name>", "for": "2h", "reason": "<why>"}',
    BreakerRequest: '{"reason": "<why>"}',
}
"""What to write instead of what cannot be read."""


@dataclass(frozen=True, slots=True)
class _Refused(Exception):  # noqa: N818 - an outcome
    refusal: Refusal
    reason: str


def saga_asked_about(asked: Asked, world: World) -> str:
    """Return the saga whose log the answer depends on; empty where it depends on none."""
    try:
        payload = _read(asked)
    except _Refused:
        return ""
    if isinstance(payload, SagaRequest):
        return payload.saga if SAGA_TOKEN.match(payload.saga) else ""
    if asked.verb == "uncordon" and isinstance(payload, NodeRequest):
        node = next((each for each in world.nodes if each.node == payload.node), None)
        opened = _open_saga(world.record, node) if node is not None else None
        return opened[0] if opened else ""
    return ""


def decide(
    asked: Asked, world: World | None, now: datetime, log: SagaState | None = None
) -> Answer:
    """Answer one request; `world` is None where there is no such pool.

    `log`: the saga that `saga_asked_about` names, None where it has no log.
    """
    payload: Request | None = None
    try:
        payload = _read(asked)
        there = _existing(asked, world)
        if isinstance(payload, ScaleRequest):
            return _scale(asked, payload, there, now)
        if isinstance(payload, BreakerRequest):
            return _about_breaker(asked, payload, there, now)
        if isinstance(payload, SagaRequest):
            return _about_saga(asked, payload, there, log, now)
        if isinstance(payload, HoldRequest) or asked.verb == "release":
            return _hold(asked, payload, there, now)
        assert isinstance(payload, NodeRequest)
        return _about_node(asked, payload, there, log, now)
    except _Refused as refused:
        return Answer(event=_refusal(asked, payload, refused, now))


def _existing(asked: Asked, world: World | None) -> World:
    if world is None:
        raise _Refused("unknown-pool", f"there is no pool {asked.pool!r}; see navarch status")
    return world


def _read(asked: Asked) -> Request:
    kind = REQUESTS.get(asked.verb)
    if kind is None:
        raise _Refused("unknown-verb", f"{asked.verb!r} is none of {', '.join(REQUESTS)}")
    try:
        return msgspec.json.decode(asked.payload, type=kind, dec_hook=decode_hook)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        example = EXAMPLES[kind]
        detail = str(error)[:DETAIL_CHARS_MAX]
        raise _Refused("invalid-request", f"{detail}; write {example}") from error


def _names(asked: Asked, payload: Request | None, now: datetime, what: str) -> dict[str, Any]:
    return {
        "id": f"{what}-{asked.id}",
        "time": now,
        "cause": asked.id,
        "pool": asked.pool,
        "request": payload.request if payload else "",
    }


def _refusal(asked: Asked, payload: Request | None, refused: _Refused, now: datetime) -> PoolEvent:
    names = _names(asked, payload, now, "refused")
    if asked.verb == "scale":
        return ScaleRefused(**names, refusal=refused.refusal, reason=refused.reason)
    node = payload.node if isinstance(payload, NodeRequest) else ""
    return RequestRefused(
        **names, verb=asked.verb, node=node, refusal=refused.refusal, reason=refused.reason
    )


def _scale(asked: Asked, payload: ScaleRequest, world: World, now: datetime) -> Answer:
    record, spec = world.record, world.record.spec
    if record.removing:
        raise _Refused("wrong-state", f"pool {record.name} is being removed")
    if payload.nodes > spec.max_nodes:
        raise _Refused(
            "above-maximum",
            f"{payload.nodes} nodes asked for, max_nodes of {record.name} is {spec.max_nodes}; "
            "ask for fewer or raise max_nodes",
        )
    if payload.nodes < spec.min_nodes:
        raise _Refused(
            "below-minimum",
            f"{payload.nodes} nodes asked for, min_nodes of {record.name} is {spec.min_nodes}; "
            "ask for more or lower min_nodes",
        )
    scaled = Scaled(
        **_names(asked, payload, now, "scaled"),
        was=record.desired,
        nodes=payload.nodes,
        reason=f"asked by {payload.by or 'somebody'}",
    )
    wanted = msgspec.structs.replace(record, desired=payload.nodes, scaled_at=now)
    return Answer(event=scaled, record=asked_again(wanted))


def _hold(asked: Asked, payload: Request, world: World, now: datetime) -> Answer:
    """Hold a node, or release it; nothing is begun."""
    assert isinstance(payload, HoldRequest | NodeRequest)
    node = _node(world, payload.node)
    if isinstance(payload, NodeRequest):
        wish = Holding(pool=world.record.name, node=node.node, by=payload.by, reason=payload.reason)
        note = "" if node.held_until else f"{node.node} was not held"
    elif wrong := problem(payload):
        raise _Refused("invalid-request", wrong)
    else:
        wish = holding(payload, world.record.name, asked.time)
        opened = _open_saga(world.record, node)
        note = f"{opened[0]} is under way and goes on" if opened else ""
    accepted = RequestAccepted(
        **_names(asked, payload, now, "accepted"), verb=asked.verb, node=node.node, note=note
    )
    return Answer(event=accepted, record=world.record, hold=wish)


def _node(world: World, name: str) -> NodeRecord:
    node = next((each for each in world.nodes if each.node == name), None)
    if node is None:
        raise _Refused(
            "unknown-node", f"pool {world.record.name} has no node {name!r}; see navarch list"
        )
    return node


def _about_node(
    asked: Asked, payload: NodeRequest, world: World, log: SagaState | None, now: datetime
) -> Answer:
    record = world.record
    node = _node(world, payload.node)
    opened = _open_saga(record, node)
    if opened is not None:
        saga, existing = opened
        if existing.cause == asked.id:
            return Answer(event=_accepted(asked, payload, saga, now))
        cancels = asked.verb == "uncordon" and existing.node == node.node
        if cancels and log is not None and existing.kind in UNWOUND_BY_UNCORDON:
            return _uncordon_instead(asked, payload, node, log, now)
        raise _Refused(
            "saga-open",
            f"{existing.kind} of {node.node} is under way ({saga}); wait until it has ended",
        )
    if (asked.verb == "cordon" and node.cordoned) or (
        asked.verb == "uncordon" and not node.cordoned and node.health != "unhealthy"
    ):
        return Answer(event=_accepted(asked, payload, "", now))
    _check(asked.verb, node, world, now)
    kind = VERBS[asked.verb]
    promotes = substitute(record, world.nodes, node, now) if kind == "replace" else ""
    saga, fresh, record = open_for(world.fleet, record, kind, now, node, promotes)
    asked_for = msgspec.structs.replace(
        fresh,
        reason=payload.reason or f"{asked.verb} asked by {payload.by or 'somebody'}",
        by=payload.by,
        cause=asked.id,
        trace="",
        fault="",
        restores=kind in RESTORING and _in_service(node) and not promotes,
    )
    if isinstance(payload, DrainRequest):
        asked_for = _draining(payload, asked_for)
    record = msgspec.structs.replace(record, open={**record.open, saga: asked_for})
    if asked_for.kind in DISRUPTIVE:
        window = float(world.others.spec.window) if world.others is not None else 0.0
        record = with_begun(record, window, now, (kind,))
    return Answer(event=_accepted(asked, payload, saga, now), record=record)


def _draining(payload: DrainRequest, opened: OpenSaga) -> OpenSaga:
    """How long this once the work is waited for; what is not said is as the pool says."""
    mode = payload.mode or ("deadline" if payload.timeout is not None else opened.drain)
    timeout = None if payload.timeout is None else float(payload.timeout)
    return msgspec.structs.replace(opened, drain=mode, drain_timeout_seconds=timeout)


def _uncordon_instead(
    asked: Asked, payload: NodeRequest, node: NodeRecord, log: SagaState, now: datetime
) -> Answer:
    """Unwind what is under way; its last act opens the uncordon saga that its log names here."""
    if log.asked == asked.id:
        return Answer(event=_accepted(asked, payload, log.then, now))
    then = f"uncordon-{node.node}-{node.sagas + 2}"
    entry = cancel(
        DEFINITIONS[log.kind],
        log,
        now,
        reason=_wish(asked, payload, payload.reason),
        cause=asked.id,
        then=then,
    )
    if isinstance(entry, Impossible):
        raise _Refused("wrong-state", entry.reason)
    accepted = _accepted(asked, payload, then, now)
    note = f"{log.saga} is unwound first"
    if log.kind == "scale-down":
        note += "; the pool still has a node too many, and will take one again"
    return Answer(event=msgspec.structs.replace(accepted, note=note), entry=entry)


def _about_breaker(asked: Asked, payload: BreakerRequest, world: World, now: datetime) -> Answer:
    names = _names(asked, payload, now, asked.verb)
    made = breaking(payload, world, now, names, close=asked.verb == "breaker-close")
    named = _names(asked, payload, now, "accepted")
    accepted = RequestAccepted(**named, verb=asked.verb, note=made.note)
    return Answer(event=accepted, more=(made.fact,), record=made.record)


def _wish(asked: Asked, payload: Request, reason: str) -> str:
    return f"{asked.verb} asked by {payload.by or 'somebody'}" + (f": {reason}" if reason else "")


def _about_saga(
    asked: Asked, payload: SagaRequest, world: World, log: SagaState | None, now: datetime
) -> Answer:
    if log is None or log.params.pool != world.record.name:
        raise _Refused(
            "unknown-saga",
            f"pool {world.record.name} has no saga {payload.saga!r}; see navarch saga list",
        )
    accepted = RequestAccepted(
        **_names(asked, payload, now, "accepted"),
        verb=asked.verb,
        node=log.params.node or log.params.new_node,
        saga=log.saga,
        note=_afterwards(log, world) if asked.verb == "cancel" else "",
    )
    if log.asked == asked.id:
        return Answer(event=accepted)
    reason = _wish(asked, payload, payload.reason)
    entry: SagaEntry | Impossible
    match asked.verb:
        case "cancel":
            entry = cancel(DEFINITIONS[log.kind], log, now, reason=reason, cause=asked.id)
        case "proceed":
            about = DEFINITIONS[log.kind]
            entry = proceed(about, log, now, reason=reason, cause=asked.id, asked=True)
        case _:
            entry = retry(log, now, reason=reason, cause=asked.id)
    if isinstance(entry, Impossible):
        raise _Refused("wrong-state", entry.reason)
    return Answer(event=accepted, entry=entry)


def _afterwards(log: SagaState, world: World) -> str:
    """What the pool does once the saga is unwound, for whoever cancelled it."""
    name = log.params.node
    node = next((each for each in world.nodes if each.node == name), None)
    match log.kind:
        case "replace" | "reset-gpu" | "reboot" if log.params.restores:
            return f"it leaves behind: {DEFINITIONS[log.kind].left(log.params)}"
        case "replace" | "reset-gpu" | "reboot" if node is not None and _ails(node):
            again = "replaced" if log.kind == "replace" else "acted on"
            return (
                f"{name} stays cordoned and, as it is still sick, will be {again} again; to keep "
                f"it: navarch uncordon {name}"
            )
        case "replace" | "reset-gpu" | "reboot":
            return f"{name} stays cordoned; to have it back: navarch uncordon {name}"
        case "scale-up" | "scale-down":
            return (
                f"the pool still wants {world.record.desired} nodes and will try again; to change "
                f"that: navarch scale {world.record.name}"
            )
        case _:
            return f"it leaves behind: {DEFINITIONS[log.kind].leaves}"


def _ails(node: NodeRecord) -> bool:
    return node.health == "unhealthy" or node.lost


def _in_service(node: NodeRecord) -> bool:
    return not (_ails(node) or node.cordoned or node.spare)


def _check(verb: str, node: NodeRecord, world: World, now: datetime) -> None:
    if node.state != "active":
        raise _Refused("not-active", f"{node.node} is {node.state}, not active")
    if kept := touching.refusal(verb, node, world.record, now):
        raise _Refused(*kept)
    takes_out = VERBS[verb] in DISRUPTIVE and not node.cordoned
    record = world.record
    allowed = limit(record.spec.budget.max_unavailable, record.desired)
    spent = unavailable(record, world.nodes)
    if takes_out and spent >= allowed:
        raise _Refused(
            "budget-spent",
            f"{spent} of {record.desired} nodes are out of service and {allowed} may be; "
            "wait, or raise budget.max_unavailable",
        )


def _open_saga(record: PoolRecord, node: NodeRecord) -> tuple[str, OpenSaga] | None:
    """What is under way about a node; a spare that has been put into service is free again."""
    for saga, opened in record.open.items():
        promotes = opened.promotes if node.spare else ""
        if node.node in (opened.node, opened.new_node, promotes):
            return saga, opened
    return None


def _accepted(asked: Asked, payload: NodeRequest, saga: str, now: datetime) -> RequestAccepted:
    names = _names(asked, payload, now, "accepted")
    return RequestAccepted(**names, verb=asked.verb, node=payload.node, saga=saga)
