"""Requests answered out of order: the latest request wins."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.node_records import NodeRecord
from schemas.operator_requests import ApplyRequest, CompletedRequest, RemoveRequest
from schemas.pool_events import RequestAccepted, RequestRefused, Scaled, ScaleRefused
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.requests import request_ordering
from services.pool_manager.requests.pool_apply import ParsedApply, applied, removed
from services.pool_manager.requests.request_decisions import decide
from services.pool_manager.requests.request_replies import QueuedRequest, RequestDecision

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
SPEC = PoolSpec(provider="test", instance_type="t", min_nodes=0, max_nodes=9)
POOL = PoolRecord(name="training", spec=SPEC, desired=2)
NODES = tuple(NodeRecord(pool="training", node=each, state="active") for each in ("n1", "n2"))

HOUR = {"for": "1h"}


def asked(sequence: int, verb: str, **payload: Any) -> QueuedRequest:
    """Make a queued request."""
    return QueuedRequest(
        id=f"request-{sequence}",
        sequence=sequence,
        time=NOW + timedelta(seconds=sequence),
        pool="training",
        verb=verb,
        payload=msgspec.json.encode(payload),
    )


def answered(request: QueuedRequest, record: PoolRecord) -> RequestDecision:
    """Return its decision, some time later."""
    snapshot = PoolSnapshot(fleet="f", record=record, revision=1, nodes=Nodes(NODES))
    return decide(request, snapshot, NOW + timedelta(minutes=5))


def after(*requests: QueuedRequest, record: PoolRecord = POOL) -> PoolRecord:
    """The pool's record when these requests have been answered, in this order."""
    for each in requests:
        record = answered(each, record).record or record
    return record


def at(request: QueuedRequest, record: PoolRecord, late: timedelta) -> RequestDecision:
    """Return its decision so long after it was asked."""
    snapshot = PoolSnapshot(fleet="f", record=record, revision=1, nodes=Nodes(NODES))
    return decide(request, snapshot, request.time + late)


@pytest.mark.parametrize("verb", ["replace", "reboot", "reset-gpu", "drain", "terminate"])
def test_a_request_that_waited_for_hours_ends_no_node(verb: str) -> None:
    """The node may be well again since it was asked, while no pool-manager ran."""
    asked_for = asked(1, verb, node="n1")
    soon = at(asked_for, POOL, timedelta(minutes=59))
    assert "more than an hour" not in str(soon.event)
    late = at(asked_for, POOL, timedelta(minutes=61))
    assert isinstance(late.event, RequestRefused)
    assert (late.event.refusal, late.record) == ("superseded", None)
    assert "more than an hour before it could be answered" in late.event.reason


def test_a_request_that_was_begun_is_answered_again_hours_later() -> None:
    """The acknowledgement was lost: its saga goes on, or it has joined another request's."""
    asked_for = asked(1, "replace", node="n1")
    record = at(asked_for, POOL, timedelta(seconds=1)).record
    assert record is not None
    assert record.open
    others = {key: msgspec.structs.replace(each, cause="x") for key, each in record.open.items()}
    for each in (
        record,
        msgspec.structs.replace(record, completed_requests=()),
        msgspec.structs.replace(record, open=others),
    ):
        again = at(asked_for, each, timedelta(hours=5)).event
        assert isinstance(again, RequestAccepted), again


@pytest.mark.parametrize(
    "request_", [asked(1, "scale", nodes=5), asked(1, "cordon", node="n1")], ids=lambda r: r.verb
)
def test_what_ends_no_work_is_carried_out_however_late(request_: QueuedRequest) -> None:
    """A size and a cordon are what the operator wants until another is said."""
    assert not isinstance(at(request_, POOL, timedelta(hours=20)).event, RequestRefused)


@pytest.mark.parametrize(
    ("earlier", "later", "too_late"),
    [
        (asked(1, "scale", nodes=5), asked(2, "scale", nodes=3), True),
        (asked(1, "breaker-open", reason="r"), asked(2, "breaker-close", reason="r"), True),
        (asked(1, "cordon", node="n1"), asked(2, "uncordon", node="n1"), True),
        (asked(1, "hold", node="n1", reason="r", **HOUR), asked(2, "release", node="n1"), True),
        (asked(1, "cordon", node="n1"), asked(2, "uncordon", node="n2"), False),
        (asked(1, "cordon", node="n1"), asked(2, "release", node="n1"), False),
        (asked(1, "scale", nodes=5), asked(2, "breaker-close", reason="r"), False),
        (asked(1, "scale", nodes=5), asked(2, "scale", nodes=99), False),
    ],
)
def test_only_applied_requests_about_the_same_thing_supersede(
    earlier: QueuedRequest, later: QueuedRequest, too_late: bool
) -> None:
    """A refused request does not supersede an earlier one."""
    event = answered(earlier, after(later)).event

    assert too_late == isinstance(event, RequestRefused | ScaleRefused)
    if isinstance(event, RequestRefused | ScaleRefused):
        assert "superseded" == event.refusal
        assert f"a later {later.verb} (12:00:02 UTC) was carried out" in event.reason


@given(
    st.permutations(
        [
            asked(1, "scale", nodes=1),
            asked(2, "breaker-open", reason="r"),
            asked(3, "scale", nodes=3),
            asked(4, "breaker-close", reason="r"),
            asked(5, "scale", nodes=5),
            asked(6, "breaker-open", reason="r"),
        ]
    ),
    st.lists(st.integers(0, 5)),
)
def test_last_request_wins_in_any_order(order: list[QueuedRequest], again: list[int]) -> None:
    """Answering one again, as after a crash before its acknowledgement, changes nothing."""
    record = after(*order, *(order[each] for each in again))

    assert (5, "request-6", "open") == (
        record.desired,
        record.breaker.request,
        record.breaker.state,
    )


def test_redelivered_applied_request_is_published_again() -> None:
    """Not as refused: the operator saw it applied."""
    first, second = asked(1, "scale", nodes=5), asked(2, "scale", nodes=3)
    opening, closing = asked(3, "breaker-open", reason="r"), asked(4, "breaker-close", reason="r")
    record = after(first, second, opening, closing)
    size, breaker = answered(first, record), answered(opening, record)

    assert isinstance(size.event, Scaled)
    assert isinstance(breaker.event, RequestAccepted)
    assert ("scaled-request-1", "accepted-request-3") == (size.event.id, breaker.event.id)
    assert (None, None) == (size.record, breaker.record)


@pytest.mark.parametrize(
    ("sequence", "seconds", "later"),
    [(8, 1.0, True), (8, -60.0, False), (6, 60.0, False), (6, -1.0, False)],
)
def test_new_stream_or_clock_step_supersedes_nothing(
    sequence: int, seconds: float, later: bool
) -> None:
    """Sequences may start again or times may run back, but not both."""
    request = asked(7, "scale", nodes=1)
    at = request.time + timedelta(seconds=seconds)
    done = CompletedRequest(sequence=sequence, at=at, verb="scale", about="size")

    assert later == request_ordering.is_later(done, request)


def test_number_of_remembered_requests_is_limited() -> None:
    """The newest are kept, whatever order they came in."""
    count = request_ordering.REMEMBERED_MAX + 10
    record = POOL
    for number in (*range(2, count + 1), 1):
        record = request_ordering.remember(asked(number, "scale"), "size", record)

    assert list(range(11, count + 1)) == [each.sequence for each in record.completed_requests]


def test_request_before_a_removal_does_not_recreate_the_pool() -> None:
    """A request from before its last change does not alter it either."""
    wanted = ParsedApply(ApplyRequest(spec={}), SPEC)
    removal = CompletedRequest(
        sequence=7, at=NOW + timedelta(seconds=7), verb="remove", about="pool"
    )
    stale, fresh = asked(6, "apply"), asked(8, "apply")
    there = PoolSnapshot(
        fleet="f",
        record=applied(fresh, wanted, None, NOW, configured=False).record or POOL,
        revision=1,
        nodes=Nodes(),
    )
    events = [
        applied(stale, wanted, None, NOW, configured=False, removal=removal).event,
        applied(fresh, wanted, None, NOW, configured=False, removal=removal).event,
        applied(stale, wanted, there, NOW, configured=False).event,
        removed(asked(5, "remove"), RemoveRequest(), there, NOW, configured=False).event,
    ]

    assert [True, False, True, True] == [
        isinstance(each, RequestRefused) and each.refusal == "superseded" for each in events
    ]


@pytest.mark.parametrize("verb", ["cordon", "drain", "replace", "reset-gpu", "reboot", "terminate"])
def test_redelivered_request_starts_no_second_saga(verb: str) -> None:
    """The replica died before the reply, and the saga ended before the redelivery."""
    request = asked(1, verb, node="n1")
    first = answered(request, POOL)
    assert first.record is not None
    assert isinstance(first.event, RequestAccepted)
    assert [first.event.saga] == list(first.record.open)
    ended = msgspec.structs.replace(first.record, open={})

    again = answered(request, ended)
    assert again.record is None
    assert isinstance(again.event, RequestAccepted)
    assert (first.event.id, first.event.saga) == (again.event.id, again.event.saga)
