"""Services, agents and clients of different releases read one another: fields come and go.

A field that this release does not know is left out of messages and records; one that is missing has
its default. A request or a command with such a field is refused, because it asks for something that
is not understood; so what has its default is not sent.
"""

import json
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from schemas import agent_commands, node_disconnections
from schemas.duration import decode_hook
from schemas.messages import Invalid, Message, Record, UnknownType, decoder, encode
from schemas.operations import REQUESTS
from schemas.sweeps import SweepRequest
from schemas.workload_checks import WorkloadCheckRequest
from tests.golden.catalogue import Golden, everything
from tests.golden.examples import example
from tests.schemas.test_goldens import CODECS

LATER = {"added_later": {"by": ["a newer release"]}}
STORED = [each for each in everything() if issubclass(each.kind, Message | Record)]
SENT = [
    *sorted(set(REQUESTS.values()), key=lambda each: each.__name__),
    *(agent_commands.ResetRequest, agent_commands.RebootRequest, agent_commands.DiagnoseRequest),
    *(node_disconnections.DisconnectRequest, node_disconnections.ReadmitRequest),
    *(SweepRequest, WorkloadCheckRequest),
]


def with_later(value: Any, kind: inspect.Type) -> Any:
    """A JSON value with one more field in each object that is a struct of ours."""
    match kind:
        case inspect.Metadata():
            return with_later(value, kind.type)
        case inspect.UnionType():
            for each in kind.types:
                value = with_later(value, each)
        case inspect.StructType() if isinstance(value, dict):
            fields = {each.encode_name: each.type for each in kind.fields}
            return LATER | {
                name: with_later(each, fields[name]) if name in fields else each
                for name, each in value.items()
            }
        case inspect.DictType() if isinstance(value, dict):
            return {name: with_later(each, kind.value_type) for name, each in value.items()}
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
            return [with_later(each, kind.item_type) for each in value]
    return value


def read(golden: Golden, data: bytes) -> Any:
    """Decode as services do."""
    if issubclass(golden.kind, Record):
        return decoder(golden.kind).decode(data)
    found = [each for codec in CODECS if not isinstance(each := codec.decode(data), UnknownType)]
    assert not isinstance(found[0], Invalid), found[0]
    return found[0]


def required_of(kind: type[msgspec.Struct]) -> set[str]:
    """The fields that have no default."""
    return {
        each.encode_name
        for each in msgspec.structs.fields(kind)
        if each.default is msgspec.NODEFAULT and each.default_factory is msgspec.NODEFAULT
    }


@pytest.mark.parametrize("golden", STORED, ids=str)
def test_what_a_newer_release_adds_is_left_out(golden: Golden) -> None:
    """Unknown fields are left out at every depth, a pool's settings included."""
    data = golden.path.read_bytes()
    newer = with_later(json.loads(data), inspect.type_info(golden.kind))
    assert newer != json.loads(data)
    assert read(golden, msgspec.json.encode(newer)) == read(golden, data)


@pytest.mark.parametrize("golden", STORED, ids=str)
def test_what_an_older_release_lacks_has_its_default(golden: Golden) -> None:
    """A message of nothing but the fields that it must have."""
    whole, required = json.loads(golden.path.read_bytes()), required_of(golden.kind)
    least = {name: each for name, each in whole.items() if name in required | {"type"}}
    decoded = read(golden, msgspec.json.encode(least))
    for each in msgspec.structs.fields(golden.kind):
        if each.encode_name not in least:
            default = each.default_factory() if each.default is msgspec.NODEFAULT else each.default
            assert getattr(decoded, each.name) == default, each.name


def test_a_wrong_value_beside_an_unknown_field_is_no_record() -> None:
    """Only unknown fields are left out: errors are not."""
    golden = next(each for each in STORED if each.name == "PoolRecord")
    newer = with_later(json.loads(golden.path.read_bytes()), inspect.type_info(golden.kind))
    newer["spec"]["min_nodes"] = "many"
    with pytest.raises(msgspec.ValidationError, match=r"\$\.spec\.min_nodes"):
        decoder(golden.kind).decode(msgspec.json.encode(newer))


@pytest.mark.parametrize("kind", SENT, ids=lambda each: each.__name__)
def test_a_request_says_what_differs_from_its_defaults(kind: type[msgspec.Struct]) -> None:
    """A field that a later release adds is then sent to an older one only where it matters."""
    whole = json.loads(example(kind))
    least = {name: each for name, each in whole.items() if name in required_of(kind)}
    made = msgspec.json.decode(msgspec.json.encode(least), type=kind, dec_hook=decode_hook)
    assert json.loads(encode(made)) == least
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(msgspec.json.encode(least | LATER), type=kind, dec_hook=decode_hook)
