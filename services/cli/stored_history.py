"""Gathers from the bus what answers about sagas, nodes and pools are made of.

It reads logs and records alone, and asks no service: so it answers when none of them runs.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from schemas import subjects
from schemas.messages import decoder
from schemas.names import SAGA_TOKEN, TOKEN
from schemas.node_events import Repaired
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerOpened, Incident
from schemas.pool_records import PoolRecord, pool_key
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, EVIDENCE, NODES, POOLS, SAGAS
from services.bus.port import Bus, Stored
from services.cli.bus_client import Fleet
from services.cli.text.node_timeline import sagas_about
from services.cli.text.why_text import WhyAnswer, why_node, why_pool, why_saga
from services.primitives.errors import NavarchError
from services.saga.saga_log import fold_stored
from services.saga.saga_state import SagaState

_nodes = decoder(NodeRecord)
_pools = decoder(PoolRecord)


async def saga_log(bus: Bus, saga: str) -> tuple[SagaState, list[Stored]]:
    """A saga and the entries of its log; an error where there is none."""
    if SAGA_TOKEN.match(saga):
        stored = await bus.read(SAGAS.name, subjects.saga_tree(saga))
        state = _folded(stored)
        if state is not None:
            return state, stored
    raise NavarchError(f"there is no saga {saga!r}: `navarch saga list` names the open ones")


def _folded(stored: Iterable[Stored]) -> SagaState | None:
    state: SagaState | None = None
    for each in stored:
        state = fold_stored(state, each)
    return state


async def open_sagas(bus: Bus, pool: str = "") -> list[SagaState]:
    """Every saga that a pool's record holds and that has a log, oldest first."""
    entries = await bus.entries(POOLS, pool_key(pool or "*"))
    names = [saga for each in entries for saga in _pools.decode(each.value).open]
    trees = await asyncio.gather(
        *(bus.read(SAGAS.name, subjects.saga_tree(each)) for each in names)
    )
    states = [state for tree in trees if (state := _folded(tree)) is not None]
    return sorted(states, key=lambda each: (each.started_at, each.saga))


async def why(fleet: Fleet, name: str, at: datetime | None = None) -> WhyAnswer:
    """WhyAnswer for whatever has this name: a node, a pool or a saga, looked for in that order.

    `at`: the time there; None: the time here.
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
        raise NavarchError(
            f"nothing here is called {name!r}, no node, pool or saga: `navarch list --all`, "
            "`navarch status` and `navarch saga list` name what there is"
        ) from None
    return await _saga(bus, state, entries)


async def _node(fleet: Fleet, node: NodeRecord, at: datetime) -> WhyAnswer:
    pool, story, objects, facts = await asyncio.gather(
        fleet.bus.get(POOLS, pool_key(node.pool)),
        fleet.story(node.node),
        fleet.bus.objects(EVIDENCE),
        fleet.bus.read(EVENTS.name, subjects.pool_events_of(node.pool)),
    )
    sagas = sagas_about(node.node, story)
    states = [_folded(_tree(story, saga)) for saga in sagas]
    record = _pools.decode(pool.value) if pool else None
    held = [each for each in facts if _holds_back(each, node.node)]
    found = [state for state in states if state is not None]
    kept = any(each.metadata.get("node") == node.node for each in objects)
    return why_node(node, record, [*story, *held], found, has_evidence=kept, at=at)


def _tree(stored: Iterable[Stored], saga: str) -> list[Stored]:
    parsed = ((each, subjects.parse_saga(each.subject)) for each in stored)
    return [each for each, entry in parsed if entry is not None and entry.saga == saga]


def _holds_back(stored: Stored, node: str) -> bool:
    """Whether an event says that the node waits."""
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
    causes = [each for each in own if params.fault and _led_to(each, params.fault)]
    results = [each for each in facts if getattr(decode_stored(each), "saga", "") == state.saga]
    costs = [each for each in own if _cost(each, state.saga)]
    return why_saga(state, [*entries, *causes, *results, *costs])


def _cost(stored: Stored, saga: str) -> bool:
    """Whether an event says what the fault signature that a saga ended has cost."""
    message = decode_stored(stored)
    return isinstance(message, Repaired) and message.saga == saga


def _led_to(stored: Stored, fault: str) -> bool:
    message = decode_stored(stored)
    return fault in (getattr(message, "id", ""), getattr(message, "fault", ""))
