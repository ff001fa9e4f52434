"""GET: what happened and was measured, as it is kept, and what a saga and a pool do now."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Final

from litestar import get
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, HeaderParameter, Parameter
from litestar.response import Stream
from litestar.response.sse import ServerSentEventMessage

from schemas.alert_records import OpenAlertRecord
from schemas.duration import TEXT_PATTERN
from schemas.evidence_bundles import EvidenceBundle, KeptEvidence
from schemas.fleet_queries import PolicyView, Query
from schemas.hardware_denylist import HardwareRecord
from schemas.messages import encode
from schemas.saga_log_entries import WHOLE
from schemas.topology import EVIDENCE, SAGAS
from services.bus.port import Stored
from services.fleet_client.cost_report import SPAN_MAX, CostReport, PoolHistory, pool_history
from services.fleet_client.evidence_lookup import find_evidence, kept_evidence
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.fleet_use import GpuReadings, UseRow, UtilizationHistory
from services.fleet_client.instance_reader import fleet_cost, read_instances
from services.fleet_client.node_filter import time_since
from services.fleet_client.pool_watch import pool_changes
from services.fleet_client.query_answers import decode_answer
from services.fleet_client.repair_report import RepairReport, repair_report, seen_report
from services.fleet_client.saga_summaries import SagaSummary, saga_summaries
from services.fleet_client.service_orders import open_alerts
from services.fleet_client.use_reader import node_samples, read_use, read_utilization
from services.gateway.event_streams import RESET, RESET_DATA, EventStreams
from services.gateway.fleet_routes import (
    ROWS_MAX,
    Caller,
    Fleet,
    Histories,
    Now,
    require_whole_fleet,
    visible_node,
    visible_pool,
    visible_saga,
)
from services.gateway.problems import PROBLEMS, ROOT, ProblemError, not_found
from services.gateway.views import (
    STREAM_TYPE,
    pool_change_view,
    saga_entry_view,
)
from services.primitives.errors import BusError, NavarchError

SEQUENCE_MAX: Final = 2**53 - 1
"""Which JSON's numbers hold exactly in every language."""

Since = Annotated[
    str,
    Parameter(
        description="`10m`, `2h`, or a time.",
        schema_extra={"anyOf": [{"pattern": TEXT_PATTERN}, {"format": "date-time"}]},
    ),
]
OVER: Final = tuple(f".{WHOLE}.{status}" for status in ("done", "unwound"))
"""How the subjects of the entries end that nothing follows."""
Streams = NamedDependency[EventStreams]
After = Annotated[
    int | None, Parameter(ge=0, le=SEQUENCE_MAX, description="`sequence` of the last one seen.")
]
LastEventId = Annotated[int | None, HeaderParameter(name="Last-Event-ID", ge=0, le=SEQUENCE_MAX)]
SSE_HEADERS: Final = {"X-Accel-Buffering": "no"}
"""nginx would collect events before it sends them."""


def start_of(since: str, now: datetime) -> datetime:
    """The time that a caller names; a problem where it is none."""
    try:
        found = time_since(since, now)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"since: {error}", "write ?since=2h") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@get(
    f"{ROOT}/sagas/{{saga:str}}/stream",
    tags=["sagas"],
    responses=PROBLEMS,
    media_type=STREAM_TYPE,
)
async def stream_saga(
    fleet: Fleet,
    streams: Streams,
    principal: Caller,
    saga: FromPath[str],
    after: After = None,
    last_event_id: LastEventId = None,
) -> Stream:
    """Stream a saga's entries until it has ended, as server-sent events; it can be resumed."""
    found = await visible_saga(fleet, principal, saga)
    start = (last_event_id if last_event_id is not None else after) or 0
    last = found.stored[-1]
    is_over = last.subject.endswith(OVER) and last.sequence <= start
    messages = _saga_messages(fleet, found.saga.saga, start, is_over=is_over)
    return Stream(streams.carry(principal, messages), media_type=STREAM_TYPE, headers=SSE_HEADERS)


@get(
    f"{ROOT}/pools/{{name:str}}/stream",
    tags=["pools"],
    responses=PROBLEMS,
    media_type=STREAM_TYPE,
)
async def stream_pool(
    fleet: Fleet, streams: Streams, principal: Caller, name: FromPath[str]
) -> Stream:
    """Stream a pool's nodes and the logs of its sagas until it is removed, as server-sent events.

    Each connection begins with the whole.
    """
    pool = await visible_pool(fleet, principal, name)
    messages = _pool_messages(fleet, pool.name)
    return Stream(streams.carry(principal, messages), media_type=STREAM_TYPE, headers=SSE_HEADERS)


STREAM_ROUTES: Final[Sequence[HTTPRouteHandler]] = (stream_saga, stream_pool)


async def _saga_messages(
    fleet: FleetClient, saga: str, after: int, *, is_over: bool
) -> AsyncGenerator[bytes, None]:
    if after > await fleet.bus.last_sequence(SAGAS.name):
        yield ServerSentEventMessage(RESET_DATA, event=RESET).encode()
        after = 0
    elif is_over:
        return
    async with aclosing(fleet.follow_saga(saga, after=after)) as batches:
        async for batch in batches:
            for stored in batch:
                yield _entry_message(stored)


def _entry_message(stored: Stored) -> bytes:
    kind = stored.subject.rpartition(".")[2]
    data = encode(saga_entry_view(stored))
    return ServerSentEventMessage(data=data, event=kind, id=stored.sequence).encode()


async def _pool_messages(fleet: FleetClient, pool: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(pool_changes(fleet.bus, pool)) as changes:
        async for change in changes:
            data = encode(pool_change_view(change))
            yield ServerSentEventMessage(data=data, event="change").encode()


@get(f"{ROOT}/nodes/{{name:str}}/samples", tags=["nodes"], responses=PROBLEMS)
async def get_node_samples(
    fleet: Fleet, principal: Caller, name: FromPath[str]
) -> list[GpuReadings]:
    """Get a node's stored samples of the last fifteen minutes, oldest first."""
    view = await visible_node(fleet, principal, name)
    return await node_samples(fleet.bus, view.pool, view.id)


@get(f"{ROOT}/nodes/{{name:str}}/evidence", tags=["nodes"], responses=PROBLEMS)
async def get_node_evidence(
    fleet: Fleet,
    principal: Caller,
    histories: Histories,
    name: FromPath[str],
    saga: FromQuery[str] = "",
) -> EvidenceBundle:
    """Get the evidence of a node's latest outage, or of the one that a saga ended."""
    async with histories:
        try:
            found = await find_evidence(fleet.bus, name, saga)
        except BusError:
            raise
        except NavarchError as error:
            raise not_found("evidence about", name, f"{ROOT}/evidence") from error
    if not principal.sees(found.pool):
        raise not_found("evidence about", name, f"{ROOT}/evidence")
    return found


@get(f"{ROOT}/evidence", tags=["nodes"], responses=PROBLEMS)
async def list_evidence(fleet: Fleet, principal: Caller) -> list[KeptEvidence]:
    """List the outages of which evidence is kept, oldest first."""
    kept, _ = kept_evidence(await fleet.bus.objects(EVIDENCE))
    return [each for each in kept if principal.sees(each.pool)]


@get(f"{ROOT}/pools/{{name:str}}/history", tags=["pools"], responses=PROBLEMS)
async def get_pool_history(
    fleet: Fleet, principal: Caller, now: Now, name: FromPath[str], since: Since = "24h"
) -> PoolHistory:
    """Get a pool's instances and their cost over time; seven days at most."""
    pool = await visible_pool(fleet, principal, name)
    records = await read_instances(fleet, Query(pool=pool.name, terminated=True))
    start = max(start_of(since, now), now - SPAN_MAX)
    return pool_history(pool.name, records, start, now)


@get(f"{ROOT}/pools/{{name:str}}/utilization", tags=["pools"], responses=PROBLEMS)
async def get_pool_utilization(
    fleet: Fleet, principal: Caller, name: FromPath[str]
) -> UtilizationHistory:
    """Get how much a pool's GPUs were used in the last fifteen minutes; of 32 nodes at most."""
    pool = await visible_pool(fleet, principal, name)
    return await read_utilization(fleet.bus, pool.name)


@get(f"{ROOT}/sagas/history", tags=["sagas"], responses=PROBLEMS)
async def list_saga_history(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    histories: Histories,
    pool: FromQuery[str] = "",
    since: Since = "7d",
    limit: Annotated[int, Parameter(ge=1, le=ROWS_MAX)] = 1_000,
) -> list[SagaSummary]:
    """List every saga that began since a time, open or ended; `limit` keeps the newest."""
    start = start_of(since, now)
    if pool:
        await visible_pool(fleet, principal, pool)
    async with histories:
        found = await saga_summaries(fleet.bus, pool, start)
    return [each for each in found if principal.sees(each.pool)][-limit:]


@get(f"{ROOT}/report", tags=["nodes"], responses=PROBLEMS)
async def get_report(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    histories: Histories,
    pool: FromQuery[str] = "",
    since: Since = "7d",
) -> RepairReport:
    """Get what unhealthy nodes cost each pool, by fault, and which are out of service now."""
    start = start_of(since, now)
    if pool:
        await visible_pool(fleet, principal, pool)
    async with histories:
        found = await repair_report(fleet.bus, start, now, pool)
    return seen_report(found, principal.sees)


@get(f"{ROOT}/use", tags=["nodes"], responses=PROBLEMS)
async def list_use(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    pool: FromQuery[str] = "",
    gpus: FromQuery[bool] = False,
) -> list[UseRow]:
    """List how much each node is used, or with `gpus` each GPU, from its newest sample."""
    if pool:
        await visible_pool(fleet, principal, pool)
    use, _ = await read_use(fleet.bus, pool, now)
    return [each for each in use.rows(of_gpus=gpus) if principal.sees(each.pool)]


@get(f"{ROOT}/cost", tags=["pools"], responses=PROBLEMS)
async def get_cost(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    pool: FromQuery[str] = "",
    since: Since = "7d",
    by_label: FromQuery[str] = "",
) -> CostReport:
    """Get what instances cost, by day and pool, and by a label; seven days at most."""
    start = start_of(since, now)
    if pool:
        await visible_pool(fleet, principal, pool)
    return await fleet_cost(fleet, pool, start, now, by_label, principal.sees)


@get(f"{ROOT}/alerts", tags=["alerts"], responses=PROBLEMS)
async def list_alerts(fleet: Fleet, principal: Caller) -> list[OpenAlertRecord]:
    """List the open alerts, the most severe first."""
    found = await open_alerts(fleet.bus)
    return [each for each in found if each.opened and principal.sees(each.opened.pool)]


@get(f"{ROOT}/hardware", tags=["nodes"], responses=PROBLEMS)
async def list_hardware(fleet: Fleet, principal: Caller) -> list[HardwareRecord]:
    """List the hardware that is not admitted again."""
    require_whole_fleet(principal, "this list is")
    return decode_answer(list[HardwareRecord], await fleet.query("hardware", Query()), "hardware")


@get(f"{ROOT}/policy", tags=["policy"], responses=PROBLEMS)
async def get_policy(fleet: Fleet) -> PolicyView:
    """Get the health policy in force: its rules in order, of which the first match decides."""
    answer = await fleet.query("policy", Query(), who="health-monitor")
    return decode_answer(PolicyView, answer, "policy", "health-monitor")


HISTORY_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *(get_node_samples, get_node_evidence, list_evidence, get_pool_history, get_policy),
    *(list_saga_history, get_report, get_cost, list_alerts, list_use, list_hardware),
    get_pool_utilization,
)
