"""What people ask of pools: accepted or refused with a reason. Pure.

A request is a work-queue message without envelope; its id is the stream sequence it lies under, so
a redelivery decides the same and answers under the same event id.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from schemas.messages import Message
from schemas.pool_events import (
    PoolEvent,
    RequestAccepted,
    RequestRefused,
    Scaled,
    ScaleRefused,
)
from schemas.reasons import Refusal, SagaKind
from schemas.records import NodeRecord, OpenSaga, PoolRecord
from schemas.requests import REQUESTS, NodeRequest, Request, ScaleRequest
from services.pool_manager.budget import limit
from services.pool_manager.core import World, open_for, unavailable

VERBS: dict[str, SagaKind] = {
    "cordon": "cordon",
    "uncordon": "uncordon",
    "drain": "drain",
    "replace": "replace",
}
DETAIL_CHARS_MAX = 300


class Asked(Message, frozen=True, kw_only=True, tag="io.navarch.pool_manager.request.v1.asked"):
    """A request as it lay in the queue."""

    pool: str
    verb: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What comes of a request: the event, and the pool's record with whatever it opened."""

    event: PoolEvent
    record: PoolRecord | None = None
    """None: unchanged."""


@dataclass(frozen=True, slots=True)
class _Refused(Exception):  # noqa: N818 - an outcome
    refusal: Refusal
    reason: str


def decide(asked: Asked, world: World | None, now: datetime) -> Answer:
    """Answer one request; `world` is None where there is no such pool."""
    payload: Request | None = None
    try:
        payload = _read(asked)
        there = _existing(asked, world)
        if isinstance(payload, ScaleRequest):
            return _scale(asked, payload, there, now)
        assert isinstance(payload, NodeRequest)
        return _about_node(asked, payload, there, now)
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
        return msgspec.json.decode(asked.payload, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        example = '{"nodes": 5}' if asked.verb == "scale" else '{"node": "<name>"}'
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
    return Answer(event=scaled, record=msgspec.structs.replace(record, desired=payload.nodes))


def _about_node(asked: Asked, payload: NodeRequest, world: World, now: datetime) -> Answer:
    record = world.record
    node = next((each for each in world.nodes if each.node == payload.node), None)
    if node is None:
        raise _Refused(
            "unknown-node", f"pool {record.name} has no node {payload.node!r}; see navarch list"
        )
    opened = _open_saga(record, node.node)
    if opened is not None:
        saga, existing = opened
        if existing.cause == asked.id:
            return Answer(event=_accepted(asked, payload, saga, now))
        raise _Refused(
            "saga-open",
            f"{existing.kind} of {node.node} is under way ({saga}); wait until it has ended",
        )
    if (asked.verb == "cordon" and node.cordoned) or (
        asked.verb == "uncordon" and not node.cordoned and node.health != "unhealthy"
    ):
        return Answer(event=_accepted(asked, payload, "", now))
    _check(asked.verb, node, world)
    saga, fresh, record = open_for(world.fleet, record, VERBS[asked.verb], now, node)
    asked_for = msgspec.structs.replace(
        fresh,
        reason=payload.reason or f"{asked.verb} asked by {payload.by or 'somebody'}",
        by=payload.by,
        cause=asked.id,
        trace="",
        fault="",
    )
    record = msgspec.structs.replace(record, open={**record.open, saga: asked_for})
    return Answer(event=_accepted(asked, payload, saga, now), record=record)


def _check(verb: str, node: NodeRecord, world: World) -> None:
    if node.state != "active":
        raise _Refused("not-active", f"{node.node} is {node.state}, not active")
    takes_out = verb in ("drain", "replace") and not node.cordoned
    record = world.record
    allowed = limit(record.spec.budget.max_unavailable, record.desired)
    spent = unavailable(record, world.nodes)
    if takes_out and spent >= allowed:
        raise _Refused(
            "budget-spent",
            f"{spent} of {record.desired} nodes are out of service and {allowed} may be; "
            "wait, or raise budget.max_unavailable",
        )


def _open_saga(record: PoolRecord, node: str) -> tuple[str, OpenSaga] | None:
    for saga, opened in record.open.items():
        if node in (opened.node, opened.new_node):
            return saga, opened
    return None


def _accepted(asked: Asked, payload: NodeRequest, saga: str, now: datetime) -> RequestAccepted:
    names = _names(asked, payload, now, "accepted")
    return RequestAccepted(**names, verb=asked.verb, node=payload.node, saga=saga)
