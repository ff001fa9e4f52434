"""POST: changes of nodes, pools and sagas, as requests on the bus."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

from litestar import post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import (
    FromPath,
    FromQuery,
    HeaderParameter,
    JSONBody,
    Parameter,
    QueryParameter,
)

from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.dry_run import DryRun
from schemas.duration import TEXT_PATTERN, parse_duration
from schemas.names import pool_name
from schemas.operator_requests import (
    ApplyRequest,
    BreakerRequest,
    DrainRequest,
    HoldRequest,
    NodeRequest,
    RemoveRequest,
    SagaRequest,
    ScaleRequest,
)
from services.fleet_client.service_orders import diagnose
from services.gateway.authentication import ROLE
from services.gateway.change_bodies import (
    DIAGNOSE_SECONDS_MAX,
    DIAGNOSE_SECONDS_MIN,
    BreakerBody,
    DrainBody,
    HoldBody,
    ReasonBody,
    ScaleBody,
    UpBody,
)
from services.gateway.change_requests import ChangeRequests, make_request
from services.gateway.fleet_routes import Caller, Fleet, visible_node, visible_pool, visible_saga
from services.gateway.problems import CHANGE_PROBLEMS, ROOT, ProblemError, not_found
from services.gateway.views import ChangeAnswer
from services.primitives.errors import AnswerError

KEY_CHARS_MAX: Final = 200

Changes = NamedDependency[ChangeRequests]
Name = FromPath[str]
DryRunFlag = FromQuery[bool]
NoDryRun = Annotated[
    bool,
    QueryParameter(
        description="There is none of this change: true is refused.",
        schema_extra={"enum": [False]},
    ),
]
Wait = Annotated[
    str, Parameter(description="A second to ten minutes.", schema_extra={"pattern": TEXT_PATTERN})
]
Key = Annotated[
    str,
    HeaderParameter(
        name="Idempotency-Key",
        max_length=KEY_CHARS_MAX,
        description="Repeat it with the same request: it is carried out once.",
    ),
]


def change_route(path: str, verb: str, role: str = "operator") -> Callable[[Any], HTTPRouteHandler]:
    """A POST that needs a role."""
    return post(
        f"{ROOT}{path}",
        status_code=HTTPStatus.OK,
        tags=["changes"],
        responses=CHANGE_PROBLEMS,
        opt={ROLE: role},
        name=f"{path}:{verb}",
    )


def _node_route(verb: str) -> HTTPRouteHandler:
    async def change(
        fleet: Fleet,
        changes: Changes,
        principal: Caller,
        name: Name,
        data: JSONBody[ReasonBody | None] = None,
        key: Key = "",
        dry_run: DryRunFlag = False,
    ) -> ChangeAnswer | DryRun:
        node = await visible_node(fleet, principal, name)
        reason = data.reason if data else ""
        request = make_request(NodeRequest, node=node.id, reason=reason)
        if dry_run:
            return await changes.dry_run(verb, request)
        return await changes.send(principal, node.pool, verb, request, key)

    change.__name__, change.__doc__ = f"{verb}_node", f"Request `{verb}` of a node."
    return change_route(f"/nodes/{{name:str}}/{verb}", verb)(change)


def _drain_route(verb: str) -> HTTPRouteHandler:
    async def change(
        fleet: Fleet,
        changes: Changes,
        principal: Caller,
        name: Name,
        data: JSONBody[DrainBody | None] = None,
        key: Key = "",
        dry_run: DryRunFlag = False,
    ) -> ChangeAnswer | DryRun:
        node = await visible_node(fleet, principal, name)
        fields = (data or DrainBody()).fields()
        request = make_request(DrainRequest, node=node.id, **fields)
        if dry_run:
            return await changes.dry_run(verb, request)
        return await changes.send(principal, node.pool, verb, request, key)

    change.__name__ = f"{verb.replace('-', '_')}_node"
    change.__doc__ = f"Request `{verb}` of a node."
    return change_route(f"/nodes/{{name:str}}/{verb}", verb)(change)


def _saga_route(verb: str) -> HTTPRouteHandler:
    async def change(
        fleet: Fleet,
        changes: Changes,
        principal: Caller,
        saga: Name,
        data: JSONBody[ReasonBody | None] = None,
        key: Key = "",
        dry_run: NoDryRun = False,
    ) -> ChangeAnswer:
        found = (await visible_saga(fleet, principal, saga)).saga
        refuse_dry_run(verb, dry_run=dry_run)
        reason = data.reason if data else ""
        request = make_request(SagaRequest, saga=found.saga, reason=reason)
        return await changes.send(principal, found.pool, verb, request, key)

    change.__name__, change.__doc__ = f"{verb}_saga", f"Request `{verb}` of a saga."
    return change_route(f"/sagas/{{saga:str}}/{verb}", verb)(change)


def _breaker_route(verb: str) -> HTTPRouteHandler:
    async def change(
        fleet: Fleet,
        changes: Changes,
        principal: Caller,
        name: Name,
        data: JSONBody[BreakerBody],
        key: Key = "",
        dry_run: NoDryRun = False,
    ) -> ChangeAnswer:
        pool = await visible_pool(fleet, principal, name)
        refuse_dry_run(verb, dry_run=dry_run)
        request = make_request(BreakerRequest, reason=data.reason)
        return await changes.send(principal, pool.name, f"breaker-{verb}", request, key)

    change.__name__, change.__doc__ = f"{verb}_breaker", f"Request to {verb} the pool's breaker."
    return change_route(f"/pools/{{name:str}}/breaker/{verb}", verb)(change)


@change_route("/nodes/{name:str}/hold", "hold")
async def hold_node(
    fleet: Fleet,
    changes: Changes,
    principal: Caller,
    name: Name,
    data: JSONBody[HoldBody],
    key: Key = "",
    dry_run: NoDryRun = False,
) -> ChangeAnswer:
    """Keep automation off a node for a while."""
    node = await visible_node(fleet, principal, name)
    refuse_dry_run("hold", dry_run=dry_run)
    fields = {"node": node.id, "for": data.for_, "reason": data.reason}
    request = make_request(HoldRequest, **fields)
    return await changes.send(principal, node.pool, "hold", request, key)


@change_route("/nodes/{name:str}/diagnose", "diagnose")
async def diagnose_node(
    fleet: Fleet,
    principal: Caller,
    name: Name,
    data: JSONBody[DiagnoseRequest | None] = None,
    wait: Wait = "1m",
) -> Diagnosis:
    """Have a node's agent test its host now; the answer has what the tests found."""
    node = await visible_node(fleet, principal, name)
    try:
        seconds = wait_seconds(wait)
        return await diagnose(fleet, node, data or DiagnoseRequest(), seconds)
    except ValueError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, f"wait: {error}", "write 1m") from error
    except AnswerError as error:
        raise ProblemError(
            HTTPStatus.CONFLICT, str(error), "GPU tests need a node without jobs"
        ) from error


@change_route("/pools/{name:str}/scale", "scale")
async def scale_pool(
    fleet: Fleet,
    changes: Changes,
    principal: Caller,
    name: Name,
    data: JSONBody[ScaleBody],
    key: Key = "",
    dry_run: NoDryRun = False,
) -> ChangeAnswer:
    """Set the pool's desired size."""
    pool = await visible_pool(fleet, principal, name)
    refuse_dry_run("scale", dry_run=dry_run)
    request = make_request(ScaleRequest, nodes=data.nodes)
    return await changes.send(principal, pool.name, "scale", request, key)


@change_route("/pools/{name:str}/up", "up", "admin")
async def up_pool(
    changes: Changes,
    principal: Caller,
    name: Name,
    data: JSONBody[UpBody],
    key: Key = "",
    dry_run: NoDryRun = False,
) -> ChangeAnswer:
    """Create or change a pool, except one of the configuration."""
    if not principal.sees(pool_name(name)):
        raise not_found("pool", name, f"{ROOT}/pools")
    refuse_dry_run("up", dry_run=dry_run)
    request = make_request(ApplyRequest, spec=data.spec, nodes=data.nodes, reason=data.reason)
    return await changes.send(principal, name, "apply", request, key)


@change_route("/pools/{name:str}/down", "down", "admin")
async def down_pool(
    fleet: Fleet,
    changes: Changes,
    principal: Caller,
    name: Name,
    data: JSONBody[DrainBody | None] = None,
    key: Key = "",
    dry_run: NoDryRun = False,
) -> ChangeAnswer:
    """Remove a pool's nodes, then the pool."""
    pool = await visible_pool(fleet, principal, name)
    refuse_dry_run("down", dry_run=dry_run)
    request = make_request(RemoveRequest, **(data or DrainBody()).fields())
    return await changes.send(principal, pool.name, "remove", request, key)


def wait_seconds(text: str) -> float:
    """Return how long a caller waits for a diagnosis; ValueError for what is too short."""
    seconds = min(parse_duration(text), DIAGNOSE_SECONDS_MAX)
    if seconds < DIAGNOSE_SECONDS_MIN:
        raise ValueError(f"no agent answers within {text!r}")
    return seconds


CHANGE_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *map(_node_route, ("cordon", "uncordon", "release")),
    *map(_drain_route, ("drain", "replace", "reset-gpu", "reboot", "terminate")),
    *map(_saga_route, ("cancel", "retry", "proceed")),
    *map(_breaker_route, ("open", "close")),
    *(hold_node, diagnose_node, scale_pool, up_pool, down_pool),
)


def refuse_dry_run(verb: str, *, dry_run: bool) -> None:
    """Refuse a dry run that nothing computes: it must not be carried out instead."""
    if dry_run:
        raise ProblemError(
            HTTPStatus.BAD_REQUEST,
            f"there is no dry run of {verb}",
            "dry_run is for cordon, uncordon, drain, replace, reset-gpu, reboot and terminate",
        )
