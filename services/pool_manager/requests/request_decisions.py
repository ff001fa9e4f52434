"""Accepts what people ask of pools, or refuses it with a reason. Pure.

A request is a work-queue message without envelope; its id is the stream sequence it lies under, so
a redelivery decides the same and answers under the same event id.
"""

from dataclasses import replace
from datetime import datetime

import msgspec

from schemas.messages import encode_record
from schemas.names import SAGA_TOKEN
from schemas.node_records import NodeRecord
from schemas.operator_requests import (
    BreakerRequest,
    CompletedRequest,
    DrainRequest,
    HoldRequest,
    NamesRequest,
    NodeRequest,
    Request,
    SagaRequest,
    ScaleRequest,
)
from schemas.pool_events import RequestAccepted, Scaled
from schemas.pool_records import RECORD_BYTES_MAX, OpenSaga, PoolRecord
from schemas.saga_log_entries import SagaEntry
from services.pool_manager.planner.disruption_budget import rate_of, with_begun
from services.pool_manager.planner.node_counts import stays_out
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.breaker_requests import change_breaker
from services.pool_manager.planner.safety.holds import NodeHold, problem, requested_hold
from services.pool_manager.planner.sizing.on_demand_floor import with_markets
from services.pool_manager.planner.sizing.open_sagas import open_for
from services.pool_manager.planner.sizing.spares import substitute
from services.pool_manager.requests import request_ordering
from services.pool_manager.requests.budget_refusal import check_budget
from services.pool_manager.requests.name_requests import request_names
from services.pool_manager.requests.node_refusals import node_refusal
from services.pool_manager.requests.request_replies import (
    QueuedRequest,
    RefusedError,
    RequestDecision,
    accepted,
    describe_request,
    read_request,
    refused,
)
from services.pool_manager.requests.requested_size import resized, smaller
from services.saga.definitions import DEFINITIONS, ON_REQUEST
from services.saga.next_entry import Impossible, cancel, proceed, retry
from services.saga.saga_state import SagaState


def saga_asked_about(asked: QueuedRequest, snapshot: PoolSnapshot) -> str:
    """Return the saga whose log the answer depends on; empty where it depends on none."""
    try:
        payload = read_request(asked)
    except RefusedError:
        return ""
    if isinstance(payload, SagaRequest):
        return payload.saga if SAGA_TOKEN.match(payload.saga) else ""
    if asked.verb in ON_REQUEST and isinstance(payload, NodeRequest):
        node = snapshot.nodes.by_name.get(payload.node)
        opened = _open_saga(snapshot.record, node) if node is not None else None
        return opened[0] if opened else ""
    return ""


def decide(
    asked: QueuedRequest, snapshot: PoolSnapshot | None, now: datetime, log: SagaState | None = None
) -> RequestDecision:
    """Answer one request; `snapshot` is None where there is no such pool.

    `log`: the saga that `saga_asked_about` names, None where it has no log.
    """
    payload: Request | None = None
    try:
        payload = read_request(asked)
        there = _existing(asked, snapshot)
        about = request_ordering.about(asked.verb, payload)
        if last := request_ordering.later(asked, about, there.record):
            return _too_late(asked, payload, there, last, now)
        if asked.verb in ON_REQUEST and _over(asked, there.record):
            # Its answer may be lost, and its saga has ended: to begin another would do it twice.
            return _repeat_answer(asked, payload, there.record, now)
        request_ordering.check_wait(asked, there.record, now)
        answer = _answer(asked, payload, there, log, now)
        _check_room(there.record, answer.record)
    except RefusedError as error:
        return RequestDecision(event=refused(asked, payload, error, now))
    before = answer.record or there.record
    saga = answer.event.saga if isinstance(answer.event, RequestAccepted) else ""
    after = request_ordering.remember(asked, about, before, saga)
    return answer if after is before else replace(answer, record=after)


def _answer(
    asked: QueuedRequest,
    payload: Request,
    snapshot: PoolSnapshot,
    log: SagaState | None,
    now: datetime,
) -> RequestDecision:
    if isinstance(payload, ScaleRequest):
        return _scale(asked, payload, snapshot, now)
    if isinstance(payload, NamesRequest):
        return request_names(asked, payload, snapshot, now)
    if isinstance(payload, BreakerRequest):
        return _about_breaker(asked, payload, snapshot, now)
    if isinstance(payload, SagaRequest):
        return _about_saga(asked, payload, snapshot, log, now)
    if isinstance(payload, HoldRequest) or asked.verb == "release":
        return _hold(asked, payload, snapshot, now)
    assert isinstance(payload, NodeRequest)
    return _about_node(asked, payload, snapshot, log, now)


def _too_late(
    asked: QueuedRequest,
    payload: Request,
    snapshot: PoolSnapshot,
    last: CompletedRequest,
    now: datetime,
) -> RequestDecision:
    """Change nothing; what was carried out before and only not acknowledged is answered again."""
    if not request_ordering.completed_requests(asked, snapshot.record):
        raise RefusedError("superseded", request_ordering.superseded_reason(last))
    if isinstance(payload, ScaleRequest):
        return RequestDecision(event=_scaled(asked, payload, snapshot.record, payload.nodes, now))
    return _repeat_answer(asked, payload, snapshot.record, now)


def _check_room(before: PoolRecord, after: PoolRecord | None) -> None:
    """Refuse to open a saga that would bring the record near what the server takes."""
    if after is None or after.open.keys() <= before.open.keys():
        return
    if len(encode_record(after)) > RECORD_BYTES_MAX:
        raise RefusedError(
            "saga-open",
            f"{len(before.open)} sagas of {before.name} are open, as many as may be; "
            "wait until some have ended",
        )


def _over(asked: QueuedRequest, record: PoolRecord) -> bool:
    """Whether a request was carried out to its end."""
    under_way = any(each.cause == asked.id for each in record.open.values())
    return not under_way and request_ordering.completed_requests(asked, record)


def _repeat_answer(
    asked: QueuedRequest, payload: Request, record: PoolRecord, now: datetime
) -> RequestDecision:
    """The answer of a request that was carried out, under the same id."""
    known = request_ordering.known(asked, record)
    node = payload.node if isinstance(payload, NodeRequest | HoldRequest) else ""
    saga = known.saga if known is not None else ""
    return RequestDecision(event=accepted(asked, payload, now, node=node, saga=saga))


def _existing(asked: QueuedRequest, snapshot: PoolSnapshot | None) -> PoolSnapshot:
    if snapshot is None:
        raise RefusedError("unknown-pool", f"there is no pool {asked.pool!r}; see navarch status")
    return snapshot


def _scale(
    asked: QueuedRequest, payload: ScaleRequest, snapshot: PoolSnapshot, now: datetime
) -> RequestDecision:
    record = resized(snapshot.record, payload.nodes, now)
    event = _scaled(asked, payload, snapshot.record, record.desired, now)
    return RequestDecision(event=event, record=record)


def _scaled(
    asked: QueuedRequest, payload: ScaleRequest, record: PoolRecord, nodes: int, now: datetime
) -> Scaled:
    return Scaled(
        id=f"scaled-{asked.id}",
        time=now,
        cause=asked.id,
        pool=asked.pool,
        request=payload.request,
        by=payload.by,
        previous=record.desired,
        nodes=nodes,
        reason=f"asked by {payload.by or 'an operator'}",
    )


def _hold(
    asked: QueuedRequest, payload: Request, snapshot: PoolSnapshot, now: datetime
) -> RequestDecision:
    """Hold a node, or release it; nothing is begun."""
    assert isinstance(payload, HoldRequest | NodeRequest)
    node = _node(snapshot, payload.node)
    if isinstance(payload, NodeRequest):
        hold = NodeHold(
            pool=snapshot.record.name, node=node.node, by=payload.by, reason=payload.reason
        )
        note = "" if node.held_until else f"{node.node} was not held"
    elif wrong := problem(payload):
        raise RefusedError("invalid-request", wrong)
    else:
        hold = requested_hold(payload, snapshot.record.name, asked.time)
        opened = _open_saga(snapshot.record, node)
        note = f"{opened[0]} is under way and goes on" if opened else ""
    event = accepted(asked, payload, now, node=node.node, note=note)
    return RequestDecision(event=event, record=snapshot.record, hold=hold)


def _node(snapshot: PoolSnapshot, name: str) -> NodeRecord:
    node = snapshot.nodes.by_name.get(name)
    if node is None:
        raise RefusedError(
            "unknown-node", f"pool {snapshot.record.name} has no node {name!r}; see navarch list"
        )
    return node


def _about_node(
    asked: QueuedRequest,
    payload: NodeRequest,
    snapshot: PoolSnapshot,
    log: SagaState | None,
    now: datetime,
) -> RequestDecision:
    record = snapshot.record
    node = _node(snapshot, payload.node)
    opened = _open_saga(record, node)
    if opened is not None:
        saga, existing = opened
        if existing.cause == asked.id:
            return RequestDecision(event=accepted(asked, payload, now, node=node.node, saga=saga))
        cancels = asked.verb == "uncordon" and existing.node == node.node and not node.spare
        if cancels and log is not None and DEFINITIONS[existing.kind].cordons:
            return _uncordon_instead(asked, payload, node, log, now)
        raise RefusedError(
            "saga-open",
            f"{existing.kind} of {node.node} is under way ({saga}); wait until it has ended",
        )
    if (asked.verb == "cordon" and stays_out(node)) or (
        asked.verb == "uncordon"
        and not (node.cordoned or node.cordoned_gpus or node.faulty_gpus)
        and node.health != "unhealthy"
        # Single GPUs may be cordoned that a restored store knows nothing of.
        and record.spec.health.cordon_scope == "node"
    ):
        return RequestDecision(event=accepted(asked, payload, now, node=node.node))
    _check(asked.verb, node, snapshot, now)
    if asked.verb == "terminate":
        record = smaller(record, now)
    requested = ON_REQUEST[asked.verb]
    kind = requested.kind
    promotes = substitute(record, snapshot.nodes, node, now) if kind == "replace" else ""
    saga, fresh, record = open_for(snapshot.fleet, record, kind, now, node, promotes)
    asked_for = msgspec.structs.replace(
        fresh,
        reason=payload.reason or f"{asked.verb} asked by {payload.by or 'an operator'}",
        by=payload.by,
        cause=asked.id,
        trace="",
        fault="",
        cleared_at=asked.time if kind == "uncordon" else None,
        restores_service=requested.remediates and _in_service(node) and not promotes,
    )
    if isinstance(payload, DrainRequest):
        asked_for = _draining(payload, asked_for)
    record = msgspec.structs.replace(record, open={**record.open, saga: asked_for})
    record = with_markets(record, snapshot.nodes, (saga,))
    if requested.disrupts:
        rate = rate_of(asked_for)
        record = with_begun(record, snapshot.fleet_window, now, (rate,))
    size = f"the desired size of {record.name} is {record.desired} now"
    note = size if asked.verb == "terminate" else ""
    return RequestDecision(
        event=accepted(asked, payload, now, node=node.node, saga=saga, note=note), record=record
    )


def _draining(payload: DrainRequest, opened: OpenSaga) -> OpenSaga:
    """How long this once the work is waited for; what is not said is as the pool says."""
    mode = payload.mode or ("deadline" if payload.timeout is not None else opened.drain)
    timeout = None if payload.timeout is None else float(payload.timeout)
    return msgspec.structs.replace(opened, drain=mode, drain_timeout_seconds=timeout)


def _uncordon_instead(
    asked: QueuedRequest, payload: NodeRequest, node: NodeRecord, log: SagaState, now: datetime
) -> RequestDecision:
    """Unwind what is under way; its last act opens the uncordon saga that its log names here."""
    if log.asked == asked.id:
        return RequestDecision(event=accepted(asked, payload, now, node=node.node, saga=log.then))
    then = f"uncordon-{node.node}-{node.sagas + 2}"
    entry = cancel(
        DEFINITIONS[log.kind],
        log,
        now,
        reason=describe_request(asked, payload, payload.reason),
        cause=asked.id,
        then=then,
    )
    if isinstance(entry, Impossible):
        raise RefusedError("wrong-state", entry.reason)
    note = f"{log.saga} is unwound first"
    if log.kind == "scale-down":
        note += "; the pool still has a node too many, and will take one again"
    event = accepted(asked, payload, now, node=node.node, saga=then, note=note)
    return RequestDecision(event=event, entry=entry)


def _about_breaker(
    asked: QueuedRequest, payload: BreakerRequest, snapshot: PoolSnapshot, now: datetime
) -> RequestDecision:
    close = asked.verb == "breaker-close"
    made = change_breaker(payload, snapshot, now, asked.id, close=close)
    event = accepted(asked, payload, now, note=made.note)
    return RequestDecision(event=event, more=(made.event,), record=made.record)


def _about_saga(
    asked: QueuedRequest,
    payload: SagaRequest,
    snapshot: PoolSnapshot,
    log: SagaState | None,
    now: datetime,
) -> RequestDecision:
    if log is None or log.params.pool != snapshot.record.name:
        raise RefusedError(
            "unknown-saga",
            f"pool {snapshot.record.name} has no saga {payload.saga!r}; see navarch saga list",
        )
    event = accepted(
        asked,
        payload,
        now,
        node=log.params.node or log.params.new_node,
        saga=log.saga,
        note=_afterwards(log, snapshot) if asked.verb == "cancel" else "",
    )
    if log.asked == asked.id:
        return RequestDecision(event=event)
    reason = describe_request(asked, payload, payload.reason)
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
        raise RefusedError("wrong-state", entry.reason)
    return RequestDecision(event=event, entry=entry)


def _afterwards(log: SagaState, snapshot: PoolSnapshot) -> str:
    """What the pool does once the saga is unwound, for the operator who cancelled it."""
    name = log.params.node
    node = snapshot.nodes.by_name.get(name)
    want = snapshot.record.desired
    match log.kind:
        case "replace" | "reset-gpu" | "reboot" if log.params.restores_service:
            return f"it leaves behind: {DEFINITIONS[log.kind].left(log.params)}"
        case "replace" | "reset-gpu" | "reboot" if node is not None and _is_unhealthy(node):
            again = "replaced" if log.kind == "replace" else "acted on"
            return (
                f"{name} stays cordoned and, while still unhealthy, will be {again} again; to keep "
                f"it: navarch uncordon {name}"
            )
        case "replace" | "reset-gpu" | "reboot":
            return f"{name} stays cordoned; to have it back: navarch uncordon {name}"
        case "scale-up" | "scale-down":
            return (
                f"the pool still wants {want} nodes and will try again; to change "
                f"that: navarch scale {snapshot.record.name}"
            )
        case _:
            return f"it leaves behind: {DEFINITIONS[log.kind].leaves}"


def _is_unhealthy(node: NodeRecord) -> bool:
    return node.health == "unhealthy" or node.lost


def _in_service(node: NodeRecord) -> bool:
    return not (_is_unhealthy(node) or node.cordoned or node.spare)


def _check(verb: str, node: NodeRecord, snapshot: PoolSnapshot, now: datetime) -> None:
    if node.state != "active":
        raise RefusedError("not-active", f"{node.node} is {node.state}, not active")
    if kept := node_refusal(verb, node, snapshot.record, now):
        raise RefusedError(*kept)
    check_budget(verb, node, snapshot, now)


def _open_saga(record: PoolRecord, node: NodeRecord) -> tuple[str, OpenSaga] | None:
    """What is under way about a node; a spare that has been put into service is free again."""
    for saga, opened in record.open.items():
        promotes = opened.promotes if node.spare else ""
        if node.node in (opened.node, opened.new_node, promotes):
            return saga, opened
    return None
