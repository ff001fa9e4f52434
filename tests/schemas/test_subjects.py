"""Builders, parsers and wildcards agree, and no builder lets a bad token through."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import subjects
from schemas.names import (
    POOL_NAME_CHARS_MAX,
    InvalidNameError,
    pool_name,
    saga_token,
    token,
)
from schemas.topology import BUCKETS, DURABLES, STREAMS

TOKENS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)
SAGAS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,95}", fullmatch=True)
TOKEN = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
BAD = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "-a", "a.b", "a*", ">", "A", "a b", "é", "a\n", "a" * 64, "ä"]),
).filter(lambda text: TOKEN.fullmatch(text) is None)


def matches(wildcard: str, subject: str) -> bool:
    """Return whether the server would hand a subject to a subscriber of a wildcard."""
    wanted, given_ = wildcard.split("."), subject.split(".")
    for place, each in enumerate(wanted):
        if each == ">":
            return len(given_) > place
        if place >= len(given_) or each not in ("*", given_[place]):
            return False
    return len(wanted) == len(given_)


@given(TOKENS, TOKENS, TOKENS)
def test_node_subjects(pool, node, fact):
    """A built subject is parsed back, and every wildcard that should match it does."""
    event = subjects.node_event(pool, node, fact)
    telemetry = subjects.telemetry(pool, node)
    command = subjects.node_command(pool, node, fact)
    assert subjects.parse_node(event) == (pool, node, fact)
    assert subjects.parse_node(telemetry) == (pool, node, "telemetry")
    for wildcard in (
        subjects.NODE_EVENTS,
        subjects.node_event_wildcard(fact),
        subjects.node_events_of(pool, node),
        subjects.node_events_in(pool),
        subjects.node_events_named(node),
    ):
        assert matches(wildcard, event)
        assert not matches(wildcard, telemetry)
        assert not matches(wildcard, command)
    assert matches(subjects.TELEMETRY, telemetry)
    assert not matches(subjects.TELEMETRY, event)


@given(TOKENS, TOKENS)
def test_pool_subjects(pool, name):
    """Events and requests differ in their subjects."""
    event, request = subjects.pool_event(pool, name), subjects.pool_request(pool, name)
    assert subjects.parse_pool_event(event) == (pool, name)
    by = subjects.pool_request(pool, name, "alice")
    assert subjects.parse_pool_request(request) == (pool, name, "")
    assert subjects.parse_pool_request(by) == (pool, name, "alice")
    assert matches(subjects.POOL_REQUESTS, by)
    assert (subjects.parse_pool_event(request), subjects.parse_pool_request(event)) == (None, None)
    assert matches(subjects.POOL_EVENTS, event)
    assert matches(subjects.pool_event_wildcard(name), event)
    assert matches(subjects.pool_events_of(pool), event)
    assert matches(subjects.POOL_REQUESTS, request)
    assert not matches(subjects.POOL_EVENTS, request)


@given(SAGAS, TOKENS, TOKENS)
def test_saga_subjects(saga, step, status):
    """An entry is in its saga's tree, and in what the step's performer takes."""
    entry = subjects.saga_entry(saga, step, status)
    assert subjects.parse_saga(entry) == (saga, step, status)
    assert matches(subjects.SAGAS, entry)
    assert matches(subjects.saga_tree(saga), entry)
    assert matches(subjects.saga_step_wildcard(step, status), entry)
    assert not matches(subjects.saga_tree(saga + "x"), entry)


@given(TOKENS, SAGAS)
def test_timer_subjects(owner, key):
    """Waiting and fired timers are both in the timers' stream, and only the fired is due."""
    waiting, due = subjects.timer_schedule(owner, key), subjects.timer_due(owner, key)
    assert matches(subjects.TIMERS, waiting)
    assert matches(subjects.TIMERS, due)
    assert matches(subjects.timer_due_wildcard(owner), due)
    assert not matches(subjects.timer_due_wildcard(owner), waiting)


@given(st.text(max_size=60))
def test_parsers_never_raise(text):
    """Text from outside is no programming error, so no parser raises."""
    for parse in (
        subjects.parse_node,
        subjects.parse_pool_event,
        subjects.parse_pool_request,
        subjects.parse_fleet_event,
        subjects.parse_saga,
    ):
        assert parse(text) is None
        assert parse(f"{subjects.ROOT}.{text}") is None or text.count(".") >= 3


BUILDERS: dict[str, Callable[[str], str]] = {
    "telemetry pool": lambda bad: subjects.telemetry(bad, "n"),
    "telemetry node": lambda bad: subjects.telemetry("p", bad),
    "event pool": lambda bad: subjects.node_event(bad, "n", "f"),
    "event node": lambda bad: subjects.node_event("p", bad, "f"),
    "event fact": lambda bad: subjects.node_event("p", "n", bad),
    "event wildcard": subjects.node_event_wildcard,
    "events of": lambda bad: subjects.node_events_of("p", bad),
    "events in": subjects.node_events_in,
    "events named": subjects.node_events_named,
    "command": lambda bad: subjects.node_command("p", "n", bad),
    "pool event": lambda bad: subjects.pool_event(bad, "f"),
    "pool event wildcard": subjects.pool_event_wildcard,
    "pool events": subjects.pool_events_of,
    "fleet event": subjects.fleet_event,
    "pool request": lambda bad: subjects.pool_request("p", bad),
    "saga step": lambda bad: subjects.saga_entry("s", bad, "x"),
    "saga status": lambda bad: subjects.saga_entry("s", "x", bad),
    "saga wildcard": lambda bad: subjects.saga_step_wildcard(bad, "x"),
    "timer owner": lambda bad: subjects.timer_due(bad, "k"),
    "dead stream": lambda bad: subjects.dead(bad, "d"),
    "dead durable": lambda bad: subjects.dead("s", bad),
    "query": subjects.query,
    "sink": subjects.sink,
}


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS.keys())
@given(bad=BAD)
def test_builders_refuse_what_is_no_token(builder, bad):
    """A dot, a wildcard or a capital in a name would reach into another's subjects."""
    if builder is BUILDERS["dead stream"] and TOKEN.fullmatch(bad.lower()):
        return  # the subject of its dead letters has the stream's name in lower case
    with pytest.raises(InvalidNameError, match="a-z, 0-9"):
        builder(bad)


@given(BAD.filter(lambda bad: len(bad) != 64))
def test_a_sagas_name_is_checked_too(bad):
    """A saga's name may be longer than a token, and is checked like one."""
    for build in (subjects.saga_tree, lambda bad: subjects.saga_entry(bad, "a", "b")):
        with pytest.raises(InvalidNameError):
            build(bad)


def test_names_have_a_maximum_length():
    """Tokens 63, pools 30 so that their nodes' names fit, sagas 96: one more is refused."""
    for check, most in (
        (lambda name: token(name, "node"), 63),
        (pool_name, POOL_NAME_CHARS_MAX),
        (saga_token, 96),
    ):
        assert check("a" * most) == "a" * most
        with pytest.raises(InvalidNameError, match=f"1 to {most} of a-z"):
            check("a" * (most + 1))


def test_a_host_name_with_dots_is_refused_with_the_remedy():
    """A host name with dots is refused with the remedy, and cut where it is very long."""
    with pytest.raises(InvalidNameError, match="use its first label"):
        subjects.telemetry("training", "gpu-1.example.com")
    with pytest.raises(InvalidNameError) as found:
        subjects.telemetry("training", "x" * 10_000)
    assert len(str(found.value)) < 300


def test_names_on_the_server_stay_short_and_distinct():
    """Names have under 32 characters, as the server advises, and differ by more than their case."""
    streams = [each.name for each in STREAMS] + [each.stream().name for each in BUCKETS]
    durables = [each.name for each in DURABLES]
    for names in (streams, durables):
        assert [name for name in names if len(name) >= 32] == []
        assert len({name.lower() for name in names}) == len(names)


def test_streams_do_not_overlap_and_hold_every_subject():
    """Each subject that is stored is stored once."""
    stored = {
        subjects.telemetry("p", "n"): "TELEMETRY",
        subjects.node_event("p", "n", "fault"): "INTAKE",
        subjects.node_event("p", "n", "verdict"): "EVENTS",
        subjects.pool_event("p", "scaled"): "EVENTS",
        subjects.fleet_event("lag"): "EVENTS",
        subjects.pool_request("p", "scale"): "REQUESTS",
        subjects.saga_entry("s", "drain", "started"): "SAGAS",
        subjects.timer_schedule("o", "k"): "TIMERS",
        subjects.timer_due("o", "k"): "TIMERS",
        subjects.dead("EVENTS", "health-events"): "DEAD",
        subjects.sink("audit"): "SINKS",
        subjects.node_command("p", "n", "reboot"): None,
        subjects.query("nodes"): None,
    }
    for subject, stream in stored.items():
        holding = [each.name for each in STREAMS if any(matches(w, subject) for w in each.subjects)]
        assert holding == ([stream] if stream else []), subject


def test_durables_filter_within_their_stream():
    """A filter that no subject of its stream can match would wait for ever."""
    by_name = {each.name: each for each in STREAMS}
    for durable in DURABLES:
        for filter_ in durable.filters:
            example = filter_.replace("*", "x").replace(".>", ".verdict")
            stream = by_name[durable.stream]
            held = (stream, *map(by_name.__getitem__, stream.sources))
            assert any(matches(w, example) for each in held for w in each.subjects), filter_
