"""Reads the logs of sagas from the bus.

It needs no running service.
"""

import asyncio
from collections.abc import Iterable

from schemas import subjects
from schemas.messages import decoder
from schemas.names import SAGA_TOKEN
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS, SAGAS
from services.bus.port import Bus, Stored
from services.primitives.errors import NavarchError
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

_pools = decoder(PoolRecord)


async def saga_log(bus: Bus, saga: str) -> tuple[SagaState, list[Stored]]:
    """A saga and the entries of its log; raise NavarchError if there is none."""
    if SAGA_TOKEN.match(saga):
        stored = await bus.read(SAGAS.name, subjects.saga_tree(saga))
        state = state_of(stored)
        if state is not None:
            return state, stored
    raise no_saga(saga)


def no_saga(saga: str) -> NavarchError:
    """That there is no such saga."""
    return NavarchError(f"there is no saga {saga!r}: `navarch saga list` names the open ones")


def no_name(name: str) -> NavarchError:
    """That nothing has this name."""
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
