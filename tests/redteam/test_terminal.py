"""A terminal obeys nothing that comes from a message, a record or an answer."""

import io
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from schemas.dry_run import DryRun, Gate
from schemas.evidence_bundles import EvidenceBundle, KernelLine
from schemas.fleet_events import FACTS as FLEET_TYPES
from schemas.fleet_events import fleet_codec
from schemas.fleet_queries import CurrentFailure, GpuView, HealthEvent, NodeView, PoolView
from schemas.instance_records import InstanceRecord
from schemas.messages import Invalid, Message, UnknownType, encode
from schemas.node_events import FACTS as NODE_TYPES
from schemas.node_events import CheckResult, Fault, node_codec
from schemas.node_records import NodeRecord
from schemas.offering_records import OfferingView
from schemas.pool_events import FACTS as POOL_TYPES
from schemas.pool_events import pool_codec
from schemas.present_answers import Block, BlockedNode
from schemas.saga_log_entries import STATUSES, saga_codec
from schemas.saga_params import LaunchSpec
from schemas.stored_messages import message_subject
from services.bus.port import Stored
from services.cli import console, dry_run_output
from services.cli.commands import (
    breaker_commands,
    report_commands,
    saga_commands,
    serve_command,
)
from services.cli.console import Format
from services.cli.progress_board import ProgressBoard, progress_board
from services.cli.text import evidence_text, instances_text, offering_text, tables
from services.cli.text.styles import to_terminal
from services.cli.text.table_layout import columns
from services.fleet_client import repair_report, why_text
from services.fleet_client.cost_report import CostReport, CostRow
from services.fleet_client.node_timeline import timeline_rows
from services.fleet_client.saga_progress import Progress
from services.operator_text.event_text import describe, describe_stored
from services.operator_text.safe_text import escape, escape_line
from services.runtime.logs import JsonFormatter
from tests.golden.examples import example
from tests.redteam.hostile import HOSTILE, UNSAFE

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
NODE: Final[dict[str, Any]] = {"id": "1", "time": NOW, "pool": "training", "node": "n1"}
CODECS = (node_codec, pool_codec, fleet_codec, saga_codec)
TYPES = (*NODE_TYPES, *POOL_TYPES, *FLEET_TYPES, *STATUSES)


def stored_fault(text: str) -> Stored:
    """A fault as it is stored."""
    fault = Fault(kind="xid", code=79, message=text, job=text, system=text, **NODE)
    return Stored("navarch.v1.node.training.n1.event.fault", encode(fault), 1, NOW)


def gpu_view(text: str, health: str) -> GpuView:
    """Return a forged GPU."""
    names = dict.fromkeys(("uuid", "serial", "pci", "name"), text)
    why = dict.fromkeys(("action", "rule", "reason", "fault", "kind", "since"), text)
    return GpuView(index=0, health=health, cordoned=True, **names, **why)


def node_view(text: str) -> NodeView:
    """A forged answer, with text in every field that is free."""
    return NodeView(
        id="n1",
        pool="training",
        status=text,
        health=text,
        provider=text,
        instance_type=text,
        region=text,
        zone=text,
        rack=text,
        address=text,
        job=text,
        saga=text,
        reason=text,
        held_until=text,
        held_by=text,
        held_reason=text,
        registered_at=text,
        last_change=text,
        gpus=(gpu_view(text, "unhealthy"), gpu_view(text, text)),
        health_events=(HealthEvent(time=text, kind=text, message=text, result=text, rule=text),),
    )


def pool_view(text: str) -> PoolView:
    """Return a forged answer about a pool."""
    counts = dict.fromkeys(
        ("desired", "nodes", "active", "healthy", "unhealthy", "cordoned", "min_nodes"), 1
    )
    return PoolView(
        name="training",
        max_nodes=4,
        breaker=text,
        breaker_since=text,
        breaker_cause=text,
        breaker_reason=text,
        breaker_by=text,
        breaker_probe=text,
        breaker_probe_at=text,
        warnings=(text,),
        **counts,
    )


def instance(text: str) -> InstanceRecord:
    """Return a record with a provider's error."""
    launch = LaunchSpec(fleet="f", provider=text, instance_type=text)
    return InstanceRecord(
        pool="training",
        instance="n1",
        state="leaked",
        provider=text,
        token="t",
        launch=launch,
        provider_id=text,
        error=text,
        intended_at=NOW,
    )


def bundle(text: str) -> EvidenceBundle:
    """Return the evidence of a node."""
    return EvidenceBundle(
        pool="training",
        node="n1",
        fault_signature=text,
        unhealthy_at=NOW,
        hostname=text,
        address=text,
        provider=text,
        provider_id=text,
        driver_version=text,
        kernel_lines=(KernelLine(time=NOW, line=text),),
        checks=(
            msgspec.structs.replace(
                msgspec.convert(json.loads(example(BOOT)), BOOT),
                checks=(CheckResult(name=text, ok=False, detail=text),),
            ),
        ),
        omitted={text: 1},
    )


BOOT = next(each for each in NODE_TYPES if each.__name__ == "BootChecked")


def why(text: str) -> str:
    """Return the output of `navarch why`."""
    node = NodeRecord(pool="training", node="n1", health="unhealthy", health_reason=text)
    held = Block(gate="fault", text=text, remedy=text)
    present = BlockedNode(fault=text, blocked=(held,), next=text)
    answer = why_text.why_node(node, present, [stored_fault(text)], [])
    return why_text.why_page(msgspec.structs.replace(answer, next=text, evidence=text))


def saga(text: str) -> Progress:
    """Return a saga's state."""
    return Progress(
        saga=text,
        kind=text,
        pool=text,
        node=text,
        status=text,
        reason=text,
        step=text,
        since=NOW,
        waiting_for=text,
        next=(text,),
        leaves=text,
    )


def dry_run(text: str) -> str:
    """Return the output of a command with `--dry-run`."""
    return dry_run_output.page(
        DryRun(
            verb=text,
            node=text,
            pool=text,
            accepted=True,
            reason=text,
            gates=(Gate(name=text, passed=False, detail=text),),
            leaves=text,
            promotes=text,
            new_node=text,
        )
    )


def offering(text: str) -> OfferingView:
    """Return an offering, made from an example."""
    plain = json.loads(example(OfferingView)) | dict.fromkeys(
        ("provider", "region", "zone", "instance_type", "reason", "gpu"), text
    )
    return msgspec.convert(plain, OfferingView)


def table(headers: Any, rows: Any) -> str:
    """Return a table in colour."""
    return columns(headers, rows, colour=True)


OUTPUTS: Final[dict[str, Callable[[str], str]]] = {
    "list": lambda text: table(tables.NODE_HEADERS, tables.node_rows([node_view(text)], NOW)),
    "get": lambda text: tables.node_page(node_view(text), NOW, colour=True),
    "status": lambda text: table(tables.POOL_HEADERS, tables.pool_rows([pool_view(text)])),
    "status, warnings": lambda text: "\n".join(tables.warnings([pool_view(text)])),
    "status, sagas": lambda text: tables.open_sagas_text(
        [{"id": text, "since": text, "reason": text}], NOW, colour=True
    ),
    "status, failures": lambda text: tables.failure_line(
        CurrentFailure(failure="decision-failed", about=text, reason=text, remedy=text)
    ),
    "events": lambda text: tables.event_line(NOW, describe_stored(stored_fault(text)), colour=True),
    "events, unreadable": lambda text: tables.event_line(
        NOW,
        describe_stored(Stored(f"navarch.v1.node.{text}.{text}", text.encode(), 1, NOW)),
        colour=True,
    ),
    "timeline": lambda text: tables.timeline(timeline_rows([stored_fault(text)]), colour=True),
    "why": why,
    "saga list": lambda text: table(saga_commands.HEADERS, saga_commands.rows([saga(text)], NOW)),
    "saga show": lambda text: saga_commands.page(saga(text), [stored_fault(text)]),
    "breaker": lambda text: table(
        breaker_commands.HEADERS, [breaker_commands.row(pool_view(text), NOW)]
    ),
    "cost": lambda text: report_commands.cost_text(
        CostReport(
            since=NOW,
            until=NOW,
            label=text,
            instance_hours=1,
            dollars=1,
            unpriced_hours=1,
            rows=(CostRow(day=text, pool=text, label=text, instance_hours=1, dollars=1),),
        )
    ),
    "report": lambda text: report_commands.report_text(
        repair_report.RepairReport(
            since=NOW,
            until=NOW,
            rows=(
                repair_report.RepairRow(
                    pool=text,
                    fault=text,
                    count=1,
                    lost_gpu_hours=1,
                    repair_seconds_median=1,
                    repair_seconds_p95=1,
                    repair_seconds_longest=1,
                    longest=text,
                ),
            ),
            out=(repair_report.OutOfService(pool="training", node="n1", why=text),),
        )
    ),
    "instances": lambda text: table(
        instances_text.INSTANCE_HEADERS, instances_text.instance_rows([instance(text)], NOW)
    ),
    "leaked": lambda text: table(
        instances_text.LEAKED_HEADERS, instances_text.leaked_rows([instance(text)], NOW)
    ),
    "offerings": lambda text: table(
        offering_text.HEADERS, offering_text.offering_rows([offering(text)], NOW)
    ),
    "evidence": lambda text: evidence_text.summary(bundle(text)),
    "evidence, kernel log": lambda text: evidence_text.files(bundle(text))["kernel.log"].decode(),
    "dry run": dry_run,
    "unknown type": lambda text: describe(UnknownType(text)).detail,
    "invalid": lambda text: describe(Invalid(text, text)).detail,
}
"""Output -> the text of the command, with a hostile text in every free field."""


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_shows_hostile_text_and_obeys_none_of_it(output: str) -> None:
    """The text is escaped, adds no line, and has no colour but that of the command itself."""
    make = OUTPUTS[output]
    for name, text in HOSTILE.items():
        plain, found = (to_terminal(make(each)) for each in ("x", text))
        for sequence in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m"):
            assert found.count(sequence) == plain.count(sequence), name
            found, plain = found.replace(sequence, ""), plain.replace(sequence, "")
        assert not UNSAFE.search(found), name
        assert len(plain.split("\n")) == len(found.split("\n")), name


@pytest.mark.parametrize("name", HOSTILE)
def test_json_is_escaped_and_stays_the_same_document(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`-o json` on a terminal, and stored messages as lines."""
    text = HOSTILE[name]
    console.write_data(Format.JSON, {"reason": text})
    console.write(console.json_line(stored_fault(text)))
    console.write(console.json_line(Stored("a.b", text.encode() + b"\xff", 1, NOW)))
    found = capsys.readouterr().out
    assert not UNSAFE.search(found)
    *document, fault, invalid = found.splitlines()
    assert {"reason": text} == json.loads("\n".join(document))
    assert text == json.loads(fault)["message"]
    assert text in json.loads(invalid)["invalid"]


@pytest.mark.parametrize("name", HOSTILE)
def test_yaml_is_escaped_and_stays_the_same_document(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command with `-o yaml` prints escaped text that is read as the same values."""
    console.write_data(Format.YAML, {"reason": HOSTILE[name]})
    found = capsys.readouterr().out
    assert not UNSAFE.search(found)
    assert yaml.safe_load(found) == {"reason": HOSTILE[name]}


@pytest.mark.parametrize("name", HOSTILE)
def test_log_lines_are_escaped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that services write are escaped, and so are those that `navarch serve` prints."""
    text = HOSTILE[name]
    record = logging.LogRecord("n", logging.INFO, "f", 1, text, None, None)
    record.reason = text
    line = JsonFormatter("s").format(record)
    assert not UNSAFE.search(line)
    assert (text, text) == (json.loads(line)["msg"], json.loads(line)["reason"])
    written = io.StringIO()
    monkeypatch.setattr("sys.stdout", written)
    log = serve_command.stdout_log()
    log("s", line)
    log("s", "{" + text)
    log("s", text)
    assert not UNSAFE.search(written.getvalue())
    assert len(written.getvalue().splitlines()) == 3
    assert not UNSAFE.search(serve_command._log_text("s", line).plain)


@pytest.mark.parametrize("name", HOSTILE)
def test_bars_of_progress_obey_no_markup(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither terminal sequences nor those of the library that draws them."""
    text, seen = HOSTILE[name], {}

    class Bars:
        def add_task(self, node: str, **fields: Any) -> int:
            seen.update(fields, node=node)
            return 1

        def update(self, _: int, **fields: Any) -> None:
            seen.update(fields)

    ProgressBoard(Bars()).show(text, 0.5, text)
    assert not UNSAFE.search(seen["node"] + seen["text"])
    monkeypatch.setattr(console, "colour", lambda: True)
    with progress_board() as board:
        board.show("n1", 0.5, text)
        columns = board._bars.columns
        shown = [each.render(board._bars.tasks[0]) for each in columns]
    assert escape_line(text) in str(shown[2])


def free(kind: inspect.Type) -> st.SearchStrategy[Any] | None:
    """Any text, for a field that any text fits."""
    match kind:
        case inspect.StrType(pattern=None):
            return st.text(max_size=min(kind.max_length or 40, 40))
        case inspect.UnionType(types=types):
            return next((each for each in map(free, types) if each is not None), None)
        case inspect.VarTupleType(item_type=item):
            inner = free(item)
            return st.lists(inner, max_size=2) if inner is not None else None
        case inspect.DictType(value_type=value):
            inner = st.text(max_size=20) if isinstance(value, inspect.AnyType) else free(value)
            return (
                st.dictionaries(st.text(max_size=9), inner, max_size=2)
                if inner is not None
                else None
            )
        case _:
            return None


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A message of any type, as an agent, a service or an attacker writes it."""
    kind = draw(st.sampled_from(TYPES))
    plain = json.loads(example(kind))
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        strategy = free(field.type)
        if strategy is not None and field.name not in ("id", "cause"):
            plain[field.encode_name] = draw(strategy)
    return json.dumps(plain, ensure_ascii=draw(st.booleans())).encode()


@given(messages())
def test_no_message_that_can_be_decoded_controls_a_terminal(data: bytes) -> None:
    """An event of any text is one line without a character that a terminal obeys."""
    message = next(
        each
        for each in (codec.decode(data) for codec in CODECS)
        if not isinstance(each, UnknownType)
    )
    assert isinstance(message, Message)
    for subject in (message_subject(message), "navarch.v1.node.p.n.event.fault"):
        stored = Stored(subject, data, 1, NOW)
        text = tables.event_line(NOW, describe_stored(stored), colour=False)
        assert text == to_terminal(text) == escape_line(text)
        rows = timeline_rows([stored])
        assert 2 == len(tables.timeline(rows, colour=False).split("\n"))
        assert not UNSAFE.search(tables.timeline(rows, colour=False))


@given(st.text())
def test_escaped_text_is_plain_and_stays_what_it_is(text: str) -> None:
    """Escaping twice is escaping once; JSON reads what was escaped as what it was."""
    assert escape(text) == escape(escape(text))
    assert not UNSAFE.search(escape(text))
    assert all(each.isprintable() for each in escape_line(text))
    document = json.dumps(text, ensure_ascii=False)
    assert text == json.loads(escape(document)) == json.loads(escape_line(document))


def test_no_message_contains_a_style() -> None:
    """A style is a lone surrogate, which neither JSON nor UTF-8 can carry."""
    for data in (b'{"a":"\\ud801"}', b'{"a":"\xed\xa0\x81"}'):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            msgspec.json.decode(data)
    assert to_terminal("a\udc80") == "a\\udc80"
