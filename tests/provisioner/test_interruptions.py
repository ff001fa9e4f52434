"""Spot offerings whose instances were taken away come later, and less so with time."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.launch_offers import Market, Offering
from schemas.messages import encode
from schemas.node_records import CloudNotice, NodeRecord
from schemas.offering_records import (
    INTERRUPTIONS_KEY,
    Interruption,
    InterruptionsRecord,
    OfferingView,
)
from schemas.settings import PoolSpec
from schemas.topology import OFFERINGS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.cli.text.offering_text import state_text
from services.pool_manager.planner.sizing.open_sagas import begin
from services.pool_manager.reconciler import saga_params
from services.provisioner.offerings.interruptions import (
    INTERRUPTIONS_MAX,
    KEPT,
    count,
    with_interruption,
)
from services.provisioner.offerings.offering_blocks import Free
from services.provisioner.offerings.offering_catalogue import Candidate
from services.provisioner.offerings.offering_choice import (
    ScoredCandidate,
    TakeOffering,
    choose,
)
from services.provisioner.offerings.offering_store import OfferingStore
from services.saga.definitions import DEFINITIONS
from services.settings.pool_validation import own_problems
from services.settings.provider_choices import choice_of
from services.simulator.engine.virtual_time import VirtualClock, run
from tests.pool_manager.test_pool_planner import node, pool, spec

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = 3600.0


def offering(zone: str, market: Market = "spot") -> Offering:
    """Return an offering in a zone."""
    return Offering(provider="p", zone=zone, instance_type="t", market=market)


def taken(zone: str, hours_ago: float, name: str = "n") -> Interruption:
    """An instance that was taken away so many hours ago."""
    at = NOW - timedelta(hours=hours_ago)
    return Interruption(offering=offering(zone), instance=f"{name}-{zone}-{hours_ago}", at=at)


@pytest.mark.parametrize(
    ("hours_ago", "half_life", "expected"),
    [
        ([], HOUR, 0),
        ([0.0], HOUR, 1),
        ([0.99], HOUR, 1),
        ([1.01], HOUR, 0),
        ([0.0, 0.0, 0.0], HOUR, 3),
        ([1.0, 1.0, 1.0], HOUR, 2),
        ([3.0, 3.0, 3.0], HOUR, 0),
        ([0.0, 0.0], 0.0, 0),
        ([-0.1], HOUR, 1),
    ],
)
def test_each_counts_half_after_a_half_life(
    hours_ago: list[float], half_life: float, expected: int
) -> None:
    """Rounded half up; without a penalty none counts."""
    assert count([taken("a", each) for each in hours_ago], half_life, NOW) == expected


def candidate(zone: str, position: int, **changes: Any) -> ScoredCandidate:
    """Return a candidate whose offering is free."""
    plain = {"score": 0.0, "near": 0, "block_state": Free(), "price": 1.0}
    made = Candidate(offering=offering(zone), position=position)
    return ScoredCandidate(candidate=made, **{**plain, **changes})


@pytest.mark.parametrize(
    ("changes", "zone", "remark"),
    [
        ({}, "b", "before p a t spot (2), interrupted lately"),
        ({"score": 9.0}, "b", "before p a t spot (2), interrupted lately"),
        ({"near": 1}, "a", ""),
        ({"interruptions": 0}, "a", ""),
    ],
)
def test_the_one_with_fewer_is_taken(changes: dict[str, Any], zone: str, remark: str) -> None:
    """The offering with fewer interruptions is taken, whatever its price or its place in the order.

    An offering near the pool's other nodes comes first.
    """
    first = candidate("a", 0, **{"interruptions": 2, **changes})
    both = [first, candidate("b", 1)]
    found = choose(both, (), None, [each.candidate for each in both], NOW)
    assert isinstance(found, TakeOffering)
    assert (found.scored.candidate.offering.zone, found.remark) == (zone, remark)


def test_the_only_one_is_taken_whatever_happened_to_it() -> None:
    """An offering with many interruptions is ranked last, and never refused."""
    only = candidate("a", 0, interruptions=50)
    found = choose([only], (), None, [only.candidate], NOW)
    assert found == TakeOffering(only)


def test_an_instance_counts_once_and_others_never() -> None:
    """A step that is repeated records it again; on-demand instances are not taken back."""
    record = with_interruption(None, offering("a"), "n1", NOW)
    assert record is not None
    assert with_interruption(record, offering("a"), "n1", NOW + timedelta(hours=1)) is None
    assert with_interruption(record, offering("a", "on-demand"), "n2", NOW) is None
    assert with_interruption(record, offering("a", "reserved"), "n2", NOW) is None


@given(hours=st.lists(st.integers(0, 400), max_size=40), many=st.booleans())
def test_the_memory_is_bounded(hours: list[int], many: bool) -> None:
    """The memory is bounded by number and by age, whatever comes; the newest are kept."""
    record, now = InterruptionsRecord(), NOW
    for number, each in enumerate(hours * (20 if many else 1)):
        now += timedelta(hours=each / (20 if many else 1))
        place = offering(f"zone-{number % 40:03}")
        record = with_interruption(record, place, f"training-{number}-0000", now) or record
        assert len(record.recent) <= INTERRUPTIONS_MAX
        assert all(now - one.at < KEPT for one in record.recent)
        assert record.recent[-1].instance == f"training-{number}-0000"
    assert len(encode(record)) < 100_000


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    scores=st.lists(st.floats(-5, 5), min_size=6, max_size=6),
)
def test_no_offering_is_taken_before_one_that_interrupts_less(
    counts: list[int], scores: list[float]
) -> None:
    """The offerings with the fewest interruptions are chosen among as if there were no others."""
    some = [
        candidate(str(number), number, interruptions=each, score=scores[number])
        for number, each in enumerate(counts)
    ]
    found = choose(some, (), None, [each.candidate for each in some], NOW)
    assert isinstance(found, TakeOffering)
    least = [each for each in some if each.interruptions == min(counts)]
    plain = choose(least, (), None, [each.candidate for each in least], NOW)
    assert isinstance(plain, TakeOffering)
    assert found.scored == plain.scored


RECLAIMED = CloudNotice(effect="reclaim", at=NOW)
RETIRED = CloudNotice(effect="retire", deadline=NOW, at=NOW)
GONE: dict[str, Any] = {"lost": True, "lost_at": NOW, "provider_state": "gone"}


@pytest.mark.parametrize(
    ("old", "interrupted"),
    [
        (node("a", market="spot", notices={"n": RECLAIMED}), "a"),
        (node("a", market="spot", **GONE), "a"),
        (node("a", market="on-demand", notices={"n": RECLAIMED}), ""),
        (node("a", market="spot", notices={"n": RETIRED}), ""),
        (node("a", market="spot", health="unhealthy", health_at=NOW), ""),
    ],
)
def test_a_successor_says_whose_place_it_takes(old: NodeRecord, interrupted: str) -> None:
    """A successor names the node whose place it takes before its own offering is chosen.

    This holds also where the successor is launched first.
    """
    record = pool(1, spec=spec(market="spot", interruption_penalty=Duration(HOUR)))
    _, opened, record = begin("f", record, "replace", NOW, node=old)
    params = saga_params("f", record, opened)
    steps = DEFINITIONS["replace"].steps(params)
    inputs = next(each.inputs(params, {}) for each in steps if each.name == "provision")
    assert msgspec.to_builtins(inputs).get("interrupted", "") == interrupted


def test_only_pools_that_say_so_have_it() -> None:
    """The half-life is part of what a spot launch chooses by."""
    assert choice_of(spec(market="spot")).interruption_seconds == 0
    penalty = spec(market="spot", interruption_penalty=Duration(HOUR))
    assert choice_of(penalty).interruption_seconds == HOUR
    assert choice_of(penalty, not_spot=True).interruption_seconds == 0


@pytest.mark.parametrize(("seconds", "wrong"), [(0, False), (30, True), (60, False), (8e5, True)])
def test_what_has_no_effect_is_refused(seconds: float, wrong: bool) -> None:
    """A penalty without effect is refused, with the bounds and an example."""
    plain = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=3)
    changed = msgspec.structs.replace(plain, interruption_penalty=Duration(seconds))
    found = list(own_problems(changed))
    assert [place for place, _ in found] == [("interruption_penalty",)] * wrong


def test_offerings_show_what_was_taken_away() -> None:
    """Offerings show how often their instances were interrupted, and when last."""
    view = OfferingView(
        provider="p", instance_type="t", market="spot", interruptions=3, interrupted_at=NOW
    )
    assert state_text(view, NOW).startswith("available, interrupted 3 times, last ")
    once = msgspec.structs.replace(view, interruptions=1)
    assert "interrupted once" in state_text(once, NOW)


def test_a_record_that_cannot_be_read_starts_empty() -> None:
    """A launch records an interruption before it chooses: it must not wait for an operator."""

    async def work() -> None:
        server = MemoryServer(VirtualClock())
        bus = MemoryBus(server, PerfectLink())
        await set_up(bus, VirtualClock(), replicas=1)
        await bus.put(OFFERINGS, INTERRUPTIONS_KEY, b"no JSON")
        store = OfferingStore(bus, VirtualClock())
        assert (await store.records()).interruptions == {}
        await store.record_interruption(offering("a"), "n")
        (found,) = (await store.records()).interruptions[offering("a")]
        assert found.instance == "n"
        server.close()

    run(work)
