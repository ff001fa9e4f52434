"""Finds requests that come too late: a later one was carried out, or they waited too long. Pure.

The queue keeps the order of requests, their answering does not: one that must be tried again, or
that a killed replica held, comes back after its successors. The last request must win,
so a pool's record remembers the requests that were carried out, each with what it is about.
"""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from schemas.operator_requests import (
    BreakerRequest,
    CompletedRequest,
    HoldRequest,
    NodeRequest,
    Request,
    ScaleRequest,
)
from schemas.pool_records import PoolRecord
from services.pool_manager.requests.request_replies import QueuedRequest, RefusedError
from services.saga.definitions import ON_REQUEST

REMEMBERED_MAX: Final = 64
"""Requests of one pool. What is tried again comes back within half a minute, as a rule."""
WAIT_MAX: Final = timedelta(hours=1)
"""How long a request that ends work may wait for its answer; the stream keeps it for a day."""
ENDS_WORK: Final = frozenset(ON_REQUEST) - {"cordon", "uncordon"}
"""Verbs of requests that take the work of a node away."""
POOL: Final = "pool"
"""What `apply` and `remove` are about."""


def about(verb: str, payload: Request) -> str:
    """Return what a request says something about; empty where no order of requests matters."""
    match payload:
        case ScaleRequest():
            return "size"
        case BreakerRequest():
            return "breaker"
        case HoldRequest():
            return f"hold {payload.node}"
        case NodeRequest():
            return f"hold {payload.node}" if verb == "release" else f"node {payload.node}"
        case _:
            return ""


def known(asked: QueuedRequest, record: PoolRecord) -> CompletedRequest | None:
    """Return what is remembered of it; it is answered then, perhaps by another replica."""
    return next((each for each in record.completed_requests if _is(asked, each)), None)


def completed_requests(asked: QueuedRequest, record: PoolRecord) -> bool:
    """Return whether a request is remembered."""
    return known(asked, record) is not None


def later(asked: QueuedRequest, what: str, record: PoolRecord) -> CompletedRequest | None:
    """Return the last request about the same that was carried out, where that is a later one."""
    same = (each for each in record.completed_requests if what and each.about == what)
    last = max(same, key=lambda each: each.sequence, default=None)
    return last if last is not None and is_later(last, asked) else None


def is_later(than: CompletedRequest, asked: QueuedRequest) -> bool:
    """Return whether one was stored after `asked`, by both its number and its time.

    Numbers start again with a new stream, and times run back where another server leads.
    """
    return than.sequence > asked.sequence and than.at >= asked.time


def check_wait(asked: QueuedRequest, record: PoolRecord, now: datetime) -> None:
    """Refuse a request that ends work, and was asked too long ago to be begun now.

    Requests wait while no pool-manager runs; by then the node may be another's, or well again. One
    that was carried out and is remembered has been answered before this.
    """
    if asked.verb not in ENDS_WORK or now - asked.time <= WAIT_MAX:
        return
    if not any(each.cause == asked.id for each in record.open.values()):
        raise RefusedError(
            "superseded",
            f"it was asked at {asked.time:%Y-%m-%d %H:%M:%S} UTC, more than an hour before it "
            "could be answered; ask again if you still want it",
        )


def superseded_reason(last: CompletedRequest) -> str:
    """Return why a request is refused, in a sentence."""
    return (
        f"a later {last.verb} ({last.at:%H:%M:%S} UTC) was carried out before this could be; "
        "ask again if you still want it"
    )


def remember(asked: QueuedRequest, what: str, record: PoolRecord, saga: str = "") -> PoolRecord:
    """Return the record with this request remembered, as far back as there is room.

    `saga`: what it has begun.
    """
    if not what or completed_requests(asked, record):
        return record
    fresh = CompletedRequest(
        sequence=asked.sequence, at=asked.time, verb=asked.verb, about=what, saga=saga
    )
    kept = sorted((*record.completed_requests, fresh), key=lambda each: (each.at, each.sequence))
    return msgspec.structs.replace(record, completed_requests=tuple(kept[-REMEMBERED_MAX:]))


def _is(asked: QueuedRequest, each: CompletedRequest) -> bool:
    return (each.sequence, each.at) == (asked.sequence, asked.time)
