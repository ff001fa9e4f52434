"""Where launches go that must be together, and when a gang is whole."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Choice, Offer, Offering
from schemas.node_records import node_key
from schemas.offering_records import Place, PlacementRecord, TriedPlace
from schemas.saga_params import LaunchSpec
from services.provisioner.offerings.placement_choice import (
    AnyPlace,
    FollowPlace,
    NotWhole,
    choose_place,
    claim,
    failed,
    rank,
    should_leave,
    whole,
)

NOW = datetime(2026, 5, 5, 12, tzinfo=UTC)
A, B = (Place(provider="p", region="r", zone=zone) for zone in ("a", "b"))
CHOICE = Choice(offers=(Offer(provider="p", instance_type="t"),), together="zone", required=True)


def offering(zone: str) -> Offering:
    """Return an offering of one zone."""
    return Offering(provider="p", region="r", zone=zone, instance_type="t")


def launch(name: str, gang: str = "", zone: str = "", **changes: Any) -> InstanceRecord:
    """Return an instance that is to be launched; in a zone: one that was requested there."""
    record = InstanceRecord(
        pool="web",
        instance=name,
        provider="p",
        token=name,
        launch=LaunchSpec(
            fleet="f", provider="p", instance_type="t", choice=CHOICE, gang=gang, gang_size=3
        ),
        offering=offering(zone) if zone else None,
        intended_at=NOW,
    )
    return replace(record, **changes)


def runs(name: str, gang: str = "", zone: str = "a") -> InstanceRecord:
    """An instance that runs."""
    return launch(name, gang, zone, state="running")


def gang(**changes: Any) -> PlacementRecord:
    """Return a gang of three in zone a."""
    return replace(PlacementRecord(place=A, owner="g1", size=3), **changes)


@pytest.mark.parametrize(
    ("found", "launched", "others", "where"),
    [
        # The first launch of an empty pool chooses.
        (None, launch("n1", "g1"), [], AnyPlace()),
        # The others of its gang follow, before and after it was placed, whatever else is there.
        (gang(), launch("n2", "g1"), [], FollowPlace(A)),
        (gang(state="placed"), launch("n2", "g1"), [runs("x", zone="b")], FollowPlace(A)),
        # None of a gang that has failed goes anywhere.
        (gang(state="failed", reason="full", error="QUOTA"), launch("n2", "g1"), [],
         NotWhole("full", "QUOTA")),
        # A pool that has nodes grows where they are, and a replacement goes there.
        (None, launch("n1", "g1"), [runs("x", zone="b")], FollowPlace(B)),
        (gang(state="placed"), launch("n9"), [runs("x", "g1")], FollowPlace(A)),
        (None, launch("n9"), [runs("x"), runs("y", zone="b"), runs("z", zone="b")], FollowPlace(B)),
        # An instance that was requested counts, one that leaves or has no offering yet does not.
        (None, launch("n9"), [launch("x", zone="b")], FollowPlace(B)),
        (None, launch("n9"), [launch("x", zone="b", state="terminating")], AnyPlace()),
        (None, launch("n9"), [launch("x")], AnyPlace()),
        # The next gang is free again, and does not follow what is left of the one before.
        (gang(state="failed"), launch("n4", "g2"), [], AnyPlace()),
        (gang(), launch("n4", "g2"), [], AnyPlace()),
        # Two single launches in an empty pool: the second follows the first, which has chosen.
        (gang(owner="n8", size=1), launch("n9"), [launch("n8")], FollowPlace(A)),
        (gang(owner="n8", size=1), launch("n9"), [], AnyPlace()),
        # Of a running instance without an offering (adopted) the zone counts.
        (None, launch("n9"),
         [launch("x", state="running", region="r", zone="b")], FollowPlace(B)),
        # One whose record was set back to an earlier request is where it runs.
        (None, launch("n9"), [replace(runs("x", zone="a"), zone="b")], FollowPlace(B)),
    ],
)  # fmt: skip
def test_a_launch_goes_where_the_others_are(
    found: PlacementRecord | None,
    launched: InstanceRecord,
    others: list[InstanceRecord],
    where: Any,
) -> None:
    """One place for all, free only where there is nothing to be together with."""
    if others and others[0].offering is None and others[0].state == "running":
        others = [replace(others[0], zone="b")]
    assert choose_place(found, launched, others) == where


def test_a_gang_is_whole_once_all_of_its_instances_run() -> None:
    """Instances of other gangs, and those that leave, do not count."""
    two = [runs("n1", "g1"), runs("n2", "g1"), runs("x"), launch("n3", "g1", "a")]
    assert whole(gang(), "g1", two) is None
    three = [*two, runs("n4", "g1")]
    tried = gang(tried=(TriedPlace(place=B, at=NOW),))
    placed = whole(tried, "g1", three)
    assert placed == gang(state="placed")
    assert whole(gang(), "g2", three) is None
    assert whole(gang(state="failed"), "g1", three) is None, "given back already"


def test_a_gang_fails_once_and_never_after_it_was_whole() -> None:
    """The reason says how many there were; its place comes last at the next try."""
    ended = failed(gang(), "g1", [runs("n1", "g1")], reason="no room", error="CAPACITY", now=NOW)
    assert ended is not None
    assert (ended.state, ended.error) == ("failed", "CAPACITY")
    assert ended.reason.startswith("p a had 1 of 3 nodes that must be together")
    assert ended.tried == (TriedPlace(place=A, at=NOW),)
    for kept in (ended, gang(state="placed"), gang(owner="g2"), None):
        assert failed(kept, "g1", [], reason="later", error="", now=NOW) is None


def test_places_that_failed_come_last_the_oldest_first() -> None:
    """Places that failed come last until a gang is placed, or for an hour."""
    ended = failed(gang(), "g1", [], reason="r", error="", now=NOW)
    again = claim(ended, launch("n4", "g2"), B, NOW + timedelta(minutes=1))
    assert (again.owner, again.size, again.place, again.state) == ("g2", 3, B, "forming")
    assert [rank(again, offering(zone), "zone") for zone in "abc"] == [1, 0, 0]
    ended = failed(again, "g2", [], reason="r", error="", now=NOW + timedelta(minutes=2))
    assert [rank(ended, offering(zone), "zone") for zone in "abc"] == [1, 2, 0]
    later = claim(ended, launch("n7", "g3"), A, NOW + timedelta(minutes=61))
    assert [rank(later, offering(zone), "zone") for zone in "abc"] == [0, 1, 0]
    # A gang whose launches were all given up has failed as well, though none could write it.
    assert rank(claim(gang(), launch("n7", "g3"), B, NOW), offering("a"), "zone") == 1


@pytest.mark.parametrize(
    ("found", "launched", "others", "leaves"),
    [
        (gang(), launch("n2", "g1"), [launch("n1", "g1")], True),
        # Something of it runs, or is asked for: it is kept while the rest is tried.
        (gang(), launch("n2", "g1"), [runs("n1", "g1")], False),
        (gang(), launch("n2", "g1"), [launch("n1", "g1", "a")], False),
        # No other place is left to try.
        (gang(tried=(TriedPlace(place=B, at=NOW),)), launch("n2", "g1"), [], False),
        # It is another's place, it is decided, or the launch is no gang's.
        (gang(owner="g2"), launch("n2", "g1"), [], False),
        (gang(state="placed"), launch("n2", "g1"), [], False),
        (gang(owner="n9", size=1), launch("n9"), [], False),
        (None, launch("n2", "g1"), [], False),
    ],
)
def test_a_place_without_any_capacity_is_left_at_once(
    found: PlacementRecord | None,
    launched: InstanceRecord,
    others: list[InstanceRecord],
    leaves: Any,
) -> None:
    """Nothing is kept there, so that waiting costs time for nothing."""
    assert should_leave(found, launched, others, [offering("a"), offering("b")]) is leaves


@pytest.mark.parametrize(("gang_of_prober", "leaves"), [("g1", False), ("g2", True)])
def test_a_place_that_a_launch_of_the_gang_probes_is_kept(
    gang_of_prober: str, leaves: bool
) -> None:
    """The prober has claimed what is blocked, and has not recorded its offering yet."""
    prober = launch("n1", gang_of_prober)
    probes = {node_key(prober.pool, prober.instance)}
    places = [offering("a"), offering("b")]
    assert should_leave(gang(), launch("n2", "g1"), [prober], places, probes) is leaves
