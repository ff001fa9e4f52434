"""Tools that read: nodes, pools, sagas, events, offerings, and why things are as they are."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from schemas.alert_records import Alert
from schemas.fleet_queries import NodeView, PoolView, Query
from schemas.messages import decoder
from schemas.node_records import NodeRecord
from schemas.offering_records import OfferingsQuery, OfferingView
from schemas.stops import ResumeRequest, StopsAnswer
from schemas.topology import EVENTS, NODES
from services.bus.port import Stored
from services.fleet_client.cost_report import CostReport
from services.fleet_client.explanation import why
from services.fleet_client.fleet_client import PAGE_NODES
from services.fleet_client.fleet_status import read_stops, visible_stops
from services.fleet_client.instance_reader import PROVISIONER, fleet_cost
from services.fleet_client.node_filter import NodeFilter, time_since
from services.fleet_client.node_timeline import TimelineRow, timeline_rows
from services.fleet_client.query_answers import decode_answer, decode_pools
from services.fleet_client.repair_report import RepairReport, repair_report
from services.fleet_client.saga_progress import Progress, progress
from services.fleet_client.saga_summaries import open_sagas, saga_log
from services.fleet_client.service_orders import open_alerts
from services.fleet_client.stored_events import event_filters, is_about, stored_batches
from services.fleet_client.why_answer import WhyAnswer
from services.mcp_server.tool_arguments import (
    AnyName,
    EventSelection,
    NodeName,
    NodeSelection,
    OfferingSelection,
    PoolSelection,
    ReportPeriod,
    TimelineSelection,
)
from services.mcp_server.tool_caller import ToolAccess
from services.primitives.errors import NavarchError

EVENT_BATCHES_MAX: Final = 50
"""Of some thousand events each, that one call reads."""
_records = decoder(NodeRecord)


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds some nodes, without their GPUs and faults."""

    nodes: tuple[NodeView, ...]
    next: str = ""
    """The `cursor` of what follows; empty: that was all."""


class EventAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Holds some events, oldest first."""

    events: tuple[TimelineRow, ...]
    older: int = 0
    """How many more there are since that time, before these."""
    complete: bool = True
    """False: too many to read; later ones are missing. Ask for a shorter time, a pool or a node."""


class FleetGlance(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the fleet at a glance."""

    pools: tuple[PoolView, ...]
    sagas: tuple[Progress, ...]
    """What is in progress."""


async def list_nodes(access: ToolAccess, asked: NodeSelection) -> NodeAnswer:
    """List nodes with health, state, place and reason; without their GPUs and faults."""
    await _check_pool(access, asked.pool)
    wanted = NodeFilter(
        pool=asked.pool,
        provider=asked.provider,
        region=asked.region,
        zone=asked.zone,
        status=asked.status,
        health=asked.health,
    )
    ended = asked.status == "terminated"
    query = Query(pool=asked.pool, after=asked.cursor, terminated=ended, limit=PAGE_NODES)
    nodes, after = await access.fleet.some_nodes(
        query, lambda node: wanted.matches(node) and access.caller.sees(node.pool), asked.limit
    )
    return NodeAnswer(nodes=nodes, next=after)


async def get_node(access: ToolAccess, asked: NodeName) -> NodeView:
    """Get one node with its GPUs and its latest faults."""
    return await visible_node(access, asked.node)


async def list_pools(access: ToolAccess, _: msgspec.Struct) -> tuple[PoolView, ...]:
    """List the pools: sizes, health, breaker, budget, sagas in progress."""
    found = decode_pools(await access.fleet.pages("pools", Query()))
    return tuple(each for each in found if access.caller.sees(each.name))


async def list_stops(access: ToolAccess, _: msgspec.Struct) -> StopsAnswer:
    """List what operators have stopped, and what waits for it. A stop is no fault of the fleet."""
    return visible_stops(await read_stops(access.fleet, ResumeRequest()), access.caller.sees)


async def explain(access: ToolAccess, asked: AnyName) -> WhyAnswer:
    """Explain a node, pool or saga: what was observed, decided and tried; what it waits for."""
    async with access.histories:
        if not access.caller.sees("") and not access.caller.sees(await _pool_of(access, asked)):
            raise _nothing("node, pool or saga", asked.name)
        return await why(access.fleet, asked.name, access.now())


async def timeline(access: ToolAccess, asked: TimelineSelection) -> EventAnswer:
    """Get what happened to one node, with milliseconds."""
    view = await visible_node(access, asked.node)
    async with access.histories:
        rows = timeline_rows(await access.fleet.node_history(view.id))
    kept = rows[-asked.limit :]
    return EventAnswer(events=kept, older=len(rows) - len(kept))


async def events(access: ToolAccess, asked: EventSelection) -> EventAnswer:
    """List events of the fleet, a pool or a node. They are kept for 30 days."""
    await _check_scope(access, asked.pool)
    start = _start(asked.since, access.now())
    filters = event_filters(asked.pool, asked.node)
    kept: deque[Stored] = deque(maxlen=asked.limit)
    count, number = 0, 0
    async with access.histories:
        async for batch in stored_batches(access.fleet.bus, EVENTS.name, filters, start):
            found = [each for each in batch if is_about(each, asked.node)]
            count, number = count + len(found), number + 1
            kept.extend(found)
            if number == EVENT_BATCHES_MAX:
                break
    return EventAnswer(
        events=timeline_rows(kept), older=count - len(kept), complete=number < EVENT_BATCHES_MAX
    )


async def list_sagas(access: ToolAccess, asked: PoolSelection) -> tuple[Progress, ...]:
    """List what is in progress: each saga's step, and what it waits for."""
    await _check_pool(access, asked.pool)
    found = [progress(each) for each in await open_sagas(access.fleet.bus, asked.pool)]
    return tuple(each for each in found if access.caller.sees(each.pool))


async def list_offerings(access: ToolAccess, asked: OfferingSelection) -> Sequence[OfferingView]:
    """List what can be launched, at what price, and what is exhausted since when."""
    await _check_scope(access, asked.pool)
    query = OfferingsQuery(
        pool=asked.pool, provider=asked.provider, instance_type=asked.instance_type
    )
    items = await access.fleet.pages("offerings", query, who=PROVISIONER)
    return [decode_answer(OfferingView, each, "offerings", PROVISIONER) for each in items]


async def report(access: ToolAccess, asked: ReportPeriod) -> RepairReport:
    """Count unhealthy nodes and lost GPU-hours by pool and fault, with the times to recover."""
    await _check_scope(access, asked.pool)
    now = access.now()
    async with access.histories:
        return await repair_report(access.fleet.bus, _start(asked.since, now), now, asked.pool)


async def cost(access: ToolAccess, asked: ReportPeriod) -> CostReport:
    """Sum what instances cost, by day and pool; seven days at most."""
    await _check_pool(access, asked.pool)
    now = access.now()
    start = _start(asked.since, now)
    return await fleet_cost(access.fleet, asked.pool, start, now, "", access.caller.sees)


async def list_alerts(access: ToolAccess, asked: PoolSelection) -> tuple[Alert, ...]:
    """List the open alerts, the most severe first, and who has taken on each."""
    await _check_pool(access, asked.pool)
    alerts = [each.opened for each in await open_alerts(access.fleet.bus) if each.opened]
    found = (each for each in alerts if asked.pool in ("", each.pool))
    return tuple(each for each in found if access.caller.sees(each.pool))


async def fleet_summary(access: ToolAccess) -> FleetGlance:
    """The pools, and what is in progress."""
    pools, sagas = await asyncio.gather(
        list_pools(access, PoolSelection()), list_sagas(access, PoolSelection())
    )
    return FleetGlance(pools=pools, sagas=sagas)


async def visible_node(access: ToolAccess, name: str) -> NodeView:
    """The node of this name; NavarchError if there is none that the caller may see."""
    view, _ = await access.fleet.node(name)
    if not access.caller.sees(view.pool):
        raise _nothing("node", name)
    return view


async def visible_pool(access: ToolAccess, name: str) -> PoolView:
    """Return the pool of this name; NavarchError if there is none that the caller may see."""
    await _check_pool(access, name)
    found = decode_pools(await access.fleet.pages("pools", Query(pool=name)))
    if not found:
        raise _nothing("pool", name)
    return found[0]


async def _check_pool(access: ToolAccess, name: str) -> None:
    if name and not access.caller.sees(name):
        raise _nothing("pool", name)
    await access.fleet.check_pool(name)


async def _check_scope(access: ToolAccess, pool: str) -> None:
    """The same; and the whole fleet is for callers that may see all of it."""
    await _check_pool(access, pool)
    if pool == "" and not access.caller.sees(""):
        raise NavarchError("this caller may see some pools only: name one of them with `pool`")


async def _pool_of(access: ToolAccess, asked: AnyName) -> str:
    nodes = await access.fleet.bus.entries(NODES, f"*.{asked.name}")
    if nodes:
        record: NodeRecord = _records.decode(nodes[0].value)
        return record.pool
    if access.caller.sees(asked.name):
        return asked.name
    state, _ = await saga_log(access.fleet.bus, asked.name)
    return state.params.pool


def _nothing(what: str, name: str) -> NavarchError:
    return NavarchError(f"there is no {what} {name!r}")


def _start(since: str, now: datetime) -> datetime:
    try:
        found = time_since(since, now)
    except ValueError as error:
        raise NavarchError(f"since: {error}") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
