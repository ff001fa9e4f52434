"""A request as it lay in the queue, and what comes of it: values that others share. Pure."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import msgspec

from schemas import subjects
from schemas.duration import decode_hook
from schemas.enums import Refusal
from schemas.messages import Invalid, Message
from schemas.operations import CHANGE
from schemas.operator_requests import NodeRequest, Request
from schemas.permissions import in_name_of
from schemas.pool_events import PoolEvent, RequestAccepted, RequestRefused, ScaleRefused
from schemas.pool_records import PoolRecord
from schemas.saga_log_entries import SagaEntry
from services.bus.port import Stored
from services.pool_manager.planner.safety.holds import NodeHold

DETAIL_CHARS_MAX: Final = 300
SENDER_ID_CHARS_MAX: Final = 200


class QueuedRequest(
    Message, frozen=True, kw_only=True, tag="io.navarch.pool_manager.request.v1.asked"
):
    """A request as it lay in the queue."""

    sequence: int = 0
    """Its place in the queue."""
    pool: str
    verb: str
    payload: bytes
    by: str | None = None
    """Who asks, as the server has checked it; None: as the request says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDecision:
    """Holds the event that answers a request, and the pool's record with what it opened."""

    event: PoolEvent
    record: PoolRecord | None = None
    """None: unchanged."""
    more: tuple[PoolEvent, ...] = ()
    """What else has come about by it."""
    entry: SagaEntry | None = None
    """To be appended to the log that was decided on."""
    hold: NodeHold | None = None
    """To be noted in the node's record, before the pool's is written."""


@dataclass(frozen=True, slots=True)
class RefusedError(Exception):
    """A request is not carried out; the refusal event and its sentence say why."""

    refusal: Refusal
    reason: str


def pool_of_request(stored: Stored) -> str:
    """The pool that a stored request is about: its requests are answered in order."""
    parsed = subjects.parse_pool_request(stored.subject)
    return parsed.pool if parsed else stored.subject


def read_stored_request(stored: Stored, *, is_open: bool) -> QueuedRequest | Invalid:
    """Wrap what people typed; a subject that names no pool cannot be answered anywhere.

    Where the bus asks for credentials, only the subject says who asks: the server has checked it.
    """
    parsed = subjects.parse_pool_request(stored.subject)
    if parsed is None:
        return Invalid("", f"{stored.subject} is not <pool>.request.<verb>")
    try:
        subjects.pool_event(parsed.pool, "scale-refused")
    except ValueError as error:
        return Invalid("", str(error))
    return QueuedRequest(
        id=f"request-{stored.sequence}",
        sequence=stored.sequence,
        time=stored.time,
        pool=parsed.pool,
        verb=parsed.verb,
        payload=stored.data,
        by=None if is_open and not parsed.by else parsed.by,
    )


def read_request(asked: QueuedRequest) -> Request:
    """Return the request; RefusedError says what to write instead."""
    change = CHANGE.get(asked.verb)
    if change is None:
        raise RefusedError("unknown-verb", f"{asked.verb!r} is none of {', '.join(CHANGE)}")
    try:
        found: Request = msgspec.json.decode(
            asked.payload, type=change.request, dec_hook=decode_hook
        )
        return (
            found
            if asked.by is None
            else msgspec.structs.replace(found, by=in_name_of(asked.by, found.by))
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        example = json.dumps(msgspec.to_builtins(change.example))
        detail = str(error)[:DETAIL_CHARS_MAX]
        raise RefusedError("invalid-request", f"{detail}; write {example}") from error


def accepted(
    asked: QueuedRequest,
    payload: Request,
    now: datetime,
    *,
    node: str = "",
    saga: str = "",
    note: str = "",
) -> RequestAccepted:
    """The event of an accepted request; its ID is the same however often it is answered."""
    return RequestAccepted(
        id=f"accepted-{asked.id}",
        time=now,
        cause=asked.id,
        pool=asked.pool,
        request=payload.request,
        by=payload.by,
        verb=asked.verb,
        node=node,
        saga=saga,
        note=note,
    )


def refused(
    asked: QueuedRequest, payload: Request | None, error: RefusedError, now: datetime
) -> PoolEvent:
    """Return the event of a refusal."""
    request = payload.request if payload else _sender_id(asked.payload)
    by = payload.by if payload else asked.by or ""
    if asked.verb == "scale":
        return ScaleRefused(
            id=f"refused-{asked.id}",
            time=now,
            cause=asked.id,
            pool=asked.pool,
            request=request,
            by=by,
            refusal=error.refusal,
            reason=error.reason,
        )
    return RequestRefused(
        id=f"refused-{asked.id}",
        time=now,
        cause=asked.id,
        pool=asked.pool,
        request=request,
        by=by,
        verb=asked.verb,
        node=payload.node if isinstance(payload, NodeRequest) else "",
        refusal=error.refusal,
        reason=error.reason,
    )


class _Sender(msgspec.Struct):
    """What a request that cannot be read has all the same."""

    request: Annotated[str, msgspec.Meta(max_length=SENDER_ID_CHARS_MAX)] = ""


def _sender_id(payload: bytes) -> str:
    """The sender's own ID of an invalid request, by which it waits for the answer."""
    try:
        return msgspec.json.decode(payload, type=_Sender).request
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def describe_request(asked: QueuedRequest, payload: Request, reason: str) -> str:
    """Say who asked what and why, as a saga's log quotes it."""
    return f"{asked.verb} asked by {payload.by or 'an operator'}" + (
        f": {reason}" if reason else ""
    )
