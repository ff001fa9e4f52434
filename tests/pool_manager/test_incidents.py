"""Many sick nodes as one obstacle: when it is one, and what is then held back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given

from schemas.duration import Duration
from schemas.fault_signature import SILENCE, in_words
from schemas.node_records import NodeRecord
from schemas.pool_events import BreakerClosed, BreakerOpened, Incident
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.safety.fault_waves import unhealthy_since
from services.pool_manager.planner.safety.incidents import room, until
from tests.pool_manager.test_pool_planner import worlds

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def pool(desired: int, **incident: Any) -> PoolRecord:
    """A pool whose budget would let every node go at once."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=1000,
        budget=BudgetSpec(max_unavailable="100%", max_replacements="unlimited"),
        health=HealthSpec(lost_after=Duration(300), incident=IncidentSpec(**incident)),
    )
    return PoolRecord(name="training", spec=spec, desired=desired)


def node(number: int, code: int = 0, *, after: float = 0, **changes: Any) -> NodeRecord:
    """A node in service; with a code, one that fell ill of that XID `after` seconds."""
    plain = NodeRecord(pool="training", node=f"n{number:03}", state="active", health="healthy")
    if code:
        plain = msgspec.structs.replace(
            plain,
            health="unhealthy",
            health_kind="xid",
            health_code=code,
            health_at=NOW + timedelta(seconds=after),
            health_fault=f"f{number}",
        )
    return msgspec.structs.replace(plain, **changes)


def silent(number: int, *, after: float = 0, says: Any = "present") -> NodeRecord:
    """A node whose heartbeat ran out."""
    return node(number, lost=True, lost_at=NOW + timedelta(seconds=after), provider_state=says)


def decide(record: PoolRecord, nodes: list[NodeRecord], *, after: float = 0) -> PoolPlan:
    """What is decided `after` seconds."""
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7)
    return plan(snapshot, NOW + timedelta(seconds=after))


@pytest.mark.parametrize(
    ("nodes", "begun"),
    [
        ([node(i, 79) for i in range(4)], 4),
        ([node(i, 79) for i in range(5)], 0),
        ([node(i, 79 if i % 2 else 94) for i in range(8)], 8),
        ([node(i, 79, after=-20 * i) for i in range(5)], 5),
        ([node(i, 79, after=-15 * i) for i in range(5)], 0),
        ([node(i, 79, after=-2000) for i in range(9)], 9),
        ([*(node(i, 79) for i in range(6)), node(9, 48), node(10, 94)], 0),
        ([node(i, 79, health_kind="") for i in range(9)], 9),
    ],
)
def test_the_same_on_many_nodes_at_once_is_one_incident(
    nodes: list[NodeRecord], begun: int
) -> None:
    """Fewer, different, apart, or long ago: each is acted on; else the pool holds still."""
    fleet = [*nodes, *(node(100 + i) for i in range(20))]
    assert begun == len(decide(pool(len(fleet)), fleet).start)


@pytest.mark.parametrize(
    ("size", "sick", "held"),
    [(1, 1, False), (2, 2, False), (3, 2, False), (3, 3, True), (8, 4, False), (8, 5, True),
     (250, 5, True), (300, 5, False), (300, 6, True), (1000, 19, False), (1000, 20, True)],
)  # fmt: skip
def test_the_threshold_suits_pools_of_every_size(size: int, sick: int, held: bool) -> None:
    """Five nodes at least and 2% of the pool; of a small pool all of it, from three nodes on."""
    nodes = [node(i, 79 if i < sick else 0) for i in range(size)]
    assert held is bool(decide(pool(size), nodes).record.incidents)


def test_an_incident_is_told_once_and_named_by_the_breaker() -> None:
    """Opened with its nodes; the breaker says why the others wait; a second look adds nothing."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    opened, breaker = first.events
    assert isinstance(opened, Incident)
    assert isinstance(breaker, BreakerOpened)
    assert ("opened", "xid", 79, 6) == (opened.status, opened.kind, opened.code, opened.nodes)
    assert (tuple(f"n{i:03}" for i in range(6)), "f0") == (opened.named, opened.cause)
    assert "wave" == breaker.breaker_cause
    assert (
        "6 unhealthy nodes wait: one incident: 6 nodes with XID 79; none is repaired before "
        "12:15:00 UTC, unless an operator closes it"
    ) == breaker.reason
    again = decide(first.record, nodes)
    assert ((), {}) == (again.events, again.start)


def test_none_while_it_is_fresh_then_one_and_if_that_goes_well_the_others() -> None:
    """The hold passes: half-open with one repair; when that is done, two, then four at once."""
    nodes = [node(i, 79 if i < 8 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    assert {} == decide(first.record, nodes, after=899).start
    late = decide(first.record, nodes, after=900)
    [closed] = [each for each in late.events if isinstance(each, Incident)]
    [probe] = late.start
    assert "closed" == closed.status
    assert ("half-open", probe) == (late.record.breaker.state, late.record.breaker.probe)
    assert {} == decide(late.record, nodes, after=901).start
    done = close(late.record, probe, failed=False, now=NOW + MINUTE * 16)
    second = decide(done, nodes[1:], after=960)
    assert ["closed", 2, 2] == [
        second.record.breaker.state,
        second.record.breaker.ramp,
        len([each for each in second.start.values() if each.kind == "replace"]),
    ]


def test_a_wave_that_took_a_while_makes_no_second_incident_when_its_hold_has_passed() -> None:
    """Its last nodes are younger than its first: they are the same obstacle, and were told."""
    nodes = [node(i, 79, after=i * 7) if i < 8 else node(i) for i in range(20)]
    first = decide(pool(20), nodes, after=50)
    late = decide(first.record, nodes, after=900)
    later = decide(late.record, nodes, after=930)
    told = [
        each.status for one in (late, later) for each in one.events if isinstance(each, Incident)
    ]
    assert ["closed"] == told


def test_the_same_sickness_on_others_later_is_a_new_incident() -> None:
    """What had settled counts no more; five that fall ill after it do."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(40)]
    late = decide(decide(pool(40), nodes).record, nodes, after=900)
    fresh = [node(i, 79, after=1000) if 10 <= i < 15 else each for i, each in enumerate(nodes)]
    again = decide(late.record, fresh, after=1001)
    assert ["opened"] == [each.status for each in again.events if isinstance(each, Incident)]
    assert "open" == again.record.breaker.state


def test_an_incident_without_nodes_is_closed_and_the_breaker_with_it() -> None:
    """All were uncordoned or replaced: the events say so, and the record forgets it."""
    first = decide(pool(20), [node(i, 79 if i < 6 else 0) for i in range(20)])
    well = decide(first.record, [node(i) for i in range(20)], after=60)
    incident, breaker = well.events
    assert isinstance(incident, Incident)
    assert isinstance(breaker, BreakerClosed)
    assert ("closed", "no node has it any more") == (incident.status, incident.reason)
    assert ({}, "closed", 0) == (
        well.record.incidents,
        well.record.breaker.state,
        well.record.breaker.ramp,
    )


# --- one cause of different faults ---------------------------------------------------------------


def mixed(count: int, sick: int, **of_sick: Any) -> list[NodeRecord]:
    """Nodes of which the first have different fault signatures, and these things in common."""
    codes = (48, 79, 94, 95, 119, 31)
    return [
        node(i, codes[i % 6] if i < sick else 0, **(of_sick if i < sick else {}))
        for i in range(count)
    ]


def launched(provider: str) -> LaunchSpec:
    """What says a node's provider."""
    return LaunchSpec(fleet="f", provider=provider, instance_type="t")


@pytest.mark.parametrize(
    ("scope", "within", "of_sick", "of_well"),
    [
        ("rack", "r7", {"rack": "r7"}, {"rack": "r8"}),
        ("zone", "z1", {"zone": "z1"}, {"zone": "z2"}),
        ("driver", "570.1", {"driver_version": "570.1"}, {"driver_version": "550.2"}),
        ("provider", "p1", {"launch": launched("p1")}, {"launch": launched("p2")}),
    ],
)
def test_what_the_sick_share_and_the_well_do_not_is_one_cause(
    scope: str, within: str, of_sick: Any, of_well: Any
) -> None:
    """Six different faults, all in one rack: the rack is the obstacle, and the pool holds still."""
    nodes = mixed(60, 8, **of_sick)
    nodes = [msgspec.structs.replace(each, **of_well) if i >= 20 else
             msgspec.structs.replace(each, **of_sick) for i, each in enumerate(nodes)]  # fmt: skip
    decided = decide(pool(60), nodes)
    [(what, incident)] = decided.record.incidents.items()
    assert (f"{scope}-{within}", scope, within, 8) == (
        what, incident.scope, incident.within, incident.nodes,
    )  # fmt: skip
    assert ({}, "wave") == (decided.start, decided.record.breaker.cause)


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param(mixed(60, 8), id="nothing known"),
        pytest.param(
            [msgspec.structs.replace(each, rack="r1") for each in mixed(60, 8)], id="all the same"
        ),
        pytest.param(
            [
                msgspec.structs.replace(each, rack=f"r{i % 2}")
                for i, each in enumerate(mixed(60, 8))
            ],
            id="evenly",
        ),
        pytest.param(
            [msgspec.structs.replace(each, zone="a" if i < 50 else "b")
             for i, each in enumerate(mixed(60, 8))],
            id="most have it, sick or not",
        ),
        pytest.param(
            [
                msgspec.structs.replace(each, rack=f"r{i // 4}")
                for i, each in enumerate(mixed(60, 8))
            ],
            id="four in each of two racks",
        ),
    ],
)  # fmt: skip
def test_what_does_not_set_the_sick_apart_says_nothing(nodes: list[NodeRecord]) -> None:
    """Each of the different faults is acted on."""
    assert 8 == len(decide(pool(60), nodes).start)


def test_of_two_causes_the_one_that_explains_most_is_told_and_the_narrower_of_equals() -> None:
    """Twelve in one zone, six of them in one rack: the zone; all twelve in one rack: the rack."""
    zone = [
        msgspec.structs.replace(each, zone="z" if i < 20 else "y", rack="r" if i < 6 else f"q{i}")
        for i, each in enumerate(mixed(100, 12))
    ]
    rack = [
        msgspec.structs.replace(each, rack="r" if i < 20 else "q") for i, each in enumerate(zone)
    ]
    assert ["zone-z", "rack-r"] == [
        next(iter(decide(pool(100), nodes).record.incidents)) for nodes in (zone, rack)
    ]


# --- silence -------------------------------------------------------------------------------------


def test_a_wave_of_silence_is_taken_for_the_network_first() -> None:
    """Long past `lost_after` none is touched; those that stay silent are replaced one by one."""
    nodes = [silent(i, after=i / 10) if i < 12 else node(i) for i in range(20)]
    first = decide(pool(20), nodes, after=5)
    assert ["opened"] == [each.status for each in first.events if isinstance(each, Incident)]
    waiting = decide(first.record, nodes, after=899)
    assert {} == waiting.start
    assert NOW + timedelta(seconds=900) == waiting.wake_at
    after = decide(waiting.record, nodes, after=900)
    assert 1 == len(after.start)
    assert {} == decide(after.record, nodes, after=1200).start


def test_a_node_of_a_wave_that_returns_is_never_touched() -> None:
    """When the broker is back so are they: the incident closes and nothing was begun."""
    nodes = [silent(i) for i in range(20)]
    first = decide(pool(20), nodes, after=5)
    back = decide(first.record, [node(i) for i in range(20)], after=130)
    assert ({}, {}) == (back.start, back.record.incidents)


@pytest.mark.parametrize(("size", "held"), [(2, False), (3, True), (4, True)])
def test_a_small_pool_that_falls_silent_as_a_whole_is_a_wave(size: int, held: bool) -> None:
    """Three machines do not die at once either; one or two may."""
    nodes = [silent(i) for i in range(size)]
    record = decide(pool(size), nodes, after=1).record
    assert held is (not decide(record, nodes, after=400).start)


@pytest.mark.parametrize(("says", "seconds"), [("gone", 0), ("present", 300), ("", 900)])
def test_a_single_silent_node_is_verified_with_the_provider(says: str, seconds: float) -> None:
    """Gone: at once. Present: as configured. Unknown: waited for longer."""
    nodes = [silent(0, says=says), *(node(i) for i in range(1, 20))]
    if seconds:
        assert {} == decide(pool(20), nodes, after=seconds - 1).start
    assert 1 == len(decide(pool(20), nodes, after=seconds).start)


def test_instances_that_are_gone_are_no_riddle() -> None:
    """A wave of reclaimed machines, confirmed by the provider, is replaced without delay."""
    nodes = [silent(i, says="gone") for i in range(10)] + [node(10 + i) for i in range(10)]
    assert 10 == len(decide(pool(20), nodes, after=1).start)


def test_an_incident_can_be_switched_off() -> None:
    """`hold: 0s`: the budget alone decides, for fleets that lift it."""
    nodes = [node(i, 79) for i in range(20)]
    assert 20 == len(decide(pool(20, hold=Duration(0)), nodes).start)


def test_a_sickness_is_told_in_words() -> None:
    """As people know it."""
    assert ["XID 79", "silence", "fallen off bus"] == list(
        map(in_words, ("xid-79", SILENCE, "fallen_off_bus"))
    )


# --- properties ----------------------------------------------------------------------------------


@given(worlds())
def test_of_silent_nodes_one_at_most_is_in_replacement(given_world: PoolSnapshot) -> None:
    """While their incident is open no decision makes it two, and none while it is fresh."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    decided = plan(given_world, now)
    begun = sum(1 for each in decided.start.values() if each.fault_signature == SILENCE)
    incident = decided.record.incidents.get(SILENCE)
    if incident is not None:
        before = sum(
            1 for each in given_world.record.open.values() if each.fault_signature == SILENCE
        )
        fresh = now < until(decided.record, incident)
        assert begun <= (0 if fresh else max(0, 1 - before))


@given(worlds())
def test_what_is_in_no_incident_is_held_back_by_none(given_world: PoolSnapshot) -> None:
    """Distinct faults are decided on as if there were no incidents at all."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    decided = plan(given_world, now)
    whats = {each.fault_signature for each in given_world.record.open.values()} | {"xid-79", ""}
    for what in whats - set(decided.record.incidents):
        assert room(decided.record, what, now) is None


@given(worlds())
def test_an_incident_always_ends(given_world: PoolSnapshot) -> None:
    """Once the last node's illness is older than the hold, none is held back but one by one."""
    record = plan(given_world, NOW).record
    ends = [until(record, each) for each in record.incidents.values()]
    hold = timedelta(seconds=record.spec.health.incident.hold)
    ends += [
        fell + hold for each in given_world.nodes if (fell := unhealthy_since(each)) is not None
    ]
    again = plan(
        PoolSnapshot(fleet="f", record=record, nodes=given_world.nodes, revision=8),
        max(ends, default=NOW) + MINUTE,
    )
    assert set(again.record.incidents) <= {SILENCE}
