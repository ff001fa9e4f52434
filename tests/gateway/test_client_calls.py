"""The Python client has every operation of the API's description, and each as it is described."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from schemas.agent_commands import DiagnoseRequest
from schemas.dry_run import DryRun
from schemas.operation_bodies import DrainBody, ReasonBody
from schemas.operations import CHANGE, CHANGES
from services.gateway.api_description import DESCRIBED_ROUTES, api_description
from services.http_client import AsyncNavarch, Navarch, gateway_calls, order_calls
from services.http_client.api_call import ApiCall, ApiStream
from services.http_client.gateway_calls import DryRunVerb

Json = dict[str, Any]
DESCRIPTION: Json = api_description()
OPERATIONS: dict[str, tuple[str, str, Json]] = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, operations in DESCRIPTION["paths"].items()
    for method, operation in operations.items()
}
STREAMS = {
    "stream_events": "follow_events",
    "stream_saga": "follow_saga",
    "stream_pool": "follow_pool",
}
CALLS = sorted(OPERATIONS.keys() - STREAMS.keys())
SAMPLES: dict[str, Any] = {
    "labels": ("team=ml", "tier=1"),
    "kinds": ("verdict", "cordoned"),
    "spec": {"max_nodes": 3},
    "wait": "7m",
    "nodes": 7,
    "limit": 7,
    "lines": 7,
    "kernel": True,
    "adopt": ("training-8",),
    "terminate": ("training-9",),
    "after": 7,
    "terminated": True,
    "everything": True,
    "gpus": True,
    "request": DiagnoseRequest(checks=("dcgm",), level=2, seconds=7, gbps_min=7.0),
}
"""Of parameters; of all others their own name."""
TYPES = {str: "string", int: "integer", bool: "boolean", Sequence[str]: "array"}


def sample(name: str) -> Any:
    """A value that is not the default."""
    return SAMPLES.get(name, name.rstrip("_"))


def call_of(name: str) -> Any:
    """The function that makes the call of an operation."""
    return getattr(gateway_calls, name, None) or getattr(order_calls, name)


def made(name: str, *, whole: bool) -> ApiCall[Any]:
    """The call of an operation, with every argument or with those that it needs."""
    function = call_of(name)
    positional, named = [], {}
    for each in inspect.signature(function).parameters.values():
        if each.kind is each.POSITIONAL_OR_KEYWORD and (whole or each.default is each.empty):
            positional.append(sample(each.name))
        elif whole or each.default is each.empty:
            named[each.name] = sample(each.name)
    call: ApiCall[Any] = function(*positional, **named)
    return call


def parameters(operation: Json, place: str) -> dict[str, Json]:
    """Return an operation's parameters in the path, the query or the headers."""
    return {each["name"]: each for each in operation.get("parameters", ()) if each["in"] == place}


def types_of(schema: Json) -> set[str]:
    """Return the types that a value may have, but null."""
    kinds = {each.get("type", each.get("$ref", "")) for each in schema.get("oneOf", (schema,))}
    return {kind.rpartition("/")[2] for kind in kinds} - {"null"}


def test_every_operation_is_a_method_of_both_clients_and_no_other_is() -> None:
    """Each method has the parameters of its operation, which `help` shows."""
    own = {
        name
        for module in (gateway_calls, order_calls)
        for name, each in inspect.getmembers(module, inspect.isfunction)
        if each.__module__ == module.__name__ and not name.startswith("_")
    }
    assert own == {*CALLS, *STREAMS.values(), "dry_run_node"}
    for name in own:
        wanted = list(inspect.signature(call_of(name)).parameters.values())
        for client in (AsyncNavarch, Navarch):
            shown = list(inspect.signature(getattr(client, name)).parameters.values())
            assert shown[1:] == wanted, (client, name)
            assert getattr(client, name).__doc__


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_as_described(name: str) -> None:
    """A call has the described method, path and idempotency key.

    Its parameters have the described types and defaults.
    """
    method, path, operation = OPERATIONS[name]
    call, least = made(name, whole=True), made(name, whole=False)
    for place in parameters(operation, "path"):
        path = path.replace(f"{{{place}}}", sample(place))
    assert (method, path) == (call.method, call.path) == (least.method, least.path)

    query = parameters(operation, "query")
    # Of a dry run there is a call of its own.
    assert query.keys() - {"dry_run"} == call.query.keys()
    hints = get_type_hints(call_of(name))
    renamed = {"label": "labels", "type": "kinds", "tone": "tones"}
    for key, each in ((key, each) for key, each in query.items() if key != "dry_run"):
        argument = renamed.get(key, key)
        assert call.query[key] == sample(argument), key
        assert types_of(each["schema"]) == {TYPES[hints[argument]]}, key
        if not each.get("required"):
            assert (least.query[key] or None) == (each["schema"].get("default") or None), key
    headers = parameters(operation, "header").keys()
    assert headers == (set() if call.key is None else {"Idempotency-Key"})
    assert call.key == (sample("key") if headers else None)


@pytest.mark.parametrize("name", CALLS)
def test_a_body_is_as_described(name: str) -> None:
    """A body has its schema, of which the arguments fill every property."""
    *_, operation = OPERATIONS[name]
    body = made(name, whole=True).body
    if "requestBody" not in operation:
        assert body is None
        return
    [content] = operation["requestBody"]["content"].values()
    assert types_of(content["schema"]) == {type(body).__name__}
    described = DESCRIPTION["components"]["schemas"][type(body).__name__]["properties"]
    sent: Mapping[str, Any] = msgspec.to_builtins(body)
    assert sent.keys() == described.keys()
    if not isinstance(body, DiagnoseRequest):
        assert sent == {key: sample(key) for key in described}


@pytest.mark.parametrize("name", CALLS)
def test_an_answer_is_as_described(name: str) -> None:
    """The type with which the client decodes is the one that the route returns and describes."""
    *_, operation = OPERATIONS[name]
    [route] = [each for each in DESCRIBED_ROUTES if each.handler_name == name]
    answer = made(name, whole=False).answer
    returned = get_type_hints(route.fn)["return"]
    assert answer in (returned, *get_args(returned))
    assert set(get_args(returned)) - {answer} <= {DryRun} or get_args(returned) == get_args(answer)
    [content] = operation["responses"]["200"]["content"].values()
    schema = content["schema"]
    named = types_of(schema.get("items", schema)) - {"DryRun"}
    assert named == {(get_args(answer) or (answer,))[0].__name__}
    assert (schema.get("type") == "array") == bool(get_args(answer))


def test_a_dry_run_is_of_every_change() -> None:
    """The client's own call is for the changes of a node that need no more than a reason."""
    dry = {
        each
        for each, (*_, found) in OPERATIONS.items()
        if "DryRun" in str(found["responses"]["200"])
    }
    assert dry == {each.method for each in CHANGES if each.path}
    verbs = get_args(DryRunVerb)
    plain = {each.name for each in CHANGES if each.body in (ReasonBody, DrainBody)}
    assert set(verbs) == {each for each in plain if CHANGE[each].subject == "node"}
    for verb in verbs:
        method, path, _ = OPERATIONS[CHANGE[verb].method]
        call = gateway_calls.dry_run_node("name", verb)
        assert (method, path) == (call.method, call.path.replace("name", "{name}"))
        assert (call.query, call.answer) == ({"dry_run": True}, DryRun)


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_as_described(name: str) -> None:
    """A stream has its path and its parameters; `after` is sent as where it goes on."""
    method, path, operation = OPERATIONS[name]
    function = call_of(STREAMS[name])
    given = {each: sample(each) for each in inspect.signature(function).parameters}
    stream: ApiStream[Any] = function(**given)
    for place in parameters(operation, "path"):
        path = path.replace(f"{{{place}}}", sample(place))
    assert (method, path) == ("GET", stream.path)
    query = parameters(operation, "query")
    assert query.keys() - {"after"} == stream.query.keys()
    assert ("after" in query) == ("after" in given)
    assert stream.after == given.get("after")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b", "a%2fb", "x\n", "\u202ex", "a" * 300])
def test_a_name_never_changes_the_path(name: str) -> None:
    """A text that is no name of a node, a pool or a saga is refused before it is sent."""
    for call in (gateway_calls.get_node, gateway_calls.get_pool, gateway_calls.get_saga):
        with pytest.raises(ValueError, match="is not a valid name"):
            call(name)
