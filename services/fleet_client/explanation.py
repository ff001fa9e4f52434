"""Reads from the bus what explains a node, pool or saga: logs and records.

It needs no running service.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from schemas import subjects
from schemas.health_records import HealthRecord
from schemas.messages import decoder
from schemas.names import TOKEN
from schemas.node_events import Repaired
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import BreakerOpened, Incident, PoolEvent
from schemas.pool_records import PoolRecord, pool_key
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, EVIDENCE, HEALTH, NODES, POOLS
from services.bus.port import Bus, Stored
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.node_timeline import sagas_about
from services.fleet_client.saga_summaries import no_name, open_sagas, saga_log, state_of
from services.fleet_client.stopped_why import with_stops
from services.fleet_client.why_answer import WhyAnswer
from services.fleet_client.why_text import why_node, why_pool, why_saga
from services.primitives.errors import NavarchError
from services.runtime.stop_watch import StopWatch
from services.saga.saga_state import SagaState

_nodes = decoder(NodeRecord)
_pools = decoder(PoolRecord)
_health = decoder(HealthRecord)


async def why(fleet: FleetClient, name: str, at: datetime | None = None) -> WhyAnswer:
    """Explain the node, pool or saga of this name, looked up in that order.

    `at`: the fleet's current time; None: this machine's.
    """
    at = at or datetime.now(UTC)
    answer, pool = await _explained(fleet, name, at)
    if pool is None:
        return answer
    stops = StopWatch(fleet.bus)
    await stops.read()
    return with_stops(answer, stops.state(), pool, at)


async def _explained(
    fleet: FleetClient, name: str, at: datetime
) -> tuple[WhyAnswer, PoolRecord | None]:
    """Return the answer, and the record of the pool that it is about."""
    bus = fleet.bus
    if TOKEN.match(name):
        nodes = await bus.entries(NODES, f"*.{name}")
        if nodes:
            node = _nodes.decode(nodes[0].value)
            pool = await _record_of(bus, node.pool)
            return await _node(fleet, node, pool, at), pool
        pool = await _record_of(bus, name)
        if pool is not None:
            return await _pool(bus, pool, at), pool
    try:
        state, entries = await saga_log(bus, name)
    except NavarchError:
        raise no_name(name) from None
    return await _saga(bus, state, entries), await _record_of(bus, state.params.pool)


async def _record_of(bus: Bus, pool: str) -> PoolRecord | None:
    entry = await bus.get(POOLS, pool_key(pool))
    record: PoolRecord | None = _pools.decode(entry.value) if entry else None
    return record


async def _node(
    fleet: FleetClient, node: NodeRecord, record: PoolRecord | None, at: datetime
) -> WhyAnswer:
    health, history, objects, facts = await asyncio.gather(
        fleet.bus.get(HEALTH, node_key(node.pool, node.node)),
        fleet.node_history(node.node),
        fleet.bus.objects(EVIDENCE),
        fleet.bus.read(EVENTS.name, subjects.pool_events_of(node.pool)),
    )
    sagas = sagas_about(node.node, history)
    states = [state_of(_tree(history, saga)) for saga in sagas]
    held = [each for each in facts if _names_waiting_node(each, node.node)]
    found = [state for state in states if state is not None]
    kept = any(each.metadata.get("node") == node.node for each in objects)
    seen = _health.decode(health.value).conditions if health else None
    return why_node(
        node, record, [*history, *held], found, conditions=seen, has_evidence=kept, at=at
    )


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
