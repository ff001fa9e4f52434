"""Timelines in storage order, and tables that stay aligned."""

from datetime import UTC, datetime, timedelta

from schemas import subjects
from schemas.fleet_queries import NodeView
from schemas.messages import Message, encode
from schemas.node_events import Lost
from schemas.saga_log_entries import SagaStarted, StepSucceeded
from schemas.saga_params import SagaParams
from services.bus.port import Stored
from services.cli.text.styles import COLOURS
from services.cli.text.table_layout import columns
from services.cli.text.tables import (
    NODE_HEADERS,
    generic_table,
    node_rows,
    timeline,
)
from services.fleet_client.node_timeline import sagas_about, timeline_rows

NOW = datetime(2026, 11, 21, 1, 35, tzinfo=UTC)
NODE = {"id": "1", "time": NOW, "pool": "training", "node": "n1"}
STEP = {"id": "1", "time": NOW, "saga": "replace-n1-1", "step": "provision"}


def _stored(subject: str, message: Message, milliseconds: int) -> Stored:
    return Stored(
        subject, encode(message), milliseconds, NOW + timedelta(milliseconds=milliseconds)
    )


def test_a_timeline_is_in_the_order_of_the_servers_clock() -> None:
    """Messages of different streams have one order, with the time between them."""
    lost = Lost(**NODE)
    done = StepSucceeded(**STEP)
    moments = timeline_rows(
        [
            _stored(subjects.saga_entry("replace-n1-1", "provision", "succeeded"), done, 40),
            _stored(subjects.node_event("training", "n1", "lost"), lost, 10),
            _stored(subjects.node_event("training", "n1", "lost"), lost, 25),
        ]
    )
    assert [(each.title, each.since_ms, each.step_ms, each.source) for each in moments] == [
        ("lost", 0.0, 0.0, "event"),
        ("lost", 15.0, 15.0, "event"),
        ("provision succeeded", 30.0, 15.0, "saga"),
    ]


def test_a_timeline_may_start_at_a_time() -> None:
    """Earlier messages are left out, and times count from the start."""
    lost = _stored(subjects.node_event("training", "n1", "lost"), Lost(**NODE), 30)
    early = _stored(subjects.node_event("training", "n1", "lost"), Lost(**NODE), 5)
    moments = timeline_rows([lost, early], NOW + timedelta(milliseconds=10))
    assert [(each.since_ms, each.step_ms) for each in moments] == [(20.0, 20.0)]


def test_a_replacement_is_about_the_node_that_leaves_and_the_one_that_comes() -> None:
    """Both nodes' histories have the saga; a third node's does not."""
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
    plain = columns(NODE_HEADERS, node_rows(nodes, NOW), colour=False)
    starts = {line.split()[3]: line.index(line.split()[3]) for line in plain.splitlines()}
    assert len(set(starts.values())) == 1
    assert "\x1b" not in plain
    assert COLOURS["bad"] in columns(NODE_HEADERS, node_rows(nodes, NOW), colour=True)


def test_a_table_escapes_and_shortens_the_cells_that_need_it() -> None:
    """The last column is not shortened; a cell without fault stays as it is."""
    lines = columns(("node", "why"), [("n1", "a\x1b[2J"), ("n" * 200, "w" * 200)], colour=False)
    _, first, second = lines.split("\n")
    assert first == f"n1{' ' * 138}  a\\u001b[2J"
    assert second == f"{'n' * 139}…  {'w' * 200}"


def test_a_generic_table_shows_the_shared_keys() -> None:
    """Empty and nested values take no column."""
    items = [{"saga": "s1", "trace": "", "open": {}}, {"saga": "s2", "trace": "", "open": {}}]
    assert generic_table(items, colour=False) == "SAGA\ns1\ns2"
    assert generic_table([], colour=False) == ""


def test_an_empty_timeline_is_its_heading() -> None:
    """An empty timeline is not an error."""
    assert timeline([], colour=False).split() == [
        "AT",
        "SINCE",
        "MS",
        "STEP",
        "MS",
        "SUBJECT",
        "EVENT",
    ]
