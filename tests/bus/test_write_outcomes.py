"""A process knows by its own writes which streams take nothing, and not by one refusal."""

import pytest

from schemas import subjects
from schemas.topology import BUCKETS, EVENTS, EVIDENCE, SAGAS, STREAMS
from services.bus.protocol.write_outcomes import (
    LASTED_SECONDS_MIN,
    REMEMBERED_SECONDS,
    WriteOutcomes,
    stream_of,
)

EVENT = subjects.fleet_event("lag")
OTHER = subjects.pool_event("training", "scaled")
SAGA = f"{subjects.saga_tree('a').removesuffix('>')}drain.started"


def refused(*times: float, subject: str = EVENT) -> WriteOutcomes:
    """Return the outcomes after refusals at these seconds."""
    outcomes = WriteOutcomes()
    for at in times:
        outcomes.refused(subject, "no answer in 5 s", at)
    return outcomes


@pytest.mark.parametrize(
    ("times", "now", "known"),
    [
        ((), 0.0, False),
        ((0.0,), 100.0, False),
        ((0.0, 100.0), 100.0, False),
        ((0.0, 1.0, 2.0), 60.0, False),
        ((0.0, 5.0, LASTED_SECONDS_MIN), LASTED_SECONDS_MIN, True),
        ((0.0, 5.0, 20.0), 20.0 + REMEMBERED_SECONDS, True),
        ((0.0, 5.0, 20.0), 21.0 + REMEMBERED_SECONDS, False),
        ((0.0, 5.0, 6.0 + REMEMBERED_SECONDS), 6.0 + REMEMBERED_SECONDS, False),
    ],
)
def test_a_stream_is_reported_after_several_refusals_over_some_time(
    times: tuple[float, ...], now: float, *, known: bool
) -> None:
    """A leader's election refuses a few; what was refused long ago says nothing."""
    assert refused(*times).unwritable(now) == ({EVENTS.name: "no answer in 5 s"} if known else {})


def test_a_stored_message_ends_it_for_its_own_stream_alone() -> None:
    """A stored message of any subject ends the refusals of its stream."""
    outcomes = refused(0.0, 5.0, 20.0)
    for at in (0.0, 5.0, 20.0):
        outcomes.refused(SAGA, "no answer in 5 s", at)
    outcomes.stored(OTHER)
    assert set(outcomes.unwritable(20.0)) == {SAGAS.name}


def test_every_subject_has_its_stream() -> None:
    """Streams by their filters, buckets and objects by their names."""
    for stream in STREAMS:
        for filter_ in stream.subjects:
            subject = filter_.replace(">", "a.b").replace("*", "x")
            assert stream_of(subject) == stream.name, subject
    for bucket in BUCKETS:
        assert stream_of(f"$KV.{bucket.name}.a.b") == bucket.stream().name
    assert stream_of(f"$O.{EVIDENCE.name}.C.x") == EVIDENCE.stream().name
    assert stream_of("elsewhere") == "elsewhere"
