"""Every saga that began since a time, open or ended: from the entries about the whole of each."""

import asyncio
from collections.abc import Iterable
from datetime import datetime

import msgspec

from schemas import subjects
from schemas.saga_log_entries import (
    WHOLE,
    SagaDone,
    SagaStarted,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
)
from schemas.stored_messages import decode_stored
from schemas.topology import SAGAS
from services.bus.port import Bus, Stored

STATUSES = ("started", "unwinding", "unwound", "stuck", "retried", "done")


class SagaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A saga in one line."""

    saga: str
    kind: str
    pool: str
    node: str = ""
    new_node: str = ""
    status: str = "running"
    """running, unwinding, stuck, done or unwound."""
    started_at: datetime
    ended_at: datetime | None = None
    reason: str = ""
    """Why it was unwound or is stuck, else why it started."""


async def saga_summaries(bus: Bus, pool: str, start: datetime | None) -> list[SagaSummary]:
    """The sagas of one pool, or of all, in the order in which they began."""
    read = await asyncio.gather(
        *(bus.read(SAGAS.name, subjects.saga_step_wildcard(WHOLE, each)) for each in STATUSES)
    )
    found = summaries(stored for each in read for stored in each)
    return [
        each
        for each in found
        if pool in ("", each.pool) and (start is None or each.started_at >= start)
    ]


def summaries(stored: Iterable[Stored]) -> list[SagaSummary]:
    """What the entries say, in the order of the sagas' beginning. Pure."""
    found: dict[str, SagaSummary] = {}
    for each in sorted(stored, key=lambda one: one.sequence):
        entry = decode_stored(each)
        if isinstance(entry, SagaStarted):
            params = entry.params
            found[entry.saga] = SagaSummary(
                saga=entry.saga,
                kind=entry.kind,
                pool=params.pool,
                node=params.node,
                new_node=params.new_node,
                started_at=each.time,
                reason=params.reason,
            )
            continue
        known = found.get(getattr(entry, "saga", ""))
        if known is not None:
            found[known.saga] = _later(known, entry, each.time)
    return list(found.values())


def _later(known: SagaSummary, entry: object, at: datetime) -> SagaSummary:
    change: dict[str, object] = {}
    match entry:
        case SagaDone():
            change = {"status": "done", "ended_at": at}
        case SagaUnwound():
            change = {"status": "unwound", "ended_at": at, "reason": entry.reason or known.reason}
        case SagaStuck():
            change = {"status": "stuck", "reason": entry.reason}
        case SagaUnwinding():
            change = {"status": "unwinding", "reason": entry.reason}
        case _:
            change = {"status": "unwinding" if known.status == "unwinding" else "running"}
    return msgspec.structs.replace(known, **change)
