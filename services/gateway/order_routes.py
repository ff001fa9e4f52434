"""Serves what a service does at once: alerts, denylist, readmission, sweeps, work, logs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final

from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody, Parameter, QueryParameter
from msgspec.structs import replace

from schemas.alert_records import Alert, AlertAcknowledge
from schemas.hardware_denylist import HardwareAdd, HardwareForget, HardwareRecord
from schemas.log_excerpts import LINES_MAX, REPLICA_CHARS_MAX, LogExcerpt, LogRequest
from schemas.names import TOKEN
from schemas.node_disconnections import ReadmitRequest
from schemas.node_events import BusAccess
from schemas.permissions import GATEWAY, SERVICES
from schemas.sweeps import SweepAnswer, SweepRequest
from schemas.work_done import WorkDone, WorkDoneAccepted
from schemas.workload_checks import WorkloadCheckAnswer, WorkloadCheckRequest
from services.fleet_client import service_orders
from services.fleet_client.service_orders import node_logs, service_logs
from services.gateway.authentication import ROLE
from services.gateway.change_bodies import (
    ORPHANS_MAX,
    AcknowledgeBody,
    HardwareBody,
    ListedHardwareBody,
    SweepBody,
    WorkDoneBody,
    WorkloadCheckBody,
)
from services.gateway.change_routes import change_route
from services.gateway.fleet_routes import (
    Caller,
    Fleet,
    Now,
    require_whole_fleet,
    visible_node,
    visible_pool,
)
from services.gateway.history_routes import Since, start_of
from services.gateway.problems import CHANGE_PROBLEMS, ROOT, ProblemError, not_found
from services.primitives.errors import AnswerError

EVER: Final = "30d"
"""Longer than any process keeps its lines."""
OPERATORS: Final[dict[str, Any]] = {"responses": CHANGE_PROBLEMS, "opt": {ROLE: "operator"}}
Lines = Annotated[int, Parameter(ge=1, le=LINES_MAX, description="At most so many, the newest.")]


@asynccontextmanager
async def _answered() -> AsyncIterator[None]:
    """What a service refuses is a conflict, with its reason."""
    try:
        yield
    except AnswerError as error:
        raise ProblemError(
            HTTPStatus.CONFLICT, str(error), "the detail says what would be accepted"
        ) from error


@get(f"{ROOT}/nodes/{{name:str}}/logs", tags=["logs"], **OPERATORS)
async def get_node_logs(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    name: FromPath[str],
    lines: Lines = 100,
    since: Since = EVER,
    kernel: FromQuery[bool] = False,
) -> LogExcerpt:
    """Get the newest log lines of a node's agent, and the kernel's about the driver."""
    request = LogRequest(lines=lines, since=start_of(since, now), kernel=kernel)
    view = await visible_node(fleet, principal, name)
    async with _answered():
        return await node_logs(fleet, view, request)


@get(f"{ROOT}/services/{{service:str}}/logs", tags=["logs"], **OPERATORS)
async def get_service_logs(
    fleet: Fleet,
    principal: Caller,
    now: Now,
    service: FromPath[str],
    lines: Lines = 100,
    since: Since = EVER,
    replica: Annotated[str, Parameter(max_length=REPLICA_CHARS_MAX)] = "",
) -> list[LogExcerpt]:
    """Get the newest log lines of each replica of a service, or of those whose name begins so."""
    require_whole_fleet(principal, "services' logs are")
    if service not in (*SERVICES, GATEWAY):
        raise not_found("service", service, f"{ROOT}/services/{SERVICES[0]}/logs")
    request = LogRequest(lines=lines, since=start_of(since, now), replica=replica)
    async with _answered():
        return list(await service_logs(fleet, service, request))


@change_route("/alerts/acknowledge", "acknowledge")
async def acknowledge_alert(
    fleet: Fleet, principal: Caller, data: JSONBody[AcknowledgeBody]
) -> Alert:
    """Take on an open alert: it is not repeated, and channels stop escalating."""
    if principal.pools:
        known = await service_orders.open_alerts(fleet.bus)
        own = {each.alert for each in known if each.opened and principal.sees(each.opened.pool)}
        if data.alert not in own:
            raise not_found("open alert", data.alert, f"{ROOT}/alerts")
    request = AlertAcknowledge(key=data.alert, reason=data.reason, by=principal.name)
    async with _answered():
        return await service_orders.acknowledge_alert(fleet, request)


@change_route("/hardware/add", "hardware-add")
async def add_hardware(
    fleet: Fleet, principal: Caller, data: JSONBody[ListedHardwareBody]
) -> list[HardwareRecord]:
    """Add a GPU or a host to the denylist; nodes in service are not affected."""
    require_whole_fleet(principal, "this list is")
    request = HardwareAdd(
        kind=data.kind, value=data.value, reason=data.reason, node=data.node, by=principal.name
    )
    async with _answered():
        return await service_orders.change_hardware(fleet, request)


@change_route("/hardware/forget", "hardware-forget")
async def forget_hardware(
    fleet: Fleet, principal: Caller, data: JSONBody[HardwareBody]
) -> list[HardwareRecord]:
    """Take a GPU or a host off the denylist."""
    require_whole_fleet(principal, "this list is")
    request = HardwareForget(kind=data.kind, value=data.value, by=principal.name)
    async with _answered():
        return await service_orders.change_hardware(fleet, request)


@change_route("/nodes/{name:str}/readmit", "readmit")
async def readmit_node(fleet: Fleet, principal: Caller, name: FromPath[str]) -> BusAccess:
    """Have a disconnected node's credentials accepted again."""
    view = await visible_node(fleet, principal, name)
    request = ReadmitRequest(pool=view.pool, node=view.id, by=principal.name)
    async with _answered():
        return await service_orders.readmit(fleet, request)


@change_route("/pools/{name:str}/workload-check", "workload-check")
async def check_workload(
    fleet: Fleet,
    principal: Caller,
    name: FromPath[str],
    data: JSONBody[WorkloadCheckBody | None] = None,
) -> WorkloadCheckAnswer:
    """Try a pool's workload system, and the rights there."""
    pool = await visible_pool(fleet, principal, name)
    node = data.node if data else ""
    request = WorkloadCheckRequest(pool=pool.name, node=node or None, by=principal.name)
    async with _answered():
        return await service_orders.check_workload(fleet, request)


@change_route("/nodes/{name:str}/work-done", "work-done")
async def report_work_done(
    fleet: Fleet,
    principal: Caller,
    name: FromPath[str],
    data: JSONBody[WorkDoneBody | None] = None,
) -> WorkDoneAccepted:
    """Say that the work has left a node; nothing changes unless a drain waits for it."""
    if principal.pools or not TOKEN.match(name):
        await visible_node(fleet, principal, name)
    request = WorkDone(node=name, saga=data.saga if data else "", by=principal.name)
    async with _answered():
        return await service_orders.work_done(fleet, request)


def _orphans(name: str, what: str) -> QueryParameter:
    return QueryParameter(name=name, max_items=ORPHANS_MAX, description=f"Orphans to {what}.")


@get(f"{ROOT}/sweep", tags=["instances"], **OPERATORS)
async def plan_sweep(
    fleet: Fleet,
    principal: Caller,
    adopt: Annotated[tuple[str, ...], _orphans("adopt", "make nodes of their pools")] = (),
    terminate: Annotated[tuple[str, ...], _orphans("terminate", "terminate")] = (),
) -> SweepAnswer:
    """Compare providers with records, and get what a sweep would do; nothing is changed."""
    body = SweepBody(adopt=adopt, terminate=terminate)
    return await _sweep(fleet, principal, body, dry_run=True)


@change_route("/sweep", "sweep")
async def sweep_instances(
    fleet: Fleet, principal: Caller, data: JSONBody[SweepBody | None] = None
) -> SweepAnswer:
    """Resolve differences between providers and records now."""
    return await _sweep(fleet, principal, data or SweepBody(), dry_run=False)


ORDER_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *(get_node_logs, get_service_logs, acknowledge_alert, add_hardware, forget_hardware),
    *(readmit_node, plan_sweep, sweep_instances, check_workload, report_work_done),
)


async def _sweep(fleet: Fleet, principal: Caller, body: SweepBody, *, dry_run: bool) -> SweepAnswer:
    require_whole_fleet(principal, "sweeps are")
    request = SweepRequest(adopt=body.adopt, terminate=body.terminate)
    if not dry_run:
        request = replace(request, by=principal.name)
    async with _answered():
        return await service_orders.sweep(fleet, request, dry_run=dry_run)
