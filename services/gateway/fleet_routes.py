"""GET: nodes, instances, pools, sagas, offerings, incidents, and why they are as they are."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Final, cast

from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, Parameter, QueryParameter
from msgspec.structs import replace

from schemas.fleet_queries import FleetBudgetView, NodeView, PoolView, Query
from schemas.instance_records import InstanceRecord
from schemas.names import TOKEN
from schemas.node_work import JobNodes
from schemas.offering_records import OfferingsQuery, OfferingView
from schemas.stops import ResumeRequest, StopsAnswer
from schemas.value_limits import NAME_CHARS_MAX
from services.fleet_client.explanation import why
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.fleet_status import fleet_state, read_stops, visible_stops
from services.fleet_client.fleet_use import total
from services.fleet_client.instance_reader import PROVISIONER
from services.fleet_client.node_filter import NodeFilter
from services.fleet_client.node_timeline import TimelineRow, timeline_rows
from services.fleet_client.query_answers import decode_answer, decode_nodes, decode_pools
from services.fleet_client.saga_progress import Progress, progress
from services.fleet_client.saga_summaries import open_sagas, saga_log
from services.fleet_client.service_orders import job_nodes
from services.fleet_client.use_reader import read_use
from services.fleet_client.why_answer import WhyAnswer
from services.gateway.access_tokens import Principal
from services.gateway.change_requests import make_request
from services.gateway.problems import PROBLEMS, ROOT, ProblemError, not_found
from services.gateway.views import (
    FleetStatus,
    IncidentView,
    InstancePage,
    InstanceView,
    NodePage,
    PoolStatus,
    SagaLog,
    incident_views,
    instance_view,
    pool_status,
    status_view,
    stored_object,
    stored_place,
    token_expiry,
)
from services.primitives.errors import AnswerError, BusError, NavarchError

QUERY_MAX: Final = 1_000
INSTANCES_MAX: Final = 500
"""Records of some kilobytes each: a page must fit one message of the bus."""
ROWS_MAX: Final = 10_000

Fleet = NamedDependency[FleetClient]
Caller = NamedDependency[Principal]
Now = NamedDependency[datetime]
Histories = NamedDependency[asyncio.Semaphore]
Limit = Annotated[int, Parameter(ge=1, le=QUERY_MAX, description="Items of one page.")]
Cursor = Annotated[str, Parameter(description="`next` of the page before.", max_length=200)]
Labels = Annotated[
    tuple[str, ...],
    QueryParameter(
        name="label",
        description="`KEY=VALUE` of the node's pool; several must all match.",
        schema_extra={"items": {"type": "string", "pattern": "^[^=]+="}},
    ),
]


def require_whole_fleet(principal: Principal, what: str, remedy: str = "") -> None:
    """Refuse a caller that may see some pools alone."""
    if principal.pools:
        raise ProblemError(
            HTTPStatus.FORBIDDEN,
            f"{principal.name} may see some pools, and {what} the whole fleet's",
            remedy or "use a token of every pool",
        )


async def visible_node(fleet: FleetClient, principal: Principal, name: str) -> NodeView:
    """The node of this name; a problem if there is none that the caller may see."""
    missing = not_found("node", name, f"{ROOT}/nodes?terminated=true")
    if not TOKEN.match(name):
        raise missing
    try:
        view, _ = await fleet.node(name)
    except AnswerError as error:
        raise missing from error
    if not principal.sees(view.pool):
        raise missing
    return view


async def visible_pool(fleet: FleetClient, principal: Principal, name: str) -> PoolView:
    """Return the pool of this name; NavarchError if there is none that the caller may see."""
    if TOKEN.match(name) and principal.sees(name):
        found = decode_pools(await fleet.pages("pools", Query(pool=name)))
        if found:
            return found[0]
    raise not_found("pool", name, f"{ROOT}/pools")


async def visible_saga(fleet: FleetClient, principal: Principal, saga: str) -> SagaLog:
    """Return the saga of this name; NavarchError if there is none that the caller may see."""
    missing = not_found("saga", saga, f"{ROOT}/sagas")
    try:
        state, stored = await saga_log(fleet.bus, saga)
    except BusError:
        raise
    except NavarchError as error:
        raise missing from error
    if not principal.sees(state.params.pool):
        raise missing
    return SagaLog(
        saga=progress(state),
        log=tuple(map(stored_object, stored)),
        stored=tuple(map(stored_place, stored)),
    )


async def labelled_pools(fleet: FleetClient, texts: Sequence[str]) -> frozenset[str] | None:
    """The pools with these labels; None without any: all pools."""
    try:
        return await fleet.pools_labelled(texts) if texts else None
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error), "write ?label=KEY=VALUE") from error


@get(f"{ROOT}/nodes", tags=["nodes"], responses=PROBLEMS)
async def list_nodes(
    fleet: Fleet,
    principal: Caller,
    pool: FromQuery[str] = "",
    provider: FromQuery[str] = "",
    region: FromQuery[str] = "",
    zone: FromQuery[str] = "",
    status: FromQuery[str] = "",
    health: FromQuery[str] = "",
    labels: Labels = (),
    terminated: FromQuery[bool] = False,
    gpus: FromQuery[bool] = False,
    compact: FromQuery[bool] = False,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> NodePage:
    """List nodes, without their faults; with `gpus` also their GPUs and heartbeats.

    `compact`: the answer may leave out what has its default value, which is quicker for thousands.
    """
    wanted = NodeFilter(
        pool=pool,
        provider=provider,
        region=region,
        zone=zone,
        status=status,
        health=health,
        pools=await labelled_pools(fleet, labels),
    )
    query = Query(pool=pool, terminated=terminated, gpus=gpus, after=cursor, limit=limit)
    if not (wanted.selects_some or principal.pools):
        page = await fleet.page("nodes", query)
        # Compact as the pool-manager encoded them: not to decode thousands saves half the time.
        items = page.items if compact else decode_nodes(page.items)
        return NodePage(items=cast("tuple[NodeView, ...]", tuple(items)), next=page.next)
    query = replace(query, limit=QUERY_MAX)
    some, after = await fleet.some_nodes(
        query, lambda node: wanted.matches(node) and principal.sees(node.pool), limit
    )
    return NodePage(items=some, next=after)


@get(f"{ROOT}/jobs/nodes", tags=["nodes"], responses=PROBLEMS)
async def get_job_nodes(
    fleet: Fleet,
    principal: Caller,
    job: Annotated[str, Parameter(min_length=1, max_length=NAME_CHARS_MAX)],
    pool: FromQuery[str] = "",
) -> JobNodes:
    """Get the nodes on which a job runs, as the workload systems say now, and what they do not."""
    pools: tuple[str, ...] = ()
    if pool:
        pools = ((await visible_pool(fleet, principal, pool)).name,)
    elif principal.pools:
        records = await fleet.pool_records()
        pools = tuple(each.name for each in records if principal.sees(each.name))
        if not pools:
            return JobNodes()
    return await job_nodes(fleet, job, pools)


@get(f"{ROOT}/nodes/{{name:str}}", tags=["nodes"], responses=PROBLEMS)
async def get_node(fleet: Fleet, principal: Caller, name: FromPath[str]) -> NodeView:
    """Get a node with its GPUs and its latest faults."""
    return await visible_node(fleet, principal, name)


@get(f"{ROOT}/nodes/{{name:str}}/why", tags=["nodes"], responses=PROBLEMS)
async def get_node_why(
    fleet: Fleet, principal: Caller, histories: Histories, name: FromPath[str]
) -> WhyAnswer:
    """Explain a node: what was observed, decided, tried and refused, and what it waits for."""
    view = await visible_node(fleet, principal, name)
    async with histories:
        return await why(fleet, view.id)


@get(f"{ROOT}/nodes/{{name:str}}/timeline", tags=["nodes"], responses=PROBLEMS)
async def get_node_timeline(
    fleet: Fleet,
    principal: Caller,
    histories: Histories,
    name: FromPath[str],
    limit: Annotated[int, Parameter(ge=1, le=ROWS_MAX)] = 1_000,
) -> list[TimelineRow]:
    """Get what happened to a node, oldest first; `limit` keeps the newest."""
    view = await visible_node(fleet, principal, name)
    async with histories:
        return list(timeline_rows(await fleet.node_history(view.id))[-limit:])


@get(f"{ROOT}/instances", tags=["instances"], responses=PROBLEMS)
async def list_instances(
    fleet: Fleet,
    principal: Caller,
    pool: FromQuery[str] = "",
    status: FromQuery[str] = "",
    terminated: FromQuery[bool] = False,
    limit: Annotated[int, Parameter(ge=1, le=INSTANCES_MAX)] = 100,
    cursor: Cursor = "",
) -> InstancePage:
    """List instances, with what they cost."""
    query = Query(pool=pool, state=status, terminated=terminated, after=cursor, limit=limit)
    found: list[InstanceView] = []
    async for page in fleet.each_page("instances", query, who=PROVISIONER):
        for raw in page.items:
            record = decode_answer(InstanceRecord, raw, "instances", PROVISIONER)
            if principal.sees(record.pool):
                found.append(instance_view(record))
            if len(found) == limit:
                after = f"{record.pool}.{record.instance}"
                return InstancePage(items=tuple(found), next=after)
    return InstancePage(items=tuple(found))


@get(f"{ROOT}/pools", tags=["pools"], responses=PROBLEMS)
async def list_pools(fleet: Fleet, principal: Caller) -> list[PoolView]:
    """List the pools, by name."""
    found = decode_pools(await fleet.pages("pools", Query()))
    seen = (each for each in found if principal.sees(each.name))
    return sorted(seen, key=lambda each: each.name)


@get(f"{ROOT}/pools/{{name:str}}", tags=["pools"], responses=PROBLEMS)
async def get_pool(fleet: Fleet, principal: Caller, name: FromPath[str]) -> PoolView:
    """Get a pool: sizes, breaker, budget."""
    return await visible_pool(fleet, principal, name)


@get(f"{ROOT}/pools/{{name:str}}/status", tags=["pools"], responses=PROBLEMS)
async def get_pool_status(
    fleet: Fleet, principal: Caller, now: Now, name: FromPath[str]
) -> PoolStatus:
    """Get a pool in numbers."""
    pool = await visible_pool(fleet, principal, name)
    nodes = await fleet.nodes(Query(pool=pool.name))
    sagas = [progress(each) for each in await open_sagas(fleet.bus, pool.name)]
    use, _ = await read_use(fleet.bus, pool.name, now)
    return pool_status(pool, nodes, sagas, total(use.rows()).utilization_percent)


@get(f"{ROOT}/pools/{{name:str}}/why", tags=["pools"], responses=PROBLEMS)
async def get_pool_why(
    fleet: Fleet, principal: Caller, histories: Histories, name: FromPath[str]
) -> WhyAnswer:
    """Explain a pool: what it waits for, and why."""
    pool = await visible_pool(fleet, principal, name)
    async with histories:
        return await why(fleet, pool.name)


@get(f"{ROOT}/sagas", tags=["sagas"], responses=PROBLEMS)
async def list_sagas(fleet: Fleet, principal: Caller, pool: FromQuery[str] = "") -> list[Progress]:
    """List the open sagas, oldest first, and what each waits for."""
    if pool:
        await visible_pool(fleet, principal, pool)
    found = [progress(each) for each in await open_sagas(fleet.bus, pool)]
    return [each for each in found if principal.sees(each.pool)]


@get(f"{ROOT}/sagas/{{saga:str}}", tags=["sagas"], responses=PROBLEMS)
async def get_saga(fleet: Fleet, principal: Caller, saga: FromPath[str]) -> SagaLog:
    """Get a saga, open or ended, with its log."""
    return await visible_saga(fleet, principal, saga)


@get(f"{ROOT}/sagas/{{saga:str}}/why", tags=["sagas"], responses=PROBLEMS)
async def get_saga_why(
    fleet: Fleet, principal: Caller, histories: Histories, saga: FromPath[str]
) -> WhyAnswer:
    """Explain a saga: what caused it, what it did, and what it waits for."""
    found = await visible_saga(fleet, principal, saga)
    async with histories:
        return await why(fleet, found.saga.saga)


@get(f"{ROOT}/offerings", tags=["offerings"], responses=PROBLEMS)
async def list_offerings(
    fleet: Fleet,
    principal: Caller,
    pool: FromQuery[str] = "",
    provider: FromQuery[str] = "",
    instance_type: FromQuery[str] = "",
    everything: FromQuery[bool] = False,
) -> list[OfferingView]:
    """List what can be launched, at what price, and what is exhausted."""
    if not pool:
        require_whole_fleet(principal, "offerings are", "name one of them with ?pool=")
    else:
        await visible_pool(fleet, principal, pool)
    query = OfferingsQuery(
        pool=pool, provider=provider, instance_type=instance_type, everything=everything
    )
    items = await fleet.pages("offerings", query, who=PROVISIONER)
    return [decode_answer(OfferingView, each, "offerings", PROVISIONER) for each in items]


@get(f"{ROOT}/incidents", tags=["incidents"], responses=PROBLEMS)
async def list_incidents(fleet: Fleet, principal: Caller) -> list[IncidentView]:
    """List the open incidents of all pools."""
    pools = [each for each in await fleet.pool_records() if principal.sees(each.name)]
    return [incident for pool in pools for incident in incident_views(pool)]


@get(f"{ROOT}/status", tags=["pools"], responses=PROBLEMS)
async def get_status(fleet: Fleet, principal: Caller) -> FleetStatus:
    """Get the pools, the open sagas in short, and what fails, as `navarch status` shows it."""
    state = await fleet_state(fleet, principal.sees)
    return status_view(state, token_expiry(principal.expires))


@get(f"{ROOT}/budget", tags=["pools"], responses=PROBLEMS)
async def get_budget(fleet: Fleet, principal: Caller) -> FleetBudgetView:
    """Get the fleet's budget, and what is used of it."""
    require_whole_fleet(principal, "this budget is", f"GET {ROOT}/pools has the budget of each")
    return await fleet.budget()


@get(f"{ROOT}/stops", tags=["pools"], responses=PROBLEMS)
async def get_stops(
    fleet: Fleet, principal: Caller, pool: FromQuery[str] = "", provider: FromQuery[str] = ""
) -> StopsAnswer:
    """Get every stop, and what would begin if that of a pool, a provider or the fleet ended."""
    scope = make_request(ResumeRequest, pool=pool, provider=provider)
    return visible_stops(await read_stops(fleet, scope), principal.sees)


@get(f"{ROOT}/caller", tags=["caller"], responses=PROBLEMS)
async def get_caller(principal: Caller) -> Principal:
    """Get the caller's own name, role and pools."""
    return principal


FLEET_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *(list_nodes, get_job_nodes, get_node, get_node_why, get_node_timeline, list_instances),
    *(list_pools, get_pool, get_pool_status, get_pool_why, list_sagas, get_saga),
    *(get_saga_why, list_offerings, list_incidents, get_status, get_budget, get_stops),
    get_caller,
)
