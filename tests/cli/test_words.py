"""What people read: messages in words, stories in order, tables that stay aligned."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas import subjects
from schemas.fleet_queries import NodeView
from schemas.messages import Invalid, Message, UnknownType, encode
from schemas.node_events import (
    NODE_EVENT_TYPES,
    BootChecked,
    CheckResult,
    Drained,
    Fault,
    Lost,
    Remediated,
    Telemetry,
    Verdict,
)
from schemas.pool_events import (
    POOL_EVENT_TYPES,
    Incident,
    LaunchRefused,
    LaunchWaiting,
    NodeReplaced,
    OperatorNeeded,
    Scaled,
    ScaleRefused,
)
from schemas.saga_log_entries import STATUSES, SagaStarted, StepFailed, StepSucceeded
from schemas.saga_params import SagaParams
from services.bus.port import Stored
from services.cli.text.event_text import Told, tell
from services.cli.text.node_timeline import assemble, sagas_about
from services.cli.text.tables import NODE_HEADERS, columns, generic, node_rows, timeline

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
NODE = {"id": "1", "time": NOW, "pool": "training", "node": "n1"}
POOL = {"id": "1", "time": NOW, "pool": "training"}
STEP = {"id": "1", "time": NOW, "saga": "replace-n1-1", "step": "provision"}

WORDS = [
    (
        Fault(kind="fallen_off_bus", code=79, gpu_index=3, message="gone\n for good", **NODE),
        Told("training/n1", "fault", "FALLEN OFF BUS 79 on GPU 3: gone for good", "bad"),
    ),
    (
        Verdict(status="unhealthy", action="replace", rule="r1", reason="XID 79", **NODE),
        Told("training/n1", "verdict", "unhealthy: XID 79 (rule r1, action replace)", "bad"),
    ),
    (
        BootChecked(
            ok=False, checks=(CheckResult(name="gpus", ok=False, detail="7 of 8"),), **NODE
        ),
        Told("training/n1", "boot checks", "gpus: 7 of 8", "bad"),
    ),
    (
        Drained(expired=True, **NODE),
        Told("training/n1", "drained", "waited for no longer, with work left", "bad"),
    ),
    (
        Remediated(
            remedy="reset-gpu",
            outcome="recovered",
            attempt=1,
            attempts_max=3,
            reason="XID 95",
            duration_seconds=0.46,
            **NODE,
        ),
        Told(
            "training/n1",
            "GPUs reset",
            "back in service after 0.5 s, attempt 1 of 3. XID 95",
            "good",
        ),
    ),
    (
        Remediated(remedy="reboot", outcome="failed", step="return", reason="too late", **NODE),
        Told("training/n1", "reboot failed", "return: too late", "bad"),
    ),
    (
        OperatorNeeded(node="n1", reason="XID 74", remedy="look at it", **POOL),
        Told("training", "person needed", "n1: XID 74. look at it", "bad"),
    ),
    (
        LaunchRefused(
            node="n1", refusal="above-pool-cap", reason="it costs too much", remedy="wait", **POOL
        ),
        Told(
            "training",
            "launch refused",
            "n1 (above-pool-cap): it costs too much. What to do: wait",
            "bad",
        ),
    ),
    (
        LaunchWaiting(node="n1", reason="aws p5 (CAPACITY: none)", until=NOW, **POOL),
        Told(
            "training",
            "launch waits",
            f"n1, until {NOW:%m-%d %H:%M:%S} UTC at least: aws p5 (CAPACITY: none)",
            "bad",
        ),
    ),
    (Scaled(was=3, nodes=5, **POOL), Told("training", "scaled", "3 -> 5 nodes.")),
    (
        ScaleRefused(refusal="above-maximum", reason="9 is above 4", **POOL),
        Told("training", "refused", "scale (above-maximum): 9 is above 4", "bad"),
    ),
    (
        Incident(
            incident="xid-79-1",
            status="opened",
            kind="xid",
            code=79,
            nodes=6,
            first=NOW,
            last=NOW,
            reason="one is replaced at a time",
            **POOL,
        ),
        Told("training", "incident opened", "xid 79 on 6 nodes. one is replaced at a time", "bad"),
    ),
    (
        NodeReplaced(old_node="n1", new_node="n2", saga="s", duration_seconds=1.25, **POOL),
        Told("training", "node replaced", "n1 -> n2 in 1.2 s.", "good"),
    ),
    (
        StepSucceeded(outputs={"provider": "local", "zone": ""}, **STEP),
        Told("replace-n1-1", "provision succeeded", "provider local", "good"),
    ),
    (
        StepFailed(reason="no H100 left", error="CAPACITY", **STEP),
        Told("replace-n1-1", "provision failed", "CAPACITY no H100 left", "bad"),
    ),
    (
        UnknownType("io.navarch.x"),
        Told("", "unknown", "a message of type io.navarch.x, which this release does not know"),
    ),
    (Invalid("", "not a message"), Told("", "invalid", "not a message", "bad")),
]


@pytest.mark.parametrize(("message", "expected"), WORDS, ids=lambda each: type(each).__name__)
def test_a_message_is_told_in_words(message: Message, expected: Told) -> None:
    """Each kind of message has its sentence, on one line."""
    assert tell(message) == expected


def test_every_kind_of_message_has_words_of_its_own() -> None:
    """No event or saga entry falls through to its class's name; samples are not told."""
    kinds = {*NODE_EVENT_TYPES, *POOL_EVENT_TYPES, *STATUSES} - {Telemetry}
    assert {kind for kind in kinds if tell(_any(kind)).what == kind.__name__} == set()


def _any(kind: type[Message]) -> Message:
    """A message of a kind, with some value for every field that must be given."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            values[field.name] = {
                datetime: NOW,
                int: 1,
                bool: True,
                str: "x",
                SagaParams: SagaParams(pool="p"),
            }.get(field.type, NOW if field.name.endswith(("time", "_at", "until")) else "healthy")
    return kind(**values)


def _stored(subject: str, message: Message, milliseconds: int) -> Stored:
    return Stored(
        subject, encode(message), milliseconds, NOW + timedelta(milliseconds=milliseconds)
    )


def test_a_story_is_in_the_order_of_the_servers_clock() -> None:
    """Messages of different streams stand in one order, with the time from each to the next."""
    lost = Lost(**NODE)
    done = StepSucceeded(**STEP)
    moments = assemble(
        [
            _stored(subjects.saga_entry("replace-n1-1", "provision", "succeeded"), done, 40),
            _stored(subjects.node_event("training", "n1", "lost"), lost, 10),
            _stored(subjects.node_event("training", "n1", "lost"), lost, 25),
        ]
    )
    assert [(each.what, each.since_ms, each.step_ms, each.source) for each in moments] == [
        ("lost", 0.0, 0.0, "event"),
        ("lost", 15.0, 15.0, "event"),
        ("provision succeeded", 30.0, 15.0, "saga"),
    ]


def test_a_story_may_begin_at_a_moment() -> None:
    """What was before is left out, and times count from the moment."""
    lost = _stored(subjects.node_event("training", "n1", "lost"), Lost(**NODE), 30)
    early = _stored(subjects.node_event("training", "n1", "lost"), Lost(**NODE), 5)
    moments = assemble([lost, early], NOW + timedelta(milliseconds=10))
    assert [(each.since_ms, each.step_ms) for each in moments] == [(20.0, 20.0)]


def test_a_replacement_is_about_the_node_that_leaves_and_the_one_that_comes() -> None:
    """Both nodes' stories hold the saga; a third node's does not."""
    params = SagaParams(pool="training", node="n1", new_node="n2")
    started = SagaStarted(id="s", time=NOW, saga="replace-n1-1", kind="replace", params=params)
    stored = [_stored(subjects.saga_entry("replace-n1-1", "saga", "started"), started, 1)]
    assert [sagas_about(node, stored) for node in ("n1", "n2", "n3")] == [
        ["replace-n1-1"],
        ["replace-n1-1"],
        [],
    ]


def test_tables_stay_aligned_and_paint_only_on_request() -> None:
    """Columns start at the same place in every row; without colour there is no escape."""
    nodes = [
        NodeView(id="a", pool="training", status="active", health="healthy", gpu_count=8),
        NodeView(id="b" * 20, pool="x", status="leaving", health="unhealthy", lost=True),
    ]
    plain = columns(NODE_HEADERS, node_rows(nodes), colour=False)
    starts = {line.split()[3]: line.index(line.split()[3]) for line in plain.splitlines()}
    assert len(set(starts.values())) == 1
    assert "\x1b" not in plain
    assert "\x1b[31m" in columns(NODE_HEADERS, node_rows(nodes), colour=True)


def test_a_table_of_anything_shows_what_the_items_share() -> None:
    """Empty and nested values take no column."""
    items = [{"saga": "s1", "trace": "", "open": {}}, {"saga": "s2", "trace": "", "open": {}}]
    assert generic(items, colour=False) == "SAGA\ns1\ns2"
    assert generic([], colour=False) == ""


def test_a_timeline_of_nothing_is_its_heading() -> None:
    """An empty story is printed without complaint."""
    assert timeline([], colour=False).split() == [
        "AT",
        "SINCE",
        "MS",
        "STEP",
        "MS",
        "ABOUT",
        "WHAT",
    ]
