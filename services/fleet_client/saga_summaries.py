"""Sagas from their logs: one, the open ones, and every one that began since a time."""

import asyncio
from collections.abc import Iterable
from datetime import datetime

import msgspec

from schemas import subjects
from schemas.messages import decoder
from schemas.names import SAGA_TOKEN
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_log_entries import (
    WHOLE,
    SagaDone,
    SagaStarted,
    SagaStuck,
    SagaUnwinding,
    SagaUnwound,
)
from schemas.stored_messages import decode_stored
from schemas.topology import POOLS, SAGAS
from services.bus.port import Bus, Stored
from services.primitives.errors import NavarchError
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

_pools = decoder(PoolRecord)
STATUSES = ("started", "unwinding", "unwound", "stuck", "retried", "done")


async def saga_log(bus: Bus, saga: str) -> tuple[SagaState, list[Stored]]:
    """A saga and the entries of its log; raise NavarchError if there is none."""
    if SAGA_TOKEN.match(saga):
        stored = await bus.read(SAGAS.name, subjects.saga_tree(saga))
        state = state_of(stored)
        if state is not None:
            return state, stored
    raise no_saga(saga)


def no_saga(saga: str) -> NavarchError:
    """Return the error that there is no such saga."""
    return NavarchError(f"there is no saga {saga!r}: `navarch saga list` names the open ones")


def no_name(name: str) -> NavarchError:
    """Return the error that nothing has this name."""
    return NavarchError(
        f"there is no node, pool or saga {name!r}: `navarch list --all`, `navarch status` and "
        "`navarch saga list` list them"
    )


def state_of(stored: Iterable[Stored]) -> SagaState | None:
    """The state of the saga that these are the entries of; None: they begin none."""
    state: SagaState | None = None
    for each in stored:
        state = fold_stored(state, each)
    return state


async def open_trees(bus: Bus, pool: str = "") -> list[list[Stored]]:
    """The log of each saga that a pool's record holds."""
    entries = await bus.entries(POOLS, pool_key(pool or "*"))
    names = [saga for each in entries for saga in _pools.decode(each.value).open]
    return await asyncio.gather(*(bus.read(SAGAS.name, subjects.saga_tree(each)) for each in names))


async def open_sagas(bus: Bus, pool: str = "") -> list[SagaState]:
    """Every saga that a pool's record holds and that has a log, oldest first."""
    trees = await open_trees(bus, pool)
    states = [state for tree in trees if (state := state_of(tree)) is not None]
    return sorted(states, key=lambda each: (each.started_at, each.saga))


class SagaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a saga in one line."""

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
    """Return what the entries say, in the order of the sagas' beginning. Pure."""
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
