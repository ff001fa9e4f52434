"""`navarch audit` shows who changed what, from the events that it reads."""

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.event_subjects import Event
from schemas.fleet_events import HttpChange, OrderAnswered
from schemas.headers import SUBJECT
from schemas.messages import encode
from schemas.pool_events import RequestAccepted, RequestRefused, Scaled
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.fleet_client.node_timeline import audit_rows
from services.primitives.errors import BusError, Unavailable
from services.runtime.event_publisher import publish_event
from services.runtime.process import audited, order_event
from tests.support import inprocess

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = "POST /api/v1/nodes/training-1/drain"
ADDRESS = "127.0.0.1"
ACCEPTED = RequestAccepted(
    id="a", time=NOW, pool="training", verb="drain", node="training-1", saga="drain-1", by="ann"
)
REFUSED = RequestRefused(
    id="b",
    time=NOW,
    pool="inference",
    verb="cordon",
    node="inference-2",
    refusal="saga-open",
    reason="a saga is open",
    by="bob via gateway",
)
BY_AUTOSCALER = Scaled(id="c", time=NOW, pool="training", previous=1, nodes=2)
BY_PERSON = Scaled(id="d", time=NOW, pool="training", previous=2, nodes=4, by="ann")


def http(outcome: str) -> HttpChange:
    """Return the event that the gateway publishes."""
    return HttpChange(
        id=f"h-{outcome}",
        time=NOW,
        by="bob",
        role="viewer",
        address=ADDRESS,
        change=FORBIDDEN,
        outcome=outcome,  # type: ignore[arg-type]
    )


ORDER = OrderAnswered(
    id="o", time=NOW, by="ann", order="readmit", service="provisioner", outcome="accepted"
)
EVENTS: tuple[Event, ...] = (ACCEPTED, REFUSED, BY_AUTOSCALER, BY_PERSON, http("forbidden"), ORDER)


@pytest.mark.parametrize(
    ("pool", "by", "changes"),
    [
        ("", "", ["drain", "cordon", "scale to 4", FORBIDDEN, "readmit"]),
        ("training", "", ["drain", "scale to 4"]),
        ("", "ann", ["drain", "scale to 4", "readmit"]),
        ("", "bob", ["cordon", FORBIDDEN]),
        ("inference", "ann", []),
    ],
)
def test_every_change_has_a_row_and_what_the_autoscaler_did_has_none(
    pool: str, by: str, changes: list[str]
) -> None:
    """Changes are found by pool and by user; a caller of the HTTP API is found by its own name."""
    assert [row.change for row in audit_rows(EVENTS, pool=pool, by=by)] == changes


def test_an_http_change_that_the_pool_answered_has_one_row() -> None:
    """The pool's answer names the caller, the saga and the reason: that row is kept."""
    rows = audit_rows([http("accepted"), ACCEPTED, http("refused"), REFUSED], pool="", by="")
    assert [(row.by, row.outcome) for row in rows] == [
        ("ann", "accepted"),
        ("bob via gateway", "refused (saga-open)"),
    ]


def test_a_row_says_where_the_change_came_from() -> None:
    """The address of an HTTP request, joined by its ID; the bus knows users and no addresses."""
    old = msgspec.structs.replace(REFUSED, request="http-1")
    change = msgspec.structs.replace(http("refused"), request="http-2")
    known = msgspec.structs.replace(REFUSED, request="http-2")
    rows = audit_rows([ACCEPTED, old, known, change, http("forbidden"), ORDER], pool="", by="")
    assert [(row.by, row.where) for row in rows] == [
        ("ann", "bus"),
        ("bob via gateway", "gateway"),
        ("bob via gateway", ADDRESS),
        ("bob via gateway", ADDRESS),
        ("ann", "bus"),
    ]


def test_an_order_that_a_service_gives_by_itself_is_no_change_by_a_user() -> None:
    """The pool-manager has the provisioner sweep; people and schedulers are recorded."""
    by_service = subjects.order("sweep-now", "pool-manager")
    by_person = subjects.order("sweep-now", "ann")
    assert order_event(by_service, b"{}", "provisioner", "", NOW) is None
    by_gateway = subjects.order("sweep-now", "gateway")
    for data, by in ((b'{"by": "bob"}', "bob"), (b"{}", "unknown"), (b'{"by": 1', "unknown")):
        asked = order_event(by_gateway, data, "provisioner", "", NOW)
        assert asked is not None
        assert asked.by == f"{by} via gateway"
    found = order_event(by_person, b'{"by": "eve"}', "provisioner", "not now", NOW)
    assert found is not None
    assert (found.by, found.outcome, found.content) == ("ann", "refused", '{"by": "eve"}')


async def test_an_order_is_answered_also_where_its_event_cannot_be_stored() -> None:
    """An order is answered though its event cannot be stored.

    An error that the endpoint raises reaches the caller after it was recorded.
    """
    published: list[OrderAnswered] = []

    async def publish(event: OrderAnswered) -> None:
        published.append(event)
        raise Unavailable("the bus is away")

    async def answer(data: bytes, headers: Headers) -> bytes:
        assert headers
        if data == b"no":
            raise ValueError("there is no such node")
        return b"done"

    subject = subjects.order("readmit", "ann")
    endpoints = {subjects.order_wildcard("readmit"): answer, subjects.query("nodes"): answer}
    wrapped = audited(endpoints, "provisioner", lambda: NOW, publish)
    readmit, nodes = wrapped.values()
    assert await readmit(b"yes", {SUBJECT: subject}) == b"done"
    with pytest.raises(ValueError, match="no such node"):
        await readmit(b"no", {SUBJECT: subject})
    assert nodes is answer
    assert [each.reason for each in published] == ["", "there is no such node"]
    assert issubclass(Unavailable, BusError)


async def test_the_command_lists_what_is_stored(manager: NatsBus, server: EmbeddedServer) -> None:
    """The newest day is listed, oldest first, with the user, the outcome and the saga."""
    for event in EVENTS:
        await publish_event(manager, event)
    code, out, _ = await inprocess.navarch(
        "audit", "--by", "ann", "-o", "json", cwd=ROOT, NAVARCH_NATS_URL=server.url
    )
    rows = json.loads(out)
    assert code == 0
    assert [(row["change"], row["about"], row["saga"]) for row in rows] == [
        ("drain", "training/training-1", "drain-1"),
        ("scale to 4", "training", ""),
        ("readmit", "", ""),
    ]
    code, out, _ = await inprocess.navarch("audit", cwd=ROOT, NAVARCH_NATS_URL=server.url)
    assert (code, "bob via gateway" in out, "refused (saga-open)" in out) == (0, True, True)
    assert encode(ORDER)
