"""`navarch incident`: the review of an incident, composed from what is stored, in Markdown."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from schemas.event_subjects import event_subject
from schemas.fleet_events import AutomationStopped
from schemas.messages import Message, encode
from schemas.node_events import Fault, Registered, Verdict
from schemas.pool_events import BreakerOpened, Incident, RequestAccepted, RequestRefused, SagaOpened
from schemas.present_answers import Block
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.cli.text.incident_text import incident_page
from services.fleet_client.incident_review import (
    LINES_MAX,
    MARGIN,
    ReviewSpan,
    incident_span,
    review,
)
from services.fleet_client.saga_summaries import SagaSummary
from tests.support import inprocess

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
NAME = "xid-79-1795225542"
POOL: dict[str, Any] = {"pool": "training"}
HOSTILE = "<script>alert(1)</script> | `rm` [x](http://evil) # *b*"


def opened(status: str = "opened") -> Incident:
    """Make an incident of two nodes."""
    return Incident(
        id=f"i-{status}",
        time=NOW,
        incident=NAME,
        status=status,  # type: ignore[arg-type]
        kind="xid",
        code=79,
        nodes=2,
        named=("n1", "n2"),
        first=NOW - timedelta(minutes=1),
        last=NOW,
        scope="rack",
        within="r7",
        **POOL,
    )


EVENTS: tuple[Message, ...] = (
    Fault(id="f", time=NOW, node="n1", kind="xid", code=79, message=HOSTILE, **POOL),
    Verdict(id="v", time=NOW, node="n1", status="unhealthy", reason="off the bus", **POOL),
    opened(),
    BreakerOpened(
        id="b", time=NOW, breaker_cause="wave", reason="2 nodes", unavailable=2, limit=2, **POOL
    ),
    SagaOpened(id="s", time=NOW, saga="replace-n1-1", kind="replace", node="n1", **POOL),
    RequestRefused(
        id="r", time=NOW, verb="drain", node="n2", refusal="held", reason="held", by="bob", **POOL
    ),
    RequestAccepted(id="a", time=NOW, verb="cordon", node="n2", by="ann", **POOL),
    AutomationStopped(
        id="st", time=NOW, status="stopped", scope="fleet", reason="a look", since=NOW, by="ann"
    ),
)


def stored(events: tuple[Message, ...], at: datetime = NOW) -> list[Stored]:
    """Return the events as they are stored, a second apart."""
    return [
        Stored(
            subject=event_subject(each),  # type: ignore[arg-type]
            data=encode(each),
            sequence=number,
            time=at + timedelta(seconds=number),
            headers={},
        )
        for number, each in enumerate(events, 1)
    ]


def page(**more: Any) -> str:
    """Write the review of everything."""
    about = ReviewSpan(title="t", start=NOW, end=NOW + timedelta(hours=1), **more)
    blocks = [Block(gate="breaker", text="The breaker is open.", remedy="navarch breaker close")]
    saga = SagaSummary(saga="replace-n1-1", kind="replace", node="n1", started_at=NOW, **POOL)
    return incident_page(review(about, stored(EVENTS), [saga], [], blocks), "https://nav.example/")


@pytest.mark.parametrize(
    ("section", "lines"),
    [
        ("What was seen", ["n1 fault: XID 79", "n1 unhealthy"]),
        ("What was decided", ["replace-n1-1 saga opened"]),
        ("What waited, and for which gate", ["incident: ", "breaker: ", "refused: ", "stop: "]),
        ("Who requested what", ["bob: drain training/n2, refused (held)", "ann: cordon"]),
        ("What it waits for now", ["breaker: The breaker is open. `navarch breaker close`"]),
        ("Sagas", ["[replace-n1-1](https://nav.example/#/saga/replace-n1-1)"]),
        ("Evidence", ["Nothing is recorded."]),
    ],
)
def test_a_section_has_what_it_names(section: str, lines: list[str]) -> None:
    """Each line is there, with its time, and in no other section of the same kind."""
    text = page(lasts=True)
    part = text.split(f"## {section}\n")[1].split("\n## ")[0]
    for each in lines:
        assert each in part
    assert "2026-11-23T12:00:0" in part or section in ("What it waits for now", "Evidence")


def test_what_a_machine_wrote_is_no_markup() -> None:
    """A kernel line with HTML, a link and a heading is text in the page."""
    text = page()
    for each in ("<script>", "| `rm`", "[x](http", " # *b*"):
        assert each not in text
    assert "\\<script\\>" in text


@pytest.mark.parametrize(
    ("events", "lasts", "end"),
    [
        ((opened(),), True, NOW + timedelta(days=1)),
        ((opened(), opened("closed")), False, NOW + MARGIN),
    ],
)
def test_an_incidents_span_is_from_before_its_first_fault(
    events: tuple[Message, ...], lasts: bool, end: datetime
) -> None:
    """The span ends after its close, or now; it names pool and place."""
    found = incident_span(stored(events), NAME, NOW + timedelta(days=1))
    assert found is not None
    assert (found.start, found.end, found.lasts) == (NOW - timedelta(minutes=16), end, lasts)
    assert found.title == f"Incident {NAME} in pool training: 2 nodes of rack r7"
    assert incident_span(stored(events), "xid-48-1", NOW) is None


def test_a_long_section_says_how_much_it_leaves_out() -> None:
    """Thousands of faults make no page of thousands of lines."""
    many = tuple(
        Fault(id=f"f{n}", time=NOW, node=f"n{n}", kind="xid", code=79, message="m", **POOL)
        for n in range(LINES_MAX + 5)
    )
    about = ReviewSpan(title="t", start=NOW, end=NOW + timedelta(hours=1))
    found = review(about, stored(many), [], [])
    assert (len(found.seen), found.omitted) == (LINES_MAX, {"seen": 5})
    assert "… and 5 more" in incident_page(found)


async def test_an_incident_is_found_by_the_beginning_of_its_name(
    manager: NatsBus, server: EmbeddedServer
) -> None:
    """The page of a fleet has its events; another name and no name are refused with a reason."""

    async def navarch(*arguments: str) -> tuple[int, str, str]:
        return await inprocess.navarch("incident", *arguments, NAVARCH_NATS_URL=server.url)

    for each in (*EVENTS, opened("closed")):
        await manager.publish(event_subject(each), encode(each))  # type: ignore[arg-type]
    status, out, err = await navarch("xid-79")
    assert (status, out.splitlines()[0]) == (
        0,
        f"# Incident {NAME} in pool training: 2 nodes of rack r7",
    ), err
    assert (await navarch("xid-48"))[0] == (await navarch())[0] == 1
    assert "there is no incident 'xid-48'" in (await navarch("xid-48"))[2]
    status, out, err = await navarch("--since", "1h")
    assert (status, "ann: cordon training/n2, accepted" in out) == (0, True), err


def test_new_nodes_do_not_hide_what_went_wrong() -> None:
    """A fleet that grew by hundreds of nodes before its fault has the fault in its review."""
    grown = tuple(
        event
        for number in range(LINES_MAX)
        for event in (
            Registered(id=f"r{number}", time=NOW, node=f"n{number}", instance="i", **POOL),
            Verdict(id=f"h{number}", time=NOW, node=f"n{number}", status="healthy", **POOL),
        )
    )
    about = ReviewSpan(title="t", start=NOW, end=NOW + timedelta(hours=1))
    found = review(about, stored((*grown, *EVENTS)), [], [])
    assert [each.text.split()[0] for each in found.seen] == ["n1", "n1"]
    assert found.omitted == {}
