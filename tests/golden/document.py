"""Writes docs/events.md from the schemas, their docstrings and the goldens.

A test compares the file with what would be written.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from schemas import (
    enums,
    evidence_bundles,
    fleet_events,
    fleet_queries,
    gpu_samples,
    health_records,
    node_events,
    pool_events,
    pool_records,
    saga_log_entries,
    saga_params,
    subjects,
)
from schemas.dead_letters import DeadLetter
from schemas.event_alerts import ALERTS, ENDS
from schemas.event_subjects import FACTS
from schemas.event_texts import EVENT_TEXTS
from schemas.health_records import HealthRecord
from schemas.instance_records import InstanceRecord
from schemas.lease_records import (
    LaunchBatchRecord,
    LaunchClaimRecord,
    LeaseRecord,
    OpeningsRecord,
    RateLimitRecord,
    RemovalGrantsRecord,
    SetAsideRecord,
    SuspectRecord,
)
from schemas.messages import Record, message_type
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.operations import CHANGES
from schemas.present_answers import PresentAnswer
from schemas.stream_specs import StreamSpec
from schemas.topology import BUCKETS, DURABLES, OBJECT_BUCKETS, STREAMS
from tests.golden.catalogue import ANSWER_TYPES, HERE, STEP_TYPES
from tests.golden.filled_json import written

DOCUMENT: Final = HERE.parents[1] / "docs" / "events.md"
DAY_SECONDS: Final = 86_400

INTRODUCTION: Final = (HERE / "events-introduction.md").read_text(encoding="utf-8")

P, N, F, S, T, V = "p0", "n0", "f0", "s0", "t0", "v0"
NAMES: Final = {
    P: "<pool>",
    N: "<node>",
    F: "<fact>",
    S: "<saga>",
    T: "<step>",
    V: "<verb>",
    "st0": "<status>",
    "o0": "<owner>",
    "k0": "<key>",
    "m0": "<stream>",
    "d0": "<durable>",
    "q0": "<question>",
    "k1": "<sink>",
    "s1": "<service>",
}


def shown(subject: str) -> str:
    """A built subject with placeholders named."""
    return ".".join(NAMES.get(token, token) for token in subject.split("."))


SUBJECTS: Final[tuple[tuple[str, str, str], ...]] = (
    (subjects.telemetry(P, N), "TELEMETRY", "one sample of the whole node"),
    (subjects.node_event(P, N, F), "EVENTS", "a fact about a node"),
    (subjects.node_command(P, N, V), "", "a request to the agent, answered by it"),
    (subjects.pool_event(P, F), "EVENTS", "a fact about a pool"),
    (subjects.fleet_event(F), "EVENTS", "a fact about the fleet's own services"),
    (subjects.pool_request(P, V), "REQUESTS", "what people and schedulers ask for"),
    (subjects.saga_entry(S, T, "st0"), "SAGAS", "one entry of a saga's log"),
    (subjects.timer_schedule("o0", "k0"), "TIMERS", "a timer that waits"),
    (subjects.timer_due("o0", "k0"), "TIMERS", "a timer that fired"),
    (subjects.dead("m0", "d0"), "DEAD", "a message that could not be used"),
    (subjects.sink("k1"), "SINKS", "what an event sink of type `subject` is sent"),
    (subjects.query("q0"), "", "a question about the fleet (request and reply)"),
    (
        subjects.service_logs("s1"),
        "",
        "a request for the log lines of a service, from all replicas",
    ),
)
BUCKET_RECORDS: Final[dict[str, tuple[tuple[str, type[Record]], ...]]] = {
    "POOLS": (
        (pool_records.FLEET_KEY, pool_records.FleetRecord),
        (pool_records.pool_key("<pool>"), pool_records.PoolRecord),
    ),
    "NODES": ((node_key("<pool>", "<node>"), NodeRecord),),
    "HEALTH": ((node_key("<pool>", "<node>"), HealthRecord),),
    "INSTANCES": ((node_key("<pool>", "<node>"), InstanceRecord),),
    "HEARTBEATS": ((node_key("<pool>", "<node>"), HeartbeatRecord),),
    "LEASES": (
        ("<name>", LeaseRecord),
        ("pool-manager.openings.<pool>", OpeningsRecord),
        ("pool-manager.removals.<pool>", RemovalGrantsRecord),
        ("provisioner.pace-<name>", RateLimitRecord),
        ("provisioner.claim-<provider>-<launch>", LaunchClaimRecord),
        ("provisioner.batch-<provider>-<request>", LaunchBatchRecord),
        ("<service>.suspect.<durable>.<sequence>", SuspectRecord),
        ("<service>.set-aside.<durable>.<sequence>", SetAsideRecord),
    ),
    "ANSWERS": ((pool_records.pool_key("<pool>"), PresentAnswer),),
    "REPAIRS": ((evidence_bundles.TOTALS_KEY, evidence_bundles.RepairTotals),),
    "EVIDENCE": (
        (evidence_bundles.capture_name("<pool>", "<node>"), evidence_bundles.EvidenceCapture),
        (
            evidence_bundles.bundle_name("<pool>", "<node>", "<saga>"),
            evidence_bundles.EvidenceBundle,
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct, as its class declares it."""

    name: str
    kind: str
    default: str | None
    """None: it is required."""
    text: str


def document() -> str:
    """Return the whole text."""
    return "\n".join([INTRODUCTION.rstrip(), "", *_generated()]).rstrip() + "\n"


def _generated() -> Iterator[str]:
    yield from _subjects()
    yield from _streams()
    yield from _nodes_and_pools()
    yield from _sagas()
    yield from _others()
    yield from _requests()
    yield from _buckets()
    yield from _parts()
    yield from _words()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


def _subjects() -> Iterator[str]:
    yield "## Subjects\n"
    rows = ((f"`{shown(each)}`", stream, text) for each, stream, text in SUBJECTS)
    yield from _table(("subject", "stream", "what"), rows)
    yield (
        "A token is 1 to 63 of `a-z`, `0-9` and `-`, beginning with a letter or digit; a saga's "
        "name may have 96.\n"
    )


def _streams() -> Iterator[str]:
    yield "## Streams and durables\n"
    yield from _table(
        ("stream", "keeps", "what"),
        ((f"`{each.name}`", _keeps(each), each.description) for each in STREAMS),
    )
    yield from _table(
        ("durable", "stream", "who and what for", "subjects"),
        (
            (f"`{each.name}`", each.stream, each.description, _filters(each.filters))
            for each in DURABLES
        ),
    )


def _filters(filters: Sequence[str]) -> str:
    return "<br>".join(f"`{each}`" for each in filters)


def _keeps(stream: StreamSpec) -> str:
    parts = []
    if stream.retention == "workqueue":
        parts.append("until acknowledged")
    if stream.age_max_seconds >= DAY_SECONDS:
        days = stream.age_max_seconds / DAY_SECONDS
        parts.append(f"{days:g} day{'s' if days > 1 else ''}")
    elif stream.age_max_seconds:
        parts.append(f"{stream.age_max_seconds:g} s")
    if stream.messages_per_subject_max > 0:
        parts.append(f"the last {stream.messages_per_subject_max} a subject")
    return ", ".join(parts) or "until it is removed"


def _readers(subject: str) -> str:
    """Which durables take what is published under a subject."""
    named = [
        f"`{each.name}`" for each in DURABLES if any(_matches(f, subject) for f in each.filters)
    ]
    return ", ".join(named) or "none (people, tools, later readers)"


def _matches(filter_: str, subject: str) -> bool:
    wanted, given = filter_.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(
        each in ("*", token) or token in NAMES for each, token in zip(wanted, given, strict=True)
    )


def _nodes_and_pools() -> Iterator[str]:
    yield "## Facts about nodes\n"
    for kind in node_events.NODE_EVENT_TYPES:
        fact = node_events.FACTS.get(kind)
        subject = subjects.node_event(P, N, fact) if fact else subjects.telemetry(P, N)
        yield from _message(kind, subject)
    yield "## Facts about pools\n"
    for kind, fact in pool_events.FACTS.items():
        yield from _message(kind, subjects.pool_event(P, fact))
    yield "## Facts about the fleet's own services\n"
    for kind, fact in fleet_events.FACTS.items():
        yield from _message(kind, subjects.fleet_event(fact))


def _sagas() -> Iterator[str]:
    yield "## Entries of a saga's log\n"
    yield (
        "The log is the conversation: `started` is the command that the step's performer takes, "
        "`succeeded` or `failed` is its answer, and every append is guarded by the last sequence "
        f"under `{shown(subjects.saga_tree(S))}`. Entries about the saga as a whole have the step "
        f"`{saga_log_entries.WHOLE}`.\n"
    )
    for kind, status in saga_log_entries.STATUSES.items():
        step = T if issubclass(kind, saga_log_entries.StepEntry) else saga_log_entries.WHOLE
        yield from _message(kind, subjects.saga_entry(S, step, status))
    yield "### Inputs and outputs of steps\n"
    for kind in STEP_TYPES:
        yield from _struct(kind, f"steps/{kind.__name__}", "####")


def _others() -> Iterator[str]:
    yield "## Timers and dead letters\n"
    yield from _message(saga_log_entries.TimerDue, subjects.timer_due("o0", "k0"))
    yield from _message(DeadLetter, subjects.dead("m0", "d0"))


def _requests() -> Iterator[str]:
    yield "## Requests\n"
    yield (
        "A request needs no `type`, `id` or `time`. A key that is not known is refused, so that a "
        "typing error does not pass as a default. The answer is a fact about the pool: `scaled` "
        "or `scale-refused`, `request-accepted` or `request-refused`, with `request` echoed.\n"
    )
    for change in CHANGES:
        verb = change.name
        yield from _struct(change.request, f"requests/{verb}", "###", title=f"`{verb}`")
        refusals = ", ".join(f"`{each}`" for each in change.refusals)
        yield f"{change.help} It may be refused with {refusals}.\n"
        subject = subjects.pool_request("training", verb)
        text = msgspec.json.format(msgspec.json.encode(change.example), indent=0).decode()
        yield f"```\nnats pub -J {subject} '{text}'\n```\n"
    yield "## Questions and answers\n"
    for kind in ANSWER_TYPES:
        yield from _struct(kind, f"requests/{kind.__name__}", "###")


def _buckets() -> Iterator[str]:
    yield "## Buckets\n"
    yield from _table(
        ("bucket", "written by", "what", "keys", "an entry ends"),
        (
            (
                f"`{each.name}`",
                each.writer,
                each.description,
                ", ".join(f"`{key}`" for key, _ in BUCKET_RECORDS.get(each.name, ())) or "-",
                each.ends,
            )
            for each in (*BUCKETS, *OBJECT_BUCKETS)
        ),
    )
    for found in BUCKET_RECORDS.values():
        for key, kind in found:
            title = f"`{kind.__name__}` under `{key}`"
            yield from _struct(kind, f"records/{kind.__name__}", "###", title=title)


def _parts() -> Iterator[str]:
    """Structs that are part of others and were not described yet."""
    yield "## Parts\n"
    described = {*(kind for found in BUCKET_RECORDS.values() for _, kind in found)}
    for module in (
        node_events,
        gpu_samples,
        saga_params,
        pool_records,
        health_records,
        evidence_bundles,
        fleet_queries,
    ):
        for kind in vars(module).values():
            if not isinstance(kind, type) or kind.__module__ != module.__name__:
                continue
            part = kind.__name__ in PARTS and kind not in described
            if part and issubclass(kind, msgspec.Struct):
                yield from _struct(kind, None, "###")


def _words() -> Iterator[str]:
    """The closed sets of words that fields may hold."""
    yield "## Words\n"
    named = ((name, get_args(each)) for name, each in vars(enums).items())
    rows = (
        (f"`{name}`", ", ".join(f"`{word}`" for word in words)) for name, words in named if words
    )
    yield from _table(("kind", "one of"), rows)


PART_MODULES: Final = (
    node_events,
    gpu_samples,
    saga_params,
    pool_records,
    health_records,
    evidence_bundles,
    fleet_queries,
)
PARTS: Final = frozenset(
    {
        *("GpuIdentity", "CheckResult", "GpuSample", "LaunchSpec", "SagaParams"),
        *("OpenSaga", "RecordedFault", "HealthEvent"),
        *("EvaluatedFault", "KernelLine", "TimelineEntry", "RepairCount"),
    }
)


def _message(kind: type[Any], subject: str) -> Iterator[str]:
    name = message_type(kind)
    yield f"### {kind.__name__}\n"
    yield f"{_doc(kind)}\n"
    yield f"- type `{name}`"
    yield f"- subject `{shown(subject)}`"
    yield f"- taken by {_readers(subject)}"
    if texts := EVENT_TEXTS.get(kind):
        titles = dict.fromkeys(f"*{each.title}* ({each.tone})" for each in texts)
        yield f"- shown as {', '.join(titles)}"
    for rule in ALERTS.get(kind, ()):
        if rule.severity is not None:
            ends = dict.fromkeys(FACTS[each.event] for each in ENDS if rule.key in each.keys)
            until = ", ".join(f"`{each}`" for each in ends) or "silence"
            when = ", ".join(f"`{name}`" for name in rule.when)
            depends = f", by {when}" if when else ""
            yield f"- alerts: {rule.severity}{depends}, under `{rule.key}`, until {until}"
    yield ""
    yield from _fields(kind)
    yield from _example(f"messages/{name}")


def _struct(kind: type[Any], golden: str | None, heading: str, *, title: str = "") -> Iterator[str]:
    yield f"{heading} {title or kind.__name__}\n"
    yield f"{_doc(kind)}\n"
    yield from _fields(kind)
    if golden is not None:
        yield from _example(golden)


def _doc(kind: type[Any]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").replace("\n", " ").replace("  ", " ")


def _example(golden: str) -> Iterator[str]:
    value = msgspec.json.decode(Path(HERE / f"{golden}.json").read_bytes())
    yield f"```json\n{written(value)}\n```\n"


def _fields(kind: type[Any]) -> Iterator[str]:
    rows = [
        (f"`{each.name}`", f"`{each.kind}`", _default(each), each.text)
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("schemas.")
        for each in fields(base)
    ]
    yield from _table(("field", "kind", "default", "what"), rows)


def _default(field: Field) -> str:
    return "required" if field.default is None else f"`{field.default}`"


@cache
def fields(kind: type[Any]) -> tuple[Field, ...]:
    """The fields that a class itself declares, with the docstrings below them."""
    declared = next(
        each
        for each in _module(kind.__module__).body
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    )
    found: list[Field] = []
    for each in declared.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                default = None if value is None else ast.unparse(value)
                found.append(Field(name, ast.unparse(annotation), default, ""))
            case ast.Expr(value=ast.Constant(value=str(text))) if found:
                last = found.pop()
                words = " ".join(textwrap.dedent(text).split())
                found.append(Field(last.name, last.kind, last.default, words))
            case _:
                pass
    return tuple(each for each in found if not each.kind.startswith("ClassVar"))


@cache
def _module(name: str) -> ast.Module:
    source: Callable[[Any], str] = inspect.getsource
    return ast.parse(source(importlib.import_module(name)))
