"""Every release reads what earlier releases wrote; and docs/events.md matches the code.

A golden is a message as a run wrote it. `python -m tests.golden` adds one for a new type and
updates the document; `python -m tests.golden.capture` takes all of them from runs.
"""

import json
from typing import Any

import msgspec
import pytest

from schemas.dead_letters import dead_codec
from schemas.duration import decode_hook, encode_hook
from schemas.fleet_events import fleet_codec
from schemas.messages import Invalid, Message, UnknownType, encode, message_type
from schemas.node_events import FACTS as NODE_FACTS
from schemas.node_events import NODE_EVENT_TYPES, ConditionEnded, Fault, Telemetry, node_codec
from schemas.pool_events import FACTS as POOL_FACTS
from schemas.pool_events import POOL_EVENT_TYPES, pool_codec
from schemas.saga_log_entries import STATUSES, saga_codec, timer_codec
from tests.golden.catalogue import everything, message_types, read_sources
from tests.golden.document import DOCUMENT, document
from tests.golden.examples import example

CODECS = (node_codec, pool_codec, fleet_codec, saga_codec, timer_codec, dead_codec)
GOLDENS = everything()


def part_of(golden: Any, now: Any) -> Any:
    """The part of `now` that the golden has: fields that were added later are left out."""
    if isinstance(golden, dict) and isinstance(now, dict):
        return {key: part_of(value, now.get(key)) for key, value in golden.items()}
    if isinstance(golden, list) and isinstance(now, list) and len(golden) == len(now):
        return [part_of(*pair) for pair in zip(golden, now, strict=True)]
    return now


def spelt(value: Any) -> Any:
    """A value as it is written, with what its type leaves out because it is the default."""
    if isinstance(value, msgspec.Struct):
        built: dict[str, Any] = json.loads(encode(value))
        fields = msgspec.structs.fields(value)
        return built | {each.encode_name: spelt(getattr(value, each.name)) for each in fields}
    if isinstance(value, dict):
        return {str(key): spelt(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [spelt(each) for each in value]
    return json.loads(msgspec.json.encode(value, enc_hook=encode_hook))


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_every_type_has_a_golden_that_todays_code_reads_and_writes(golden):
    """Decoded and encoded again it is the same: no field was renamed, retyped or dropped."""
    assert golden.path.exists(), f"{golden} has no golden; write it: python -m tests.golden"
    data = golden.path.read_bytes()
    if issubclass(golden.kind, Message):
        (decoded,) = [
            found for codec in CODECS if not isinstance(found := codec.decode(data), UnknownType)
        ]
        assert not isinstance(decoded, Invalid), decoded
    else:
        decoded = msgspec.json.decode(data, type=golden.kind, dec_hook=decode_hook)
    assert type(decoded) is golden.kind
    written = json.loads(data)
    assert part_of(written, spelt(decoded)) == written


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_a_field_that_is_added_has_a_default(golden):
    """Older messages lack it: every field that a golden may lack is optional."""
    required = {
        field.encode_name
        for field in msgspec.structs.fields(golden.kind)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    }
    assert required <= set(json.loads(golden.path.read_bytes()))


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_an_unknown_field_is_ignored_except_in_what_people_type(golden):
    """Older readers ignore a newer release's field; an unknown key of a request is refused."""
    value = json.loads(golden.path.read_bytes()) | {"added_by_a_newer_release": 1}
    data = json.dumps(value)
    if golden.kind.__struct_config__.forbid_unknown_fields:
        with pytest.raises(msgspec.ValidationError, match="unknown field"):
            msgspec.json.decode(data, type=golden.kind, dec_hook=decode_hook)
    else:
        decoded = msgspec.json.decode(data, type=golden.kind, dec_hook=decode_hook)
        assert type(decoded) is golden.kind


def test_no_golden_is_left_over():
    """A release wrote each type, so a type cannot simply be removed."""
    folders = {golden.path.parent for golden in GOLDENS}
    files = {path for folder in folders for path in folder.glob("*.json")}
    assert files - {golden.path for golden in GOLDENS} == set()


def test_every_golden_has_a_source():
    """The source names the run that wrote a golden, or says that no run produces the type."""
    assert {golden.name for golden in GOLDENS} == set(read_sources())


def test_every_message_is_known_to_exactly_one_codec_and_has_a_subject():
    """A type that no codec reads would be counted as unknown everywhere."""
    for kind in message_types():
        knowing = [codec for codec in CODECS if message_type(kind) in codec._decoders]
        assert len(knowing) == 1, kind
    assert set(NODE_FACTS) | {Telemetry} == set(NODE_EVENT_TYPES)
    assert set(POOL_FACTS) == set(POOL_EVENT_TYPES)
    assert len(set(POOL_FACTS.values())) == len(POOL_FACTS)
    # The end of a condition goes where its begin goes, so that they stay in order.
    shared = [kind for kind, fact in NODE_FACTS.items() if fact == NODE_FACTS[Fault]]
    assert shared == [Fault, ConditionEnded]
    assert len(set(NODE_FACTS.values())) == len(NODE_FACTS) - 1


def test_types_are_named_by_source_and_version():
    """Every type has the form `io.navarch.<source>.event.v1.<name>`, each once."""
    names = [message_type(kind) for kind in message_types()]
    assert len(set(names)) == len(names)
    for name in names:
        parts = name.split(".")
        assert (parts[:2], parts[3:5], len(parts)) == (["io", "navarch"], ["event", "v1"], 6)


def test_the_subject_of_a_saga_entry_determines_its_type():
    """Step and status name one type, so a log can be read by its subjects alone."""
    seen = {(kind.__mro__[1].__name__, status): kind for kind, status in STATUSES.items()}
    assert len(seen) == len(STATUSES)


@pytest.mark.parametrize("golden", GOLDENS, ids=str)
def test_an_example_can_be_made_of_every_type(golden):
    """A golden can be written for any type that is added."""
    decoded = msgspec.json.decode(example(golden.kind), type=golden.kind, dec_hook=decode_hook)
    assert type(decoded) is golden.kind


def test_the_document_matches_the_code():
    """docs/events.md is what `python -m tests.golden` writes from the schemas and the goldens."""
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == document(), "docs/events.md is out of date; run: python -m tests.golden"
