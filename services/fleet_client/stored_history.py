"""Reads from the bus what `why` and `saga` explain: logs and records.

It needs no running service.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from schemas import subjects
from schemas.messages import decoder
from schemas.names import SAGA_TOKEN, TOKEN
from schemas.node_events import Repaired
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerOpened, Incident, PoolEvent
from schemas.pool_records import PoolRecord, pool_key
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, EVIDENCE, NODES, POOLS, SAGAS
from services.bus.port import Bus, Stored
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.node_timeline import sagas_about
from services.fleet_client.why_text import WhyAnswer, why_node, why_pool, why_saga
from services.primitives.errors import NavarchError
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

_nodes = decoder(NodeRecord)
_pools = decoder(PoolRecord)


async def saga_log(bus: Bus, saga: str) -> tuple[SagaState, list[Stored]]:
    """A saga and the entries of its log; raise NavarchError if there is none."""
    if SAGA_TOKEN.match(saga):
        stored = await bus.read(SAGAS.name, subjects.saga_tree(saga))
        state = _fold(stored)
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


def _fold(stored: Iterable[Stored]) -> SagaState | None:
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
    states = [state for tree in trees if (state := _fold(tree)) is not None]
    return sorted(states, key=lambda each: (each.started_at, each.saga))


async def why(fleet: FleetClient, name: str, at: datetime | None = None) -> WhyAnswer:
    """Explain the node, pool or saga of this name, looked up in that order.

    `at`: the fleet's current time; None: this machine's.
    """
    bus, at = fleet.bus, at or datetime.now(UTC)
    if TOKEN.match(name):
        nodes = await bus.entries(NODES, f"*.{name}")
        if nodes:
            return await _node(fleet, _nodes.decode(nodes[0].value), at)
        pool = await bus.get(POOLS, pool_key(name))
        if pool is not None:
            return await _pool(bus, _pools.decode(pool.value), at)
    try:
        state, entries = await saga_log(bus, name)
    except NavarchError:
        raise no_name(name) from None
    return await _saga(bus, state, entries)


async def _node(fleet: FleetClient, node: NodeRecord, at: datetime) -> WhyAnswer:
    pool, history, objects, facts = await asyncio.gather(
        fleet.bus.get(POOLS, pool_key(node.pool)),
        fleet.node_history(node.node),
        fleet.bus.objects(EVIDENCE),
        fleet.bus.read(EVENTS.name, subjects.pool_events_of(node.pool)),
    )
    sagas = sagas_about(node.node, history)
    states = [_fold(_tree(history, saga)) for saga in sagas]
    record = _pools.decode(pool.value) if pool else None
    held = [each for each in facts if _names_waiting_node(each, node.node)]
    found = [state for state in states if state is not None]
    kept = any(each.metadata.get("node") == node.node for each in objects)
    return why_node(node, record, [*history, *held], found, has_evidence=kept, at=at)


def _tree(stored: Iterable[Stored], saga: str) -> list[Stored]:
    parsed = ((each, subjects.parse_saga(each.subject)) for each in stored)
    return [each for each, entry in parsed if entry is not None and entry.saga == saga]


def _names_waiting_node(stored: Stored, node: str) -> bool:
    """Whether the event of a breaker or incident names the node."""
    match decode_stored(stored):
        case BreakerOpened(waiting=waiting):
            return node in waiting
        case Incident(named=named):
            return node in named
        case _:
            return False


async def _pool(bus: Bus, pool: PoolRecord, at: datetime) -> WhyAnswer:
    nodes, facts, sagas = await asyncio.gather(
        bus.entries(NODES, f"{pool.name}.*"),
        bus.read(EVENTS.name, subjects.pool_events_of(pool.name)),
        open_sagas(bus, pool.name),
    )
    return why_pool(pool, [_nodes.decode(each.value) for each in nodes], facts, sagas, at=at)


async def _saga(bus: Bus, state: SagaState, entries: list[Stored]) -> WhyAnswer:
    params = state.params
    own, facts = await asyncio.gather(
        bus.read(EVENTS.name, subjects.node_events_of(params.pool, params.node or params.new_node)),
        bus.read(EVENTS.name, subjects.pool_events_of(params.pool)),
    )

    def is_cause_or_result(stored: Stored) -> bool:
        message = decode_stored(stored)
        if isinstance(message, PoolEvent | Repaired):
            return getattr(message, "saga", "") == state.saga
        named = (getattr(message, "id", ""), getattr(message, "fault", ""))
        return bool(params.fault) and params.fault in named

    return why_saga(state, [*entries, *filter(is_cause_or_result, [*own, *facts])])
