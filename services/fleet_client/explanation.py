"""Reads what explains a node, pool or saga: logs, records, and the answer about the present.

The pool-manager answers about the present from memory. Where it does not answer, the last answer
that it stored is shown with its age, so that an explanation needs no running service.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from schemas import subjects
from schemas.fleet_queries import Query
from schemas.health_records import HealthRecord
from schemas.messages import decoder
from schemas.names import TOKEN
from schemas.node_events import Repaired
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import BreakerOpened, Incident, PoolEvent
from schemas.pool_records import PoolRecord, pool_key
from schemas.present_answers import Block, BlockedNode, PresentAnswer
from schemas.stored_messages import decode_stored
from schemas.time_text import utc_seconds
from schemas.topology import EVENTS, EVIDENCE, HEALTH, NODES, POOLS
from services.bus.port import Stored
from services.fleet_client.fleet_client import FleetClient, NoReplyError
from services.fleet_client.node_timeline import sagas_about
from services.fleet_client.query_answers import decode_answer
from services.fleet_client.saga_summaries import no_name, open_sagas, saga_log, state_of
from services.fleet_client.stored_answers import stored_answer
from services.fleet_client.why_answer import WhyAnswer
from services.fleet_client.why_text import why_node, why_pool, why_saga
from services.operator_text.quantities import rough_time
from services.primitives.errors import AnswerError, NavarchError
from services.saga.saga_state import SagaState

_nodes = decoder(NodeRecord)
_pools = decoder(PoolRecord)
_health = decoder(HealthRecord)


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
            return await _pool(fleet, _pools.decode(pool.value), at)
    try:
        state, entries = await saga_log(bus, name)
    except NavarchError:
        raise no_name(name) from None
    return await _saga(fleet, state, entries, at)


async def _node(fleet: FleetClient, node: NodeRecord, at: datetime) -> WhyAnswer:
    (present, away), health, history, objects, facts = await asyncio.gather(
        _present(fleet, Query(pool=node.pool, node=node.node), at),
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
        node,
        present.of(node.node) if present else BlockedNode(),
        [*history, *held],
        found,
        conditions=seen,
        has_evidence=kept,
        at=at,
        away=away,
    )


async def _present(
    fleet: FleetClient, query: Query, at: datetime
) -> tuple[PresentAnswer | None, str]:
    """Return what waits, and nothing or who does not answer and how old the stored answer is."""
    try:
        return decode_answer(PresentAnswer, await fleet.query("why", query), "why"), ""
    except AnswerError as error:
        return None, f"The pool-manager cannot explain it: {error}."
    except NoReplyError:
        found = await stored_answer(fleet.bus, query.pool)
    who = "The pool-manager does not answer (`nats micro ls` lists who does)"
    if found is None:
        return None, f"{who}, and has stored no answer about pool {query.pool}."
    age = rough_time((at - found.at).total_seconds())
    return found, f"{who}: what it waits for is as stored {age} ago, at {utc_seconds(found.at)}."


async def _stops(fleet: FleetClient, state: SagaState, at: datetime) -> tuple[Block, ...]:
    """Return what operators have stopped in the pool of a saga; nothing once it has ended."""
    if state.ended:
        return ()
    present, _ = await _present(fleet, Query(pool=state.params.pool), at)
    return tuple(each for each in present.blocked if each.gate == "stop") if present else ()


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


async def _pool(fleet: FleetClient, pool: PoolRecord, at: datetime) -> WhyAnswer:
    bus = fleet.bus
    (present, away), nodes, facts, sagas = await asyncio.gather(
        _present(fleet, Query(pool=pool.name), at),
        bus.entries(NODES, f"{pool.name}.*"),
        bus.read(EVENTS.name, subjects.pool_events_of(pool.name)),
        open_sagas(bus, pool.name),
    )
    found = [_nodes.decode(each.value) for each in nodes]
    return why_pool(pool, found, present, facts, sagas, away=away)


async def _saga(
    fleet: FleetClient, state: SagaState, entries: list[Stored], at: datetime
) -> WhyAnswer:
    params, bus = state.params, fleet.bus
    stops, own, facts = await asyncio.gather(
        _stops(fleet, state, at),
        bus.read(EVENTS.name, subjects.node_events_of(params.pool, params.node or params.new_node)),
        bus.read(EVENTS.name, subjects.pool_events_of(params.pool)),
    )

    def is_cause_or_result(stored: Stored) -> bool:
        message = decode_stored(stored)
        if isinstance(message, PoolEvent | Repaired):
            return getattr(message, "saga", "") == state.saga
        named = (getattr(message, "id", ""), getattr(message, "fault", ""))
        return bool(params.fault) and params.fault in named

    return why_saga(state, [*entries, *filter(is_cause_or_result, [*own, *facts])], stops)
