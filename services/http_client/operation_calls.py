"""Makes the call of any operation that `schemas.operations` declares. Pure."""

from typing import Final, TypeVar

import msgspec

from schemas.dry_run import DryRun
from schemas.duration import encode_hook
from schemas.names import saga_token, token
from schemas.operations import Change, Operation, ServiceOrder
from schemas.operator_requests import Request
from services.gateway.views import ChangeAnswer
from services.http_client.api_call import ApiCall

API: Final = "/api/v1"
T = TypeVar("T")


def operation_call(
    operation: Operation,
    name: str,
    answer: type[T],
    body: msgspec.Struct | None,
    *,
    key: str | None = None,
) -> ApiCall[T]:
    """Return the call of an operation about what has this name; InvalidNameError for no name."""
    subject = operation.subject
    checked = saga_token(name) if subject == "saga" else token(name, subject) if subject else ""
    return ApiCall(
        path=f"{API}{operation.path.replace(f'{{{subject}}}', checked)}",
        answer=answer,
        method="POST",
        body=body,
        key=key,
        more_seconds=operation.seconds_max if isinstance(operation, ServiceOrder) else 0.0,
    )


def change_call(pool: str, change: Change, request: Request) -> ApiCall[ChangeAnswer]:
    """Return the call that has a request made of a pool."""
    name = getattr(request, change.subject, pool)
    body = body_of(change, request)
    return operation_call(change, name, ChangeAnswer, body, key=request.request)


def dry_run(call: ApiCall[ChangeAnswer]) -> ApiCall[DryRun]:
    """Return the call that says what a change would do, and changes nothing."""
    return ApiCall(
        path=call.path,
        answer=DryRun,
        query={"dry_run": True},
        method="POST",
        body=call.body,
        key="",
    )


def order_call(order: ServiceOrder[T], request: msgspec.Struct) -> ApiCall[T]:
    """Return the call that has an order performed."""
    name = getattr(request, order.subject) if order.subject else ""
    if order.is_query and order.body is None and not order.subject:
        fields, path = msgspec.to_builtins(request), f"{API}{order.path}"
        more = order.seconds_max
        return ApiCall(path=path, answer=order.answer, query=fields, more_seconds=more)
    return operation_call(order, name, order.answer, body_of(order, request))


def body_of(operation: Operation, request: msgspec.Struct) -> msgspec.Struct | None:
    """Return what the API takes instead of a request of the bus; durations become texts."""
    if operation.body is None:
        return None
    renamed = operation.renamed if isinstance(operation, ServiceOrder) else {}
    fields = msgspec.to_builtins(request, enc_hook=encode_hook)
    known = {each.encode_name for each in msgspec.structs.fields(operation.body)}
    named = {renamed.get(name, name): value for name, value in fields.items()}
    given = {name: value for name, value in named.items() if name in known and value is not None}
    return msgspec.convert(given, operation.body)
