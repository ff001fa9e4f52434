"""No message and no record is decoded whose values break the arithmetic of what reads it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from schemas.messages import Invalid, Message, message_type
from schemas.node_events import Fault, GpuIdentity, ProviderNotice, Registered, node_codec
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from schemas.value_limits import time_outside
from tests.golden.catalogue import everything

TOO_EARLY = ("0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "1970-01-01T00:30:00+01:00")
TOO_LATE = ("9999-12-31T23:59:59-14:00", "2101-01-01T00:00:00Z", "2100-12-31T23:30:00-01:00")
NORMAL = ("1970-01-01T00:00:00Z", "2020-02-29T12:00:00Z", "2031-01-01T00:00:00+14:00")
NOTICE: dict[str, Any] = {
    "type": message_type(ProviderNotice),
    "id": "a",
    "time": "2026-01-01T00:00:00Z",
    "pool": "p",
    "node": "n",
    "notice": "x",
}


def decoded(**changes: Any) -> Any:
    return node_codec.decode(msgspec.json.encode(NOTICE | changes))


@pytest.mark.parametrize("text", [*TOO_EARLY, *TOO_LATE])
@pytest.mark.parametrize("field", ["time", "deadline"])
def test_a_time_outside_the_limits_is_invalid_and_named(field: str, text: str) -> None:
    """A time outside the limits is invalid in any zone, and the reason names the field."""
    found = decoded(**{field: text})
    assert isinstance(found, Invalid)
    assert f"`$.{field}`" in found.reason


@pytest.mark.parametrize("text", NORMAL)
def test_a_time_inside_them_is_not(text: str) -> None:
    """A host without a clock battery starts in 1970."""
    assert isinstance(decoded(time=text, deadline=text), ProviderNotice)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "two\r\nlines"},
        {"id": "x" * 10_000},
        {"notice": "x" * 10_000},
        {"node": "x" * 10_000},
    ],
    ids=str,
)
def test_a_name_that_fits_no_header_is_invalid(changes: dict[str, Any]) -> None:
    """IDs become headers of what follows from a message."""
    assert isinstance(decoded(**changes), Invalid)


def test_an_integer_of_more_than_64_bits_is_invalid() -> None:
    """No metric, no other language and no float can hold it."""
    fault = {**NOTICE, "type": message_type(Fault), "kind": "xid", "code": 10**30}
    found = node_codec.decode(msgspec.json.encode(fault | {"code": 0, "metrics": {}}))
    assert isinstance(found, Fault)
    for changes in ({"code": 10**30}, {"metrics": {"a": 10**30}}, {"sequence": -(10**30)}):
        text = str(fault | changes).replace("'", '"')
        assert isinstance(node_codec.decode(text.encode()), Invalid), changes


def test_times_are_found_wherever_they_are() -> None:
    """Times are found in nested structs, in lists and in dictionaries."""
    bad = datetime(9999, 1, 1, tzinfo=UTC)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    record = msgspec.structs.replace(
        NodeRecord(pool="p", node="n"), attempts=(), registered_at=now, changed_at=bad
    )
    assert time_outside(record) == "$.changed_at"
    event = Registered(id="a", time=now, pool="p", node="n", instance="i", gpus=(GPU,))
    assert not time_outside(event)
    spec = PoolSpec(provider="x", instance_type="y", min_nodes=1, max_nodes=1)
    pool = PoolRecord(name="p", spec=spec, desired=1, avoid={"zone": bad})
    assert time_outside(pool) == "$.avoid"


GPU = GpuIdentity(index=0)


def numbers(kind: inspect.Type, path: str) -> Iterator[str]:
    """Every number in a type that has no limits, by its path."""
    match kind:
        case inspect.IntType(ge=None) | inspect.FloatType(ge=None):
            yield path
        case inspect.StructType():
            for each in kind.fields:
                yield from numbers(each.type, f"{path}.{each.name}")
        case inspect.UnionType():
            for member in kind.types:
                yield from numbers(member, path)
        case inspect.DictType():
            yield from numbers(kind.value_type, path)
        case inspect.VarTupleType() | inspect.ListType():
            yield from numbers(kind.item_type, path)
        case _:
            pass


MESSAGES = sorted(
    {each.kind for each in everything() if issubclass(each.kind, Message)}, key=message_type
)


@pytest.mark.parametrize("kind", MESSAGES, ids=message_type)
def test_every_number_of_every_message_has_limits(kind: type[Message]) -> None:
    """A new field takes `Int`, `Float` or `Seconds`."""
    assert list(numbers(inspect.type_info(kind), kind.__name__)) == []
