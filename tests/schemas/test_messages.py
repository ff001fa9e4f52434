"""Codecs separate unknown from invalid messages and never raise."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.dead_letters import dead_codec
from schemas.duration import Duration, format_duration, parse_duration
from schemas.messages import Invalid, UnknownType, encode
from schemas.node_events import Lost, node_codec
from schemas.pool_events import pool_codec
from schemas.saga_log_entries import saga_codec, timer_codec

CODECS = (node_codec, pool_codec, saga_codec, timer_codec, dead_codec)
LOST = b'{"type":"io.navarch.health_monitor.event.v1.lost","id":"a","pool":"p","node":"n","time":'


@given(st.binary(max_size=200))
def test_no_bytes_make_a_codec_raise(data):
    """Any bytes become a value: a message, unknown, or invalid with a reason."""
    for codec in CODECS:
        found = codec.decode(data)
        assert isinstance(found, UnknownType) or (isinstance(found, Invalid) and found.reason)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_a_known_type_with_any_content_never_raises(content):
    """Neither does JSON of any shape under a type that is known."""
    import json  # noqa: PLC0415

    value = {"type": "io.navarch.agent.event.v1.fault", "id": content, "metrics": content}
    found = node_codec.decode(json.dumps(value).encode())
    assert isinstance(found, Invalid)
    assert found.type == "io.navarch.agent.event.v1.fault"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b'{"type": "io.navarch.agent.event.v9.new"}',
            UnknownType("io.navarch.agent.event.v9.new"),
        ),
        (LOST + b'"2026-01-01T00:00:00Z"}', None),
        (LOST + b'"2026-01-01T00:00:00"}', "Invalid RFC3339|timezone|tz"),
        (LOST + b"5}", "Expected `datetime`"),
        (b"\xff", "not a message"),
    ],
)
def test_unknown_is_not_invalid(data, expected):
    """An unknown type is another release's; an invalid one is a defect, with its reason."""
    found = node_codec.decode(data)
    match expected:
        case None:
            assert isinstance(found, Lost)
        case UnknownType():
            assert found == expected
        case _:
            assert isinstance(found, Invalid)
            assert any(each in found.reason for each in expected.split("|")), found


def test_times_keep_their_moment_whatever_the_zone():
    """A publisher in another zone means the same moment."""
    zone = timezone(timedelta(hours=9))
    moment = datetime(2026, 1, 1, 9, tzinfo=zone)
    decoded = node_codec.decode(encode(Lost(id="a", time=moment, pool="p", node="n")))
    assert isinstance(decoded, Lost)
    assert decoded.time == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("10m", 600),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("2d", 172_800),
        (15, 15),
        (0.5, 0.5),
        ("0s", 0),
        ("0", 0),
        (".5s", 0.5),
        ("+5s", 5),
        ("1us", 1e-6),
        ("2µs", 2e-6),
        ("1h1m1s1ms", 3661.001),
        ("87600h", 315_360_000),
    ],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    """Go's form, and plain seconds."""
    assert parse_duration(text) == Duration(seconds)


@pytest.mark.parametrize(
    "value",
    [
        *("", "soon", "10", "5 m", "-5s", "m", "1h 30m", -1, float("nan"), float("inf"), True),
        *("--5s", "1h-5m", "1e3s", "\u0663s", "99999999h", 1e30, 10**400),
    ],
)
def test_what_is_no_duration_is_refused_with_the_remedy(value):
    """The message shows how to write one."""
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(value)


@given(st.integers(min_value=1, max_value=10_000_000))
def test_a_written_duration_is_read_back(seconds):
    """Whole seconds survive being written the short way."""
    assert parse_duration(format_duration(seconds)) == seconds
