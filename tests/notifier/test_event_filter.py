"""Tables say which stored events a sink is sent, and what each is as a CloudEvent."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.event_sink_settings import EventSinkSpec
from schemas.event_subjects import Event, event_subject
from schemas.fleet_events import UnknownError
from schemas.messages import encode
from schemas.node_events import Lost, Verdict
from schemas.pool_events import BreakerOpened
from schemas.topology import EVENTS, INTAKE
from services.bus.port import Stored
from services.bus.protocol.subject_filters import pattern
from services.notifier.event_sinks.event_filter import (
    filters_of,
    has_labels,
    sink_event,
    wants,
)

AT = datetime(2026, 11, 25, 3, 4, 5, 678000, tzinfo=UTC)
NODE: dict[str, Any] = {"id": "e-1", "time": AT, "pool": "training", "node": "n1"}
LOST = Lost(**NODE)
HEALTHY = Verdict(**NODE, status="healthy")
DEGRADED = Verdict(**NODE, status="degraded")
OPENED = BreakerOpened(id="e-2", time=AT, pool="batch-7", unavailable=2, limit=2)
UNKNOWN = UnknownError(
    id="e-3", time=AT, provider="aws", code="Odd", call="provision", message="odd"
)
EVERY: tuple[Event, ...] = (LOST, HEALTHY, DEGRADED, OPENED, UNKNOWN)


def stored(event: Event, **more: Any) -> Stored:
    return Stored(event_subject(event), encode(event), 42, AT, **more)


@pytest.mark.parametrize(
    ("says", "sent"),
    [
        ({}, EVERY),
        ({"events": ["lost"]}, [LOST]),
        ({"events": ["lost", "verdict"]}, [LOST, HEALTHY, DEGRADED]),
        ({"events": ["breaker-*", "unknown-error"]}, [OPENED, UNKNOWN]),
        ({"min_severity": "warning"}, [LOST, DEGRADED, OPENED, UNKNOWN]),
        ({"min_severity": "critical"}, [LOST, OPENED]),
        ({"pools": ["training"]}, [LOST, HEALTHY, DEGRADED]),
        ({"pools": ["batch-*"]}, [OPENED]),
        ({"pools": ["training", "batch-*"]}, [LOST, HEALTHY, DEGRADED, OPENED]),
        ({"pools": ["other"]}, []),
        ({"labels": {"team": "a"}}, [LOST, HEALTHY, DEGRADED, OPENED]),
        ({"labels": {"team": "b"}}, []),
        ({"labels": {"team": "a", "tier": "1"}}, []),
        ({"events": ["verdict"], "min_severity": "warning", "pools": ["t*"]}, [DEGRADED]),
    ],
)
def test_a_sink_is_sent_what_all_its_conditions_hold_for(says: Any, sent: list[Event]) -> None:
    """A sink gets the events that the server's filter, severity, pool and labels admit.

    Here every pool has `team: a`.
    """
    spec = msgspec.convert({"type": "subject"} | says, EventSinkSpec)
    delivered = pattern(filters_of(spec))
    found = []
    for event in EVERY:
        seen = sink_event(stored(event), "tests")
        assert seen is not None
        labels = has_labels(spec, {"team": "a"})
        if delivered.fullmatch(event_subject(event)) and wants(spec, seen) and labels:
            found.append(event)
    assert found == list(sent)


def test_filters_of_the_server_do_not_overlap() -> None:
    """The server refuses a consumer whose filters do; each of them is a subject of EVENTS."""
    for events in ((), ("*",), ("saga-*", "saga-failed"), ("lost",)):
        filters = filters_of(EventSinkSpec(type="subject", events=events))
        assert len(filters) == len(set(filters)) > 0
        examples = [each.replace("*", "x").replace(">", "verdict") for each in filters]
        assert all(
            pattern((*EVENTS.subjects, *INTAKE.subjects)).fullmatch(each) for each in examples
        )
        matching = [[f for f in filters if pattern((f,)).fullmatch(each)] for each in examples]
        assert {len(each) for each in matching} == {1}


def test_an_event_keeps_its_identity() -> None:
    """ID, type and time are the message's own, so that a repetition is recognised."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = sink_event(stored(DEGRADED, headers={"traceparent": trace}), "tests")
    assert found is not None
    event = found.cloud
    assert (event.id, event.type) == ("e-1", "io.navarch.health_monitor.event.v1.verdict")
    assert (event.source, event.subject) == ("/navarch/tests", "training/n1")
    assert event.time == "2026-11-25T03:04:05.678Z"
    assert (event.severity, event.traceparent) == ("warning", trace)
    assert event.sequence == f"{42:020d}"
    assert bytes(event.data) == encode(DEGRADED)


def test_an_event_of_a_later_release_is_sent_and_what_is_none_is_not() -> None:
    """A type that is unknown here has an ID and a time all the same."""
    subject = subjects.node_event("training", "n1", "sparkled")
    later = b'{"type":"io.navarch.x.event.v1.sparkled","id":"s-1","time":"2026-11-25T03:04:05Z"}'
    found = sink_event(Stored(subject, later, 1, AT), "tests")
    assert found is not None
    assert (found.cloud.id, found.severity, found.pool) == ("s-1", "info", "training")
    elsewhere = Stored(subjects.node_event("training", "n2", "lost"), encode(LOST), 1, AT)
    for broken in (b"", b"[]", b'{"type":"io.x"}', b'{"type":"io.x","id":"a","time":"now"}'):
        assert sink_event(Stored(subject, broken, 1, AT), "tests") is None
    assert sink_event(elsewhere, "tests") is None
