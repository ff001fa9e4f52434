"""Serves what a service does at once: alerts, denylist, readmission, sweeps, work, logs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, Parameter, QueryParameter

from schemas.log_excerpts import LINES_MAX, REPLICA_CHARS_MAX, LogExcerpt, LogRequest
from schemas.names import TOKEN
from schemas.operation_bodies import ORPHANS_MAX
from schemas.operations import (
    ACKNOWLEDGE_ALERT,
    ORDERS,
    PLAN_SWEEP,
    REPORT_WORK_DONE,
    RESUME,
    STOP,
    SWEEP,
    UPDATE_ALERT,
    ServiceOrder,
)
from schemas.permissions import GATEWAY, SERVICES
from schemas.stops import StopsAnswer
from schemas.sweeps import SweepAnswer, SweepRequest
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.fleet_status import visible_stops
from services.fleet_client.service_orders import node_logs, open_alerts, service_logs
from services.gateway.access_tokens import Principal
from services.gateway.authentication import ROLE
from services.gateway.change_requests import make_request
from services.gateway.change_routes import given_fields, operation_route
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
        raise ProblemError(HTTPStatus.CONFLICT, str(error)) from error


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


async def _about(
    fleet: FleetClient, principal: Principal, order: ServiceOrder[Any], name: str, data: Any
) -> dict[str, Any]:
    """Return what an order is about; a problem if the caller may not see it."""
    if order in (ACKNOWLEDGE_ALERT, UPDATE_ALERT):
        if principal.pools:
            known = await open_alerts(fleet.bus)
            own = {each.alert for each in known if each.opened and principal.sees(each.opened.pool)}
            if data.alert not in own:
                raise not_found("open alert", data.alert, f"{ROOT}/alerts")
        return {}
    if order.subject == "pool":
        return {"pool": (await visible_pool(fleet, principal, name)).name}
    if order.subject == "node":
        if order is REPORT_WORK_DONE and TOKEN.match(name) and not principal.pools:
            return {"node": name}
        view = await visible_node(fleet, principal, name)
        return {"node": view.id} if order is REPORT_WORK_DONE else {"pool": view.pool, "node": name}
    if order in (STOP, RESUME):
        if data is not None and data.pool:
            await visible_pool(fleet, principal, data.pool)
        else:
            require_whole_fleet(principal, "this is", "name one of your pools")
        return {}
    require_whole_fleet(principal, "sweeps are" if order is SWEEP else "this list is")
    return {}


def _route(order: ServiceOrder[Any]) -> HTTPRouteHandler:
    async def handle(
        fleet: FleetClient, principal: Principal, data: msgspec.Struct | None = None, **path: str
    ) -> Any:
        about = await _about(fleet, principal, order, "".join(path.values()), data)
        names = {body: field for field, body in order.renamed.items()}
        fields = {names.get(name, name): each for name, each in given_fields(data).items()}
        request = make_request(order.request, **fields, **about, by=principal.name)
        async with _answered():
            answer = await fleet.perform(order, request)
        return visible_stops(answer, principal.sees) if isinstance(answer, StopsAnswer) else answer

    return operation_route(handle, order, {}, {}, order.answer)


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
    require_whole_fleet(principal, "sweeps are")
    async with _answered():
        return await fleet.perform(PLAN_SWEEP, SweepRequest(adopt=adopt, terminate=terminate))


ORDER_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *(get_node_logs, get_service_logs, plan_sweep),
    *(_route(each) for each in ORDERS if each is not PLAN_SWEEP),
)
