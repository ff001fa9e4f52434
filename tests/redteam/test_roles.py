"""A role may request the same over the HTTP API as with its credentials on the bus."""

from typing import Any, Final

import pytest

from schemas import permissions, subjects
from schemas.operations import CHANGES, ORDERS, Change, Operation, ServiceOrder
from schemas.permissions import MAY_REQUEST, rules
from services.bus.protocol.subject_filters import matches
from services.gateway.access_tokens import RANKS, Principal
from services.gateway.authentication import ROLE
from tests.gateway.conftest import MakeGateway, bus, make_gateway, orders

__all__ = ["bus", "make_gateway", "orders"]
OPERATIONS: Final[tuple[Operation, ...]] = (*CHANGES, *ORDERS)
SAME: Final = {
    "viewer": permissions.VIEWER,
    "operator": permissions.OPERATOR,
    "admin": permissions.POOL_ADMIN,
}
"""Role of a token -> role of a user on the bus."""


def subject_of(operation: Operation) -> str:
    """Return where a user requests an operation on the bus."""
    if isinstance(operation, Change):
        return subjects.pool_request("training", operation.name, "ada")
    assert isinstance(operation, ServiceOrder)
    if operation.is_query:
        return subjects.query(operation.name)
    return subjects.order(operation.name, "ada")


def may_on_the_bus(role: str, operation: Operation) -> bool:
    """Return whether the server lets a role publish there; a denial wins."""
    found, subject = rules()[role], subject_of(operation)
    allowed, denied = (
        any(matches(each.replace(permissions.USER_NAME, "ada"), subject) for each in listed)
        for listed in (found.publish, found.publish_not)
    )
    return allowed and not denied


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
@pytest.mark.parametrize("role", RANKS)
def test_the_bus_and_the_http_api_let_a_role_do_the_same(role: Any, operation: Operation) -> None:
    """An operator created and removed pools with credentials, and not with a token."""
    over_http = Principal(name="ada", role=role).may(operation.role)
    assert may_on_the_bus(SAME[role], operation) == over_http
    assert (SAME[role] in MAY_REQUEST[operation.role]) == over_http


@pytest.mark.parametrize("role", [permissions.SCHEDULER, permissions.SINK_READER])
def test_other_users_request_nothing_but_their_own(role: str) -> None:
    """A workload system says that work is done; a reader of events requests nothing."""
    may = [each.name for each in OPERATIONS if may_on_the_bus(role, each)]
    assert may == ([permissions.WORK_DONE] if role == permissions.SCHEDULER else [])


async def test_each_route_needs_the_role_that_its_operation_declares(
    make_gateway: MakeGateway,
) -> None:
    """A route has its role from the declaration, also where another module makes it."""
    app: Any = make_gateway().app
    needed = {
        name: handler.opt.get(ROLE)
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        if (name := handler.handler_name) and "POST" in handler.http_methods
    }
    posted = [each for each in OPERATIONS if each.path and each.body is not None]
    assert len(posted) > 20
    for each in posted:
        assert needed[each.method] == each.role, each.name
