"""The share of one node in EVENTS is bounded, and the bound is in the documentation."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.delivery.outbox import WAITING_MAX
from agent.faults.fault_rate_limit import KEYS_MAX, PASSES_MAX, WINDOW_SECONDS
from schemas import permissions, subjects
from schemas.node_events import FACTS_OF_AGENTS
from schemas.topology import EVENTS, FACTS_WAITING_MAX
from services.bus.nats.nats_bus import NatsBus
from services.notifier import flood_watch
from services.notifier.flood_watch import (
    FACTS_KEPT,
    FACTS_MAX,
    FULL_LOOKS_MAX,
    FloodWatch,
    Flow,
    find_surplus,
    next_flows,
    next_full,
)
from services.primitives.clock import SystemClock
from tests.support.settling import arriving, without_shares

FAULT = subjects.node_event("a", "n1", "fault")
REGISTERED = subjects.node_event("a", "n1", "registered")
OTHER = subjects.node_event("a", "n2", "fault")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({FAULT: FACTS_MAX}, []),
        ({FAULT: FACTS_MAX + 1, OTHER: 3}, [("n1", (FAULT,))]),
        ({FAULT: FACTS_MAX, REGISTERED: 1}, [("n1", (FAULT,))]),
        ({FAULT: 600, REGISTERED: 600}, [("n1", (FAULT, REGISTERED))]),
        ({FAULT: 5000, OTHER: 5000}, [("n1", (FAULT,)), ("n2", (OTHER,))]),
        ({subjects.node_event("b", "n1", "fault"): 600, FAULT: 600}, []),
        ({"navarch.v1.pool.a.event.scaled": 9999, "elsewhere": 9999}, []),
        ({}, []),
    ],
)
def test_a_node_with_more_than_its_share_loses_its_oldest_facts(
    counts: dict[str, int], expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    """Facts of all kinds count together, and no other node loses any."""
    assert expected == [(each.node, each.subjects) for each in find_surplus(counts)]


N1, N2 = ("a", "n1"), ("a", "n2")


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([30_000, 30_000, 30_000], [False, False, True]),
        ([10_000, 10_000, 10_000, 10_000], [False, False, True, True]),
        # One burst, whatever it is of, and a restored stream.
        ([1_000_000, 900, 900], [False, False, False]),
        ([1_000_000], [False]),
        # What an agent kept while it was cut off, and all its faults at once after that.
        ([10_000, 5_130, 0, 0, 0, 0, 5_130], [False] * 7),
        ([2_000] * 24, [False] * 24),
        ([2_000] * 26, [False] * 25 + [True]),
        ([1_000] * 500, [False] * 500),
        # It pauses before each third look, and is still bounded by what is removed.
        ([9_000, 9_000, 900] * 3, [False] * 9),
        ([30_000, 30_000, 0, 30_000, 30_000, 30_000], [False] * 5 + [True]),
    ],
)
def test_only_a_lasting_flood_is_one(stored: list[int], expected: list[bool]) -> None:
    """A flood is found by what a node stores within ten seconds each.

    Another node's flow does not change.
    """
    flows: dict[tuple[str, str], Flow] = {}
    held, found = {N1: 500, N2: 7}, []
    for count in stored:
        now = held | {N1: held[N1] + count}
        flows = next_flows(flows, held, now, 10.0)
        found.append(N1 in flows and flows[N1].is_flood)
        held = now
        assert N2 not in flows

    assert expected == found


@given(st.lists(st.tuples(st.floats(0.1, 900), st.integers(0, 9)), max_size=40))
def test_no_agent_of_ours_is_disconnected(looks: list[tuple[float, int]]) -> None:
    """No agent's flow is taken for a flood, however late the looks are.

    An agent sends what it kept, and all that its limit lets pass.
    """
    most = PASSES_MAX * (2 * KEYS_MAX + 1)
    flows: dict[tuple[str, str], Flow] = {}
    at, held, backlog, windows = 0.0, 0, WAITING_MAX, 0
    for seconds, share in looks:
        at += seconds
        sent = backlog * share // 9
        backlog -= sent
        # The end of one window of its limit and the whole of the next may meet.
        due = int(at // WINDOW_SECONDS) + 2
        sent, windows = sent + (due - windows) * most, due
        flows = next_flows(flows, {N1: held}, {N1: held + sent}, seconds)
        held += sent
        assert not any(each.is_flood for each in flows.values())


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([FACTS_WAITING_MAX] * 3, 3),
        ([FACTS_WAITING_MAX - 1] * 3, 0),
        # Between two times that room is made there is some for a moment.
        ([FACTS_WAITING_MAX, FACTS_WAITING_MAX, 3], 1),
        ([FACTS_WAITING_MAX, 0, 0], 0),
        # What an agent kept while it was cut off, at 64 a second.
        ([FACTS_WAITING_MAX] * (WAITING_MAX // 640), WAITING_MAX // 640),
    ],
)
def test_a_node_is_counted_while_intake_has_no_room_for_it(looks: list[int], expected: int) -> None:
    """No other is, and a backlog of an agent of ours is far from a disconnection."""
    full: dict[tuple[str, str], int] = {}
    for count in looks:
        full = next_full(full, {FAULT: count, REGISTERED: 1, OTHER: 2})
    assert full == ({N1: expected} if expected else {})
    assert expected < FULL_LOOKS_MAX / 10


async def test_only_a_filling_stream_loses_facts(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest facts of the flooding node are kept, and all those of others."""
    monkeypatch.setattr(flood_watch, "FACTS_MAX", 30)
    monkeypatch.setattr(flood_watch, "FACTS_KEPT", 10)
    monkeypatch.setattr(flood_watch, "GROWTH_MIN", 20)
    await bus.publish(OTHER, b"{}")
    await without_shares(bus)
    await asyncio.gather(*(bus.publish(FAULT, b"%d" % each) for each in range(40)))
    await arriving(bus)
    last = await bus.last_sequence(EVENTS.name)
    watch = FloodWatch(bus, SystemClock())

    assert await watch.look(EVENTS.bytes_max // 3, last) == []
    assert len(await bus.read(EVENTS.name, FAULT)) == 40
    (failure,) = await watch.look(EVENTS.bytes_max // 2, last)
    kept = await bus.read(EVENTS.name, FAULT)
    assert [each.sequence for each in kept] == list(range(last - 9, last + 1))
    assert len(await bus.read(EVENTS.name, OTHER)) == 1
    assert (failure.failure, failure.about) == ("message-flood", "node n1")
    # Shown for a while, and not looked at again until the stream has grown.
    assert await watch.look(EVENTS.bytes_max // 2, last + 19) == [failure]


def test_the_documented_bound_is_the_one_of_the_code() -> None:
    """The page says how many stolen credentials it takes to evict the history of others."""
    mib = (FACTS_MAX * permissions.AGENT_BYTES_MAX) >> 20
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text()

    assert f"{FACTS_MAX:,} facts of at most {permissions.AGENT_BYTES_MAX >> 10} KiB" in page
    assert f"{mib} MiB" in page
    assert f"{EVENTS.bytes_max // 2 // (mib << 20)} nodes" in page
    assert FACTS_KEPT * len(FACTS_OF_AGENTS) <= FACTS_MAX
