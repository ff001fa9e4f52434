"""An offering is chosen by order, price, blocks, waits and pace."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from schemas.offering_records import BlockRecord, SpendRecord, SpendReservation
from schemas.saga_params import LaunchSpec
from services.provisioner.offerings import offering_choice, spend
from services.provisioner.offerings.offering_blocks import Blocked, BlockState, Free, ProbeDue
from services.provisioner.offerings.offering_catalogue import Candidate
from services.provisioner.offerings.offering_choice import (
    FailLaunch,
    LaunchPace,
    PriceLimit,
    RefuseLaunch,
    ScoredCandidate,
    TakeOffering,
    WaitForOffering,
)

NOW = datetime(2026, 11, 21, 8, tzinfo=UTC)
OFFERING = Offering(provider="p", instance_type="t")
SOON, LATER = NOW + timedelta(seconds=30), NOW + timedelta(seconds=300)


def blocked(kind: Any = "CAPACITY", until: datetime = SOON, zone: str = "a") -> Blocked:
    """Return the block of an offering until then."""
    record = BlockRecord(
        scope="offering",
        provider="p",
        zone=zone,
        instance_type="t",
        market="on-demand",
        kind=kind,
        reason="there is none",
        since=NOW,
        failed_at=NOW,
        probe_at=until,
    )
    return Blocked(until, record)


def probed(kind: Any) -> Blocked:
    """Return the block of an offering that another launch may probe until then."""
    record = msgspec.structs.replace(
        blocked(kind, until=NOW).record, probe="training.n2", probe_until=SOON
    )
    return Blocked(SOON, record)


def weighed(position: int, state: BlockState | None = None, **changes: Any) -> ScoredCandidate:
    """A candidate as the table below has it."""
    market = "on-demand" if changes.pop("fallback", position >= 8) else "spot"
    offering = Offering(provider="p", zone="abcdefghijkl"[position], instance_type="t")
    candidate = Candidate(
        offering=offering,
        position=position,
        max_price=changes.pop("max_price", 0.0),
        fallback=market == "on-demand",
    )
    values: dict[str, Any] = {"score": -float(position), "near": 0, "price": 2.0} | changes
    return ScoredCandidate(candidate=candidate, block_state=state or Free(), **values)


POOL_CAP = PriceLimit(
    dollars=1.5, refusal="above-pool-cap", because="and pool web costs $8 of $9.5"
)

CASES: dict[str, tuple[list[ScoredCandidate], dict[str, Any], Any]] = {
    "the first in the pool's order": ([weighed(1), weighed(0)], {}, 0),
    "the best score first": ([weighed(0), weighed(1, score=5.0)], {}, 1),
    "near the others before the score": ([weighed(0, score=9.0), weighed(1, near=3)], {}, 1),
    "what is exhausted is passed over": ([weighed(0, blocked()), weighed(1)], {}, 1),
    "what may be tried again is, by its turn": (
        [weighed(0, ProbeDue(("k",))), weighed(1)],
        {},
        (0, ("k",)),
    ),
    "but not before what is better": ([weighed(0), weighed(1, ProbeDue(("k",)))], {}, 0),
    "exhausted: wait for the first of them": (
        [weighed(0, blocked(until=LATER)), weighed(1, blocked())],
        {},
        SOON,
    ),
    "a quota is not waited for where capacity is": (
        [weighed(0, blocked("QUOTA", SOON)), weighed(1, blocked(until=LATER))],
        {},
        LATER,
    ),
    "nothing that passes by itself": (
        [weighed(0, blocked("QUOTA")), weighed(1, blocked("AUTH"))],
        {},
        "QUOTA",
    ),
    "what another launch probes may end at once": (
        [weighed(0, probed("QUOTA")), weighed(1, blocked("AUTH"))],
        {},
        SOON,
    ),
    "not its turn: wait, and do not go elsewhere": ([weighed(0), weighed(1)], {"may": [1]}, None),
    "too dear, the next": ([weighed(0, price=9.0, max_price=3.0), weighed(1)], {}, 1),
    "all too dear": ([weighed(0, price=9.0, max_price=3.0)], {}, "above-max-price"),
    "no room under the cap": ([weighed(0)], {"rooms": [POOL_CAP]}, "above-pool-cap"),
    "a cheaper one has room": ([weighed(0), weighed(1, price=1.0)], {"rooms": [POOL_CAP]}, 1),
    "a price that is not known is not taken for nothing": (
        [weighed(0, price=None)],
        {"rooms": [POOL_CAP]},
        "price-unknown",
    ),
    "without a limit no price is needed": ([weighed(0, price=None)], {}, 0),
    "spot first, though on-demand scores more": (
        [weighed(8, score=9.0), weighed(0)],
        {"fallback_at": NOW},
        0,
    ),
    "on-demand once the wait for spot is over": (
        [weighed(0, blocked()), weighed(8)],
        {"fallback_at": NOW},
        8,
    ),
    "until then the wait": ([weighed(0, blocked()), weighed(8)], {"fallback_at": LATER}, SOON),
    "the end of that wait, where it comes first": (
        [weighed(0, blocked(until=LATER)), weighed(8)],
        {"fallback_at": SOON},
        SOON,
    ),
    "nothing is offered": ([], {}, "nothing-offered"),
}


@pytest.mark.parametrize(("given", "about", "expected"), CASES.values(), ids=CASES)
def test_one_is_chosen_or_it_is_said_why_not(
    given: list[ScoredCandidate], about: dict[str, Any], expected: Any
) -> None:
    """An index: it is taken; a time: waited for until then; a word: why there is nothing."""
    may = [
        each.candidate for each in given if each.candidate.position in about.get("may", range(9))
    ]
    found = offering_choice.choose(
        given, about.get("rooms", []), about.get("fallback_at"), may, NOW
    )
    match found:
        case TakeOffering(chosen, ()):
            assert chosen.candidate.position == expected
        case TakeOffering(chosen, claims):
            assert (chosen.candidate.position, claims) == expected
        case WaitForOffering(until):
            assert until == expected
        case FailLaunch(kind):
            assert kind == expected
        case RefuseLaunch(refusal):
            assert refusal == expected


def test_a_sentence_names_what_is_blocked_once() -> None:
    """Offerings with the same reason are grouped; many of them are counted."""
    records = [blocked(zone=zone).record for zone in "abcdefgh"]
    said = offering_choice.describe_blocks([*records, blocked("QUOTA", zone="z").record])
    assert said.startswith("p a t on-demand, p b t on-demand, ")
    assert " and 2 more (CAPACITY: there is none); p z t on-demand (QUOTA: there is none)" in said


def test_the_pace_doubles_while_nothing_is_found_wrong() -> None:
    """Few calls at first; a moment without a failure, or successes, let more begin."""
    pace, counts, clock = LaunchPace(), [], 100.0
    for _ in range(6):
        pace, count = offering_choice.refresh_pace(pace, clock), 0
        while pace.started < pace.allowed:
            pace, count = offering_choice.count_call(pace), count + 1
        counts.append(count)
        clock += offering_choice.PACE_SECONDS
    assert counts == [4, 8, 16, 32, 64, 128]
    assert offering_choice.count_success(offering_choice.restart_pace(clock)).allowed == 2


def record(node: str, dollars: float, **changes: Any) -> InstanceRecord:
    """An instance that costs something."""
    of = OFFERING
    values: dict[str, Any] = {"state": "running", "offering": of} | changes
    return InstanceRecord(
        pool="web",
        instance=node,
        provider="p",
        token="t",
        launch=LaunchSpec(fleet="f", provider="p", instance_type="t"),
        dollars_per_hour=dollars,
        intended_at=NOW,
        **values,
    )


def test_each_instance_is_counted_once() -> None:
    """An instance counts by its record, by its reservation until then, and not once it is gone."""
    records = {
        "web.1": record("1", 2.0),
        "web.2": record("2", 0.0, state="intended", offering=None),
        "web.3": record("3", 7.0, state="terminated"),
        "web.4": record("4", 3.0, state="leaked"),
        "web.5": record("5", 9.0),
    }
    at = NOW
    reserved = {
        key: SpendReservation(dollars_per_hour=dollars, at=at)
        for key, dollars in {"web.1": 4.0, "web.2": 1.0, "web.3": 4.0, "job.1": 5.0}.items()
    }
    costs = spend.sum_costs(records, reserved, "web.5")
    assert costs == {"web": 6.0, "job": 5.0}
    rooms = spend.price_limits(costs, "web", 10.0, 12.0)
    assert [(each.dollars, each.refusal) for each in rooms] == [
        (4.0, "above-pool-cap"),
        (1.0, "above-fleet-cap"),
    ]
    assert spend.price_limits(costs, "web", 0.0, 0.0) == ()


def test_reservations_outlive_the_records_that_replicas_may_not_know_yet() -> None:
    """Reservations go after a while, so that the record stays small."""
    kept = spend.add_reservation(SpendRecord(), "web.1", 2.0, OFFERING, NOW)
    kept = spend.add_reservation(kept, "web.2", 2.0, OFFERING, NOW + timedelta(seconds=100))
    assert set(kept.reserved) == {"web.1", "web.2"}
    kept = spend.add_reservation(kept, "web.3", 2.0, OFFERING, NOW + timedelta(seconds=130))
    assert set(kept.reserved) == {"web.2", "web.3"}


def test_a_refusal_releases_the_reservation_of_its_own_offering() -> None:
    """One without an offering is of an earlier version."""
    spot = msgspec.structs.replace(OFFERING, market="spot")
    record = spend.add_reservation(SpendRecord(), "web.1", 2.0, OFFERING, NOW)
    assert spend.without_reservation(record, "web.1", spot) == record
    assert spend.without_reservation(record, "web.2", OFFERING) == record
    assert spend.without_reservation(record, "web.1", OFFERING) == SpendRecord()
    old = SpendRecord(reserved={"web.1": SpendReservation(dollars_per_hour=2.0, at=NOW)})
    assert spend.without_reservation(old, "web.1", spot) == SpendRecord()
