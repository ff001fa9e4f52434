"""Lists what is fuzzed: everything that reads bytes which another party wrote."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from agent.enrollment import ANSWER_DECODER
from agent.operator_tools import parse
from agent.sources.cloud import notice_parsers
from agent.sources.kernel_log_parser import parse_kmsg, split_records
from schemas.messages import Message, decoder, encode
from schemas.node_events import Fault
from schemas.stored_messages import decode_stored, message_subject
from services.fleet_client.query_answers import decode_answer
from services.health_monitor.rules.policy_file import parse_policy
from services.operator_text.event_text import describe_stored
from services.primitives.errors import AnswerError, ConfigurationError
from services.settings.settings_file import parse_settings
from services.simulator.inputs.scenario.scenario_file import read_text
from tests.golden.catalogue import ANSWER_TYPES, Golden, message_types, record_types
from tests.golden.catalogue import everything as goldens

ROOT: Final = Path(__file__).resolve().parents[2]
CONFIG: Final = ROOT / "config"
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
CODES: Final = (13, 31, 48, 74, 79, 94, 95, 145)
KERNEL_LOG: Final = ROOT / "tests" / "agent" / "data" / "storm.kmsg"
OTHER_LINES: Final = (
    b"2026-01-01T00:00:00+00:00 gpu1 kernel: NVRM: Xid (PCI:0000:81:00): 79, pid=1, GPU has fallen",
    b'{"MESSAGE":"NVRM: Xid (PCI:0000:81:00): 48, DBE","_TRANSPORT":"kernel","PRIORITY":"3"}',
    b"<4>Jan  1 00:00:00 gpu1 kernel: [  12.5] NVRM: Xid (PCI:0000:01:00): 145, RLW_REMAP Nonfatal",
    b"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
)


@dataclass(frozen=True, slots=True)
class Target:
    """Describes one reader of foreign bytes."""

    name: str
    corpus: Sequence[bytes]
    run: Callable[[bytes], object]
    allowed: tuple[type[Exception], ...] = ()
    """What it may raise."""


def _of(kinds: Sequence[type[Any]]) -> dict[type[Any], Golden]:
    found = {each.kind: each for each in goldens()}
    return {kind: found[kind] for kind in kinds}


def _message(line: bytes) -> None:
    """A subject, and the message on it."""
    name, _, data = line.partition(b"\n")
    stored = SimpleNamespace(subject=_text(name), data=data)
    found = decode_stored(stored)
    describe_stored(stored)  # type: ignore[arg-type]
    if isinstance(found, Message):
        again = decode_stored(SimpleNamespace(subject=stored.subject, data=encode(found)))
        assert again == found, "it is another message when it is written and read again"


def _messages() -> Target:
    """Every type, each under the subject of its own kind."""
    corpus = []
    for each in _of(message_types()).values():
        found = _read(each)
        corpus.append(message_subject(found).encode() + b"\n" + each.path.read_bytes())
    return Target("messages", corpus, _message)


def _read(golden: Golden) -> Any:
    return msgspec.json.decode(golden.path.read_bytes(), type=golden.kind)


def _records() -> Target:
    """Every type; the first line names it."""
    decoders = {kind.__name__.encode(): decoder(kind) for kind in record_types()}

    def run(line: bytes) -> None:
        name, _, data = line.partition(b"\n")
        if name in decoders:
            found = decoders[name].decode(data)
            assert decoders[name].decode(encode(found)) == found

    corpus = [
        kind.__name__.encode() + b"\n" + each.path.read_bytes()
        for kind, each in _of(record_types()).items()
    ]
    return Target("records", corpus, run, (msgspec.DecodeError,))


def _answers() -> Target:
    def run(data: bytes) -> None:
        for kind in ANSWER_TYPES:
            try:
                decode_answer(kind, data, "fuzz")
            except AnswerError:
                continue

    return Target("answers", [e.path.read_bytes() for e in _of(ANSWER_TYPES).values()], run)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _policy(data: bytes) -> None:
    policy = parse_policy("(fuzz)", data)
    for code in CODES:
        fault = Fault(
            id=f"f-{code}", time=NOW, pool="p", node="n", kind="xid", code=code, message="fuzz"
        )
        policy.judge(fault, {}, NOW)


def _kernel_log(data: bytes) -> None:
    records, _ = split_records(data)
    for each in (*records, data):
        parse_kmsg(each)


def _notices(data: bytes) -> None:
    for each in (
        notice_parsers.aws_spot,
        notice_parsers.aws_rebalance,
        notice_parsers.aws_scheduled,
        lambda body: notice_parsers.azure_events(body, "vm1"),
        lambda body: notice_parsers.gcp_preempted(_text(body), NOW),
        lambda body: notice_parsers.gcp_maintenance(_text(body), NOW),
    ):
        try:
            notice_parsers.read(data, each)
        except notice_parsers.UnreadableNotice:
            continue


def _files(*patterns: str) -> list[bytes]:
    return [each.read_bytes() for pattern in patterns for each in sorted(CONFIG.glob(pattern))]


@cache
def targets() -> dict[str, Target]:
    """Return every target, by name."""
    lines = [*KERNEL_LOG.read_bytes().splitlines()[:200], *OTHER_LINES]
    found = (
        _messages(),
        _records(),
        _answers(),
        Target(
            "configuration",
            _files("*.yaml"),
            lambda data: parse_settings("(fuzz)", _text(data), {}),
            (ConfigurationError,),
        ),
        Target("policy", _files("health-policy*.yaml"), _policy, (ConfigurationError,)),
        Target(
            "scenario",
            _files("scenarios/*.yaml"),
            lambda data: read_text("(fuzz)", _text(data)),
            (ConfigurationError,),
        ),
        Target("kernel-log", lines, _kernel_log),
        Target("parse", lines, lambda data: list(parse(data.split(b"\n")))),
        Target("bootstrap", BOOTSTRAP, ANSWER_DECODER.decode, (msgspec.DecodeError,)),
        Target("notices", NOTICES, _notices),
    )
    return {each.name: each for each in found}


BOOTSTRAP: Final = (b'{"token":"eyJ0.abc"}', b'{"refused":"the node is not expected"}')
NOTICES: Final = (
    b'{"action":"terminate","time":"2026-01-01T00:02:00Z"}',
    b'{"noticeTime":"2026-01-01T00:02:00Z"}',
    b"""[{"NotBefore":"1 Jan 2026 00:02:00 GMT","Code":"system-reboot","EventId":"e-1",
    "State":"active"}]""",
    b"""{"DocumentIncarnation":1,"Events":[{"EventId":"A","EventType":"Preempt",
    "ResourceType":"VirtualMachine","Resources":["vm1"],"EventStatus":"Scheduled",
    "NotBefore":"Mon, 19 Sep 2026 18:29:47 GMT"}]}""",
    b"TRUE",
    b"TERMINATE_ON_HOST_MAINTENANCE",
)
