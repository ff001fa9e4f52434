"""POST: changes of nodes, pools and sagas, as `schemas.operations` declares them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from litestar import post
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler
from litestar.params import (
    FromPath,
    FromQuery,
    HeaderParameter,
    JSONBody,
    Parameter,
)

from schemas.agent_commands import DiagnoseRequest, Diagnosis
from schemas.dry_run import DryRun
from schemas.duration import TEXT_PATTERN, parse_duration
from schemas.names import pool_name
from schemas.operation_bodies import DIAGNOSE_SECONDS_MAX, DIAGNOSE_SECONDS_MIN
from schemas.operations import CHANGES, Change, Operation
from services.fleet_client.fleet_client import FleetClient
from services.fleet_client.service_orders import diagnose
from services.gateway.access_tokens import Principal
from services.gateway.authentication import ROLE
from services.gateway.change_requests import ChangeRequests, make_request
from services.gateway.fleet_routes import Caller, Fleet, visible_node, visible_pool, visible_saga
from services.gateway.problems import CHANGE_PROBLEMS, ROOT, ProblemError, not_found
from services.gateway.views import ChangeAnswer
from services.primitives.errors import AnswerError

KEY_CHARS_MAX: Final = 200

Changes = NamedDependency[ChangeRequests]
Name = FromPath[str]
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


async def _place(
    fleet: FleetClient, principal: Principal, change: Change, name: str
) -> tuple[str, dict[str, str]]:
    """Return the pool that a change is requested of, and what it is about there."""
    match change.subject:
        case "node":
            node = await visible_node(fleet, principal, name)
            return node.pool, {"node": node.id}
        case "saga":
            found = (await visible_saga(fleet, principal, name)).saga
            return found.pool, {"saga": found.saga}
        case _ if change.creates:
            if not principal.sees(pool_name(name)):
                raise not_found("pool", name, f"{ROOT}/pools")
            return name, {}
        case _:
            return (await visible_pool(fleet, principal, name)).name, {}


def _route(change: Change) -> HTTPRouteHandler:
    async def handle(
        fleet: FleetClient,
        changes: ChangeRequests,
        principal: Principal,
        data: msgspec.Struct | None = None,
        key: str = "",
        *,
        dry_run: bool = False,
        **path: str,
    ) -> ChangeAnswer | DryRun:
        [name] = path.values()
        pool, about = await _place(fleet, principal, change, name)
        request = make_request(change.request, **given_fields(data), **about)
        if dry_run:
            return await fleet.dry_run(pool, change.name, request)
        return await changes.send(principal, pool, change.name, request, key)

    more = {"changes": Changes, "key": Key, "dry_run": FromQuery[bool]}
    defaults = {"key": "", "dry_run": False}
    return operation_route(handle, change, more, defaults, ChangeAnswer | DryRun)


def operation_route(
    handle: Any,
    operation: Operation,
    more: Mapping[str, Any],
    defaults: Mapping[str, Any],
    answer: Any,
) -> HTTPRouteHandler:
    """Make the POST of an operation; `more`: its parameters beside the path and the body.

    The library reads parameters from the signature, so the handler is given the operation's.
    """
    subject = operation.subject
    named = "saga" if subject == "saga" else "name"
    types = {"fleet": Fleet, "principal": Caller, **({named: Name} if subject else {}), **more}
    if (body := operation.body) is not None:
        optional = all(not each.required for each in msgspec.structs.fields(body))
        kind: Any = body | None if optional else body
        types["data"] = JSONBody[kind]  # type: ignore[misc] # it is a type
        defaults = {**defaults, "data": None} if optional else defaults
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, inspect.Parameter.empty),
            annotation=each,
        )
        for name, each in types.items()
    ]
    handle.__signature__ = inspect.Signature(parameters, return_annotation=answer)
    handle.__annotations__ = {**types, "return": answer}
    handle.__name__, handle.__doc__ = operation.method, operation.help
    path = operation.path.replace(f"{{{subject}}}", f"{{{named}:str}}")
    return change_route(path, operation.name, operation.role)(handle)


def given_fields(data: msgspec.Struct | None) -> dict[str, Any]:
    """Return what a caller has sent in the body, but for empty texts."""
    found = msgspec.to_builtins(data) if data is not None else {}
    return {name: each for name, each in found.items() if each != ""}


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


def wait_seconds(text: str) -> float:
    """Return how long a caller waits for a diagnosis; ValueError for what is too short."""
    seconds = min(parse_duration(text), DIAGNOSE_SECONDS_MAX)
    if seconds < DIAGNOSE_SECONDS_MIN:
        raise ValueError(f"no agent answers within {text!r}")
    return seconds


CHANGE_ROUTES: Final[Sequence[HTTPRouteHandler]] = (
    *(_route(each) for each in CHANGES if each.path),
    diagnose_node,
)
