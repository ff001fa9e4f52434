"""Tables test the decisions about one instance, and the sweep's."""

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from schemas.enums import NOT_LISTED, InstanceState, ProviderErrorKind
from schemas.instance_records import InstanceRecord, RequestedOffering
from schemas.launch_offers import Offering
from services.provisioner.instances import instance_decisions as decisions
from services.provisioner.provider_client.provider import Instance
from services.provisioner.provider_client.provider_errors import RULES
from services.provisioner.removal import removal_orders as orders
from services.provisioner.removal import sweep_decisions as sweeps
from services.provisioner.removal.sweep_actions import SweepAction, SweepInput
from tests.provisioner.provisioner_parts import FLEET, launch

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
GRACE = timedelta(seconds=60)
LONG_AGO = NOW - timedelta(hours=1)
KEY = "web.web-1"
ON_DEMAND = Offering(provider="p", instance_type="t")
SPOT = replace(ON_DEMAND, market="spot")


def record(state: InstanceState = "intended", **changes: object) -> InstanceRecord:
    """Return a record of node web-1."""
    made = decisions.intended_record("web", "web-1", launch(), "scale-up-web-1", LONG_AGO)
    going = {"terminating_at": LONG_AGO} if state in decisions.TERMINATING_STATES else {}
    up = {"provider_id": "i-1", "running_at": LONG_AGO} if state == "running" else {}
    return replace(made, state=state, **(going | up | changes))


def instance(provider_id: str = "i-1", **changes: object) -> Instance:
    """Return the instance that a provider lists for node web-1."""
    values = {"name": "web-1", "fleet": FLEET, "pool": "web", "status": "running"} | changes
    return Instance(provider_id=provider_id, **values)


GONE = record("terminated", provider_id="i-1", ordered=("i-1",), terminated_at=LONG_AGO)
"""Removed by the order of a saga."""
DARK = Instance(name="gpu-1", provider_id="gpu-1", may_hold="gpu-1:")
"""A host into which its provider could not look."""


def sighting(
    records: dict[str, InstanceRecord],
    listed: tuple[Instance, ...],
    *,
    seen: datetime = LONG_AGO,
    living: frozenset[str] = frozenset(),
    departed: frozenset[str] = frozenset(),
) -> SweepInput:
    """Return the input of a sweep."""
    return SweepInput(
        fleet=FLEET,
        records=records,
        listed={"fake": listed},
        first_seen={("fake", each.provider_id): seen for each in listed},
        living=living,
        departed=departed,
        now=NOW,
        grace=GRACE,
    )


def due(seen: SweepInput, removals_max: int = 10) -> tuple[SweepAction, ...]:
    """Return the actions that a sweep performs now."""
    return sweeps.due_actions(sweeps.decide_sweep(seen), removals_max)


def test_the_token_of_an_intention_is_the_same_for_every_try() -> None:
    """A launch's token depends on fleet, pool and instance, on all of them and on nothing else."""
    one = decisions.launch_token("f", "p", "i")
    others = {
        decisions.launch_token(*each)
        for each in (("g", "p", "i"), ("f", "q", "i"), ("f", "p", "j"))
    }
    assert one == decisions.launch_token("f", "p", "i")
    assert len(one) == 32
    assert len(others | {one}) == 4


@pytest.mark.parametrize(
    ("state", "made", "expected"),
    [
        ("intended", "i-1", "running"),
        ("running", "i-1", "running"),
        ("running", "i-2", "surplus"),
        ("terminating", "i-1", "removed"),
        ("leaked", "i-1", "removed"),
        ("terminated", "i-1", "removed"),
    ],
)
def test_settlement_of_a_launch(state: InstanceState, made: str, expected: str) -> None:
    """Only a current intention keeps the instance that was launched for it."""
    assert expected == decisions.settle(record(state), instance(made), NOW, "fake").outcome


REFUSED = RequestedOffering(offering=ON_DEMAND, dollars_per_hour=3.0, chosen="before it")
REQUESTED = replace(
    record(), provider="p", offering=ON_DEMAND, dollars_per_hour=3.0, chosen="before it"
)
CLEARED = decisions.refused(REQUESTED, ON_DEMAND, "CAPACITY: none")
GONE_ON = replace(CLEARED, offering=SPOT, dollars_per_hour=1.0)
OTHER_ZONE = replace(CLEARED, offering=replace(ON_DEMAND, zone="b"), dollars_per_hour=2.0)


@pytest.mark.parametrize(
    ("current", "made", "requested", "expected"),
    [
        pytest.param(CLEARED, {}, REQUESTED, ON_DEMAND, id="another replica was refused there"),
        pytest.param(GONE_ON, {}, REQUESTED, ON_DEMAND, id="it has gone on to another market"),
        pytest.param(
            replace(GONE_ON, provider="q"),
            {},
            REQUESTED,
            None,
            id="it has gone on to another cloud",
        ),
        pytest.param(CLEARED, {}, None, ON_DEMAND, id="adopted after the refusal"),
        pytest.param(GONE_ON, {"market": "on-demand"}, None, ON_DEMAND, id="adopted by its market"),
        pytest.param(GONE_ON, {"market": "spot"}, REQUESTED, SPOT, id="a token that was used"),
        pytest.param(OTHER_ZONE, {"zone": "a"}, None, ON_DEMAND, id="adopted by its zone"),
        pytest.param(GONE_ON, {}, None, SPOT, id="adopted, and nothing else is known"),
        pytest.param(
            replace(record(), provider="p"),
            {"market": "spot", "instance_type": "t"},
            None,
            SPOT,
            id="adopted, and its record was lost",
        ),
        pytest.param(
            REQUESTED, {"market": "spot"}, None, SPOT, id="adopted, and its record was restored"
        ),
    ],
)
def test_an_instance_keeps_the_offering_that_it_was_requested_from(
    current: InstanceRecord,
    made: dict[str, str],
    requested: InstanceRecord | None,
    expected: Offering | None,
) -> None:
    """A node whose market is unknown counts as spot, and an on-demand one too many is removed."""
    settled = decisions.settle(current, instance("i-1", **made), NOW, "p", requested)
    kept = settled.record.offering if settled.outcome == "running" else None
    assert kept == expected
    if kept == ON_DEMAND:
        assert (settled.record.dollars_per_hour, settled.record.chosen) == (3.0, "before it")
        assert settled.record.refused == ()


def test_a_refused_offering_is_remembered_once_and_costs_nothing() -> None:
    """Refused by two replicas at once, or again after a probe."""
    again = decisions.refused(replace(CLEARED, offering=ON_DEMAND), ON_DEMAND, "CAPACITY: none")
    assert (CLEARED.offering, CLEARED.dollars_per_hour, CLEARED.refused) == (None, 0.0, (REFUSED,))
    assert [each.offering for each in again.refused] == [ON_DEMAND]
    late = decisions.refused(GONE_ON, ON_DEMAND, "CAPACITY: none")
    assert (late.offering, late.dollars_per_hour, late.attempts) == (SPOT, 1.0, 2)


@pytest.mark.parametrize(
    ("current", "made", "expected"),
    [
        pytest.param(
            replace(record("running"), provider="q", offering=replace(ON_DEMAND, provider="q")),
            "i-1",
            "running",
            id="two names of one account show the same instance",
        ),
        pytest.param(
            replace(record("running"), provider="q", offering=replace(ON_DEMAND, provider="q")),
            "i-2",
            "surplus",
            id="another cloud has launched another one",
        ),
        pytest.param(
            replace(record("running"), provider="q"), "i-2", "surplus", id="adopted there"
        ),
        pytest.param(record("orphaned", provider_id="i-1"), "i-1", "kept", id="an operator's"),
        pytest.param(record("orphaned", provider_id="i-1"), "i-2", "surplus", id="beside that"),
    ],
)
def test_settlement_of_a_launch_that_others_have_settled(
    current: InstanceRecord, made: str, expected: str
) -> None:
    """A settled record stays, and what is left to an operator is not touched."""
    settled = decisions.settle(current, instance(made), NOW, "p", REQUESTED)
    ordered = [each.provider_id for each in settled.record.surplus]
    assert (settled.outcome, replace(settled.record, surplus=())) == (expected, current)
    assert ordered == ([made] if expected == "surplus" else [])


def test_an_instance_launched_after_the_last_refusal_is_removed_where_it_is() -> None:
    """The record names the provider that refused last, and no offering."""
    ended = replace(record("terminated"), provider="q", refused=(REFUSED,))
    settled = decisions.settle(ended, instance("i-1"), NOW, "p", REQUESTED)
    assert (settled.outcome, settled.record.provider, settled.record.state) == (
        "removed",
        "p",
        "terminating",
    )


def test_a_superseded_launch_is_recorded_as_terminating_again() -> None:
    """An instance made after its absence was confirmed is not forgotten."""
    settled = decisions.settle(record("terminated"), instance("i-9"), NOW, "fake")
    assert "removed" == settled.outcome
    assert (settled.record.state, settled.record.provider_id) == ("terminating", "i-9")
    assert settled.record.terminating_at == NOW


@pytest.mark.parametrize(
    ("known_id", "listed", "age_seconds", "expected"),
    [
        ("i-1", (instance("i-1"),), 100, False),
        ("i-1", (), 0, False),
        ("i-1", (), 5, True),
        ("", (), 0, False),
        ("", (), 5, True),
        ("", (instance("i-7"),), 100, False),
        ("", (instance("i-7", fleet="another"),), 100, True),
        ("i-1", (instance("i-7", name="web-2"),), 100, True),
        ("gpu-1:t", (DARK,), 100, False),
        ("gpu-10:t", (DARK,), 100, True),
        ("", (DARK,), 100, False),
    ],
)
def test_what_proves_an_absence(
    known_id: str, listed: tuple[Instance, ...], age_seconds: int, *, expected: bool
) -> None:
    """A list without it that cannot lag any more behind its launch, or the last try of one."""
    since = NOW - timedelta(seconds=age_seconds)
    known = {"running_at": since, "terminating_at": NOW} if known_id else {"terminating_at": since}
    current = record("terminating", provider_id=known_id, **known)
    assert orders.is_absent(current, listed, NOW, timedelta(seconds=5)) is expected


@pytest.mark.parametrize(
    ("case", "records", "listed", "expected"),
    [
        ("ours and unknown", {}, (instance(),), ["remove-unexpected"]),
        ("another fleet's", {}, (instance(fleet="another"),), []),
        ("no fleet's", {}, (instance(fleet=""),), []),
        ("ours without a name", {}, (instance(name="No Name"),), ["keep-unnamed"]),
        ("as recorded", {KEY: record("running")}, (instance(),), []),
        ("unfinished launch", {KEY: record()}, (instance(),), ["adopt-instance"]),
        ("beside the record's", {KEY: record("running")}, (instance(), instance("i-2")),
         ["note-unclear"]),
        ("stopped beside it", {KEY: record("running")},
         (instance(), instance("i-2", status="stopped")), ["remove-surplus"]),
        ("going beside it", {KEY: record("running")},
         (instance(), instance("i-2", status="stopping")), []),
        ("late", {KEY: record("terminated")}, (instance(),), ["remove-late"]),
        ("late, another's token", {KEY: record("terminated")}, (instance(token="x"),),
         ["remove-unexpected"]),
        ("gone, and its ID again", {KEY: GONE}, (instance(),), ["remove-late"]),
        ("its ID given again", {KEY: GONE}, (instance(created_at=NOW),), ["remove-unexpected"]),
        ("gone, and another ID", {KEY: GONE}, (instance("i-2"),), ["remove-unexpected"]),
        ("should be gone", {KEY: record("terminating")}, (instance(),), ["retry-removal"]),
        ("leaked", {KEY: record("leaked")}, (instance(),), ["retry-removal"]),
        ("gone, unconfirmed", {KEY: record("terminating")}, (), ["confirm-removal"]),
        ("vanished", {KEY: record("running")}, (), ["mark-unlisted"]),
        ("vanished, noted", {KEY: record("running", error=NOT_LISTED)}, (), []),
        ("back again", {KEY: record("running", error=NOT_LISTED)}, (instance(),),
         ["mark-listed"]),
        ("on a dark host", {KEY: record("running", provider_id="gpu-1:t")}, (DARK,), []),
        ("seen nowhere", {KEY: record("running", provider_id="gpu-2:t")}, (DARK,),
         ["mark-unlisted"]),
        ("going, in the dark", {KEY: record("leaked", provider_id="gpu-1:t")}, (DARK,),
         ["retry-removal"]),
        ("intended, not made", {KEY: record()}, (), []),
        ("gone", {KEY: record("terminated")}, (), []),
    ],
)  # fmt: skip
def test_what_a_sweep_does(
    case: str,
    records: dict[str, InstanceRecord],
    listed: tuple[Instance, ...],
    expected: list[str],
) -> None:
    """Providers and records are compared both ways, and every difference has one answer."""
    assert [each.kind for each in due(sighting(records, listed))] == expected, case


@pytest.mark.parametrize(
    ("records", "listed"),
    [
        ({}, (instance(),)),
        ({KEY: record()}, (instance(),)),
        ({KEY: record("running")}, (instance(), instance("i-2"))),
        ({KEY: record("terminating", terminating_at=NOW)}, (instance(),)),
        ({KEY: record("running", running_at=NOW)}, ()),
    ],
)
def test_a_sweep_leaves_alone_what_is_young(
    records: dict[str, InstanceRecord], listed: tuple[Instance, ...]
) -> None:
    """A difference within the grace is left to the operation in progress."""
    assert due(sighting(records, listed, seen=NOW)) == ()


@pytest.mark.parametrize(("provider_id", "expected"), [("i-1", []), ("i-2", [])])
def test_two_providers_of_one_account_show_the_same_instances(
    provider_id: str, expected: list[type]
) -> None:
    """An instance of another provider is its own; without its list nothing is known of it."""
    offering = Offering(provider="other", instance_type="h100")
    theirs = record("running", provider="other", offering=offering, provider_id=provider_id)

    assert expected == [each.kind for each in due(sighting({KEY: theirs}, (instance(),)))]


def test_a_living_node_without_a_record_is_restored_and_not_removed() -> None:
    """A lost record must not cost a node in service."""
    seen = sighting({}, (instance(),), living=frozenset({KEY}))
    [action] = due(seen)
    assert (action.kind, action.key, action.instance) == ("restore-record", KEY, instance())


def test_the_running_record_of_a_node_that_is_gone_ends() -> None:
    """INSTANCES was rolled back: an instance that is still listed ran on, and cost money."""
    records, gone = {KEY: record("running")}, frozenset({KEY})
    for listed, kind in [((), "forget-instance"), ((instance(),), "orphan-departed")]:
        [action] = due(sighting(records, listed, departed=gone))
        assert (action.kind, action.key) == (kind, KEY)


@pytest.mark.parametrize(
    ("intended_at", "departed", "expected"),
    [
        pytest.param(LONG_AGO, frozenset({KEY}), ["end-launch"], id="its node is gone"),
        pytest.param(LONG_AGO, frozenset(), [], id="its node is not gone"),
        pytest.param(NOW, frozenset({KEY}), [], id="its node may have its name again"),
    ],
)
def test_the_launch_of_a_node_that_is_gone_ends(
    intended_at: datetime, departed: frozenset[str], expected: list[str]
) -> None:
    """INSTANCES was rolled back to before the launch was undone, and its saga has ended."""
    records = {KEY: record(intended_at=intended_at)}
    assert expected == [each.kind for each in due(sighting(records, (), departed=departed))]


@pytest.mark.parametrize(
    ("serials", "kind"),
    [
        pytest.param({"web": 3}, "remove-unexpected", id="named by its pool"),
        pytest.param({"web": 2}, "keep-orphan", id="its pool has not named it yet"),
        pytest.param({}, "keep-orphan", id="its pool is not recorded"),
    ],
)
def test_an_instance_that_a_restored_store_has_not_named_is_an_orphan(
    serials: dict[str, int], kind: str
) -> None:
    """An instance that was launched after the backup may be in service, so it is an orphan."""
    later = instance("i-3", name="web-3-0ed2")
    seen = dataclasses.replace(sighting({}, (later,)), serials=serials)
    assert [each.kind for each in due(seen)] == [kind]


def test_nothing_is_concluded_from_a_provider_that_could_not_be_listed() -> None:
    """An absent list is not an empty one."""
    seen = SweepInput(
        fleet=FLEET,
        records={KEY: record("running")},
        listed={},
        first_seen={},
        living=frozenset(),
        now=NOW,
        grace=GRACE,
    )
    assert due(seen) == ()


def test_a_sweep_removes_so_many_unknown_instances_and_no_more() -> None:
    """A mistake stays small."""
    many = tuple(instance(f"i-{n}", name=f"web-{n}") for n in range(20))
    assert len(due(sighting({}, many), 7)) == 7


states = st.sampled_from(["intended", "running", "terminating", "terminated", "leaked"])
listings = st.lists(
    st.builds(
        instance,
        st.sampled_from(["i-1", "i-2", "i-3"]),
        fleet=st.sampled_from([FLEET, "another", ""]),
        name=st.sampled_from(["web-1", "web-2", ""]),
    ),
    max_size=6,
    unique_by=lambda each: each.provider_id,
)


@given(state=states, listed=listings, old=st.booleans())
def test_no_sweep_touches_another_fleet_or_the_instance_that_a_record_runs(
    state: InstanceState, listed: list[Instance], *, old: bool
) -> None:
    """A sweep removes only our fleet's instances, and never a node that runs as recorded."""
    seen = sighting({KEY: record(state)}, tuple(listed), seen=LONG_AGO if old else NOW)
    for action in due(seen, 100):
        if action.kind in sweeps.REMOVALS:
            assert action.instance.fleet == FLEET
            if action.instance.name == "web-1":
                assert state in {"running", "terminated"}
                assert not (state == "running" and action.instance.provider_id == "i-1")


@pytest.mark.parametrize(
    ("waited", "waits_seconds", "expected"),
    [
        (-1.0, 0.0, True),  # the provider is removing it, and has others; clocks differ
        (0.0, 0.0, True),
        (0.0, 900.0, False),  # there is no other until it is free
        (899.0, 900.0, False),
        (900.0, 900.0, True),
    ],
)
def test_how_long_a_saga_waits_for_a_removal(
    waited: float, waits_seconds: float, expected: bool
) -> None:
    """A saga waits for the removal's acceptance, or for free capacity, and each only so long."""
    removed = record("terminating", terminating_at=NOW - timedelta(seconds=waited))
    found = orders.may_go_on(removed, NOW, waits_seconds)
    assert found is expected


@pytest.mark.parametrize("kind", [*RULES, None])
def test_when_a_removal_that_was_not_accepted_is_a_leak(kind: ProviderErrorKind | None) -> None:
    """A refused removal is a leak at once only if a repetition is refused as well.

    Else it is a leak after the bound, whatever the refusal is.
    """
    bound = timedelta(minutes=30)

    def leaks_after(waited: timedelta, state: InstanceState = "terminating") -> bool:
        going = record(state, terminating_at=NOW - waited)
        return orders.is_leak(going, kind, NOW, bound)

    assert leaks_after(timedelta(seconds=2)) is (kind in ("INVALID", "UNSUPPORTED"))
    assert leaks_after(bound)
    assert not leaks_after(bound, "leaked")
