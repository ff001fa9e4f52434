"""Many sick nodes as one trouble: when it is one, and what is then held back."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given

from schemas.duration import Duration
from schemas.pool_events import BreakerOpened, Incident
from schemas.records import NodeRecord, OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, IncidentSpec, PoolSpec
from services.pool_manager.core import plan
from services.pool_manager.incidents import SILENCE, fell_at, name, room, until
from services.pool_manager.world import Plan, World
from tests.pool_manager.test_core import worlds

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def pool(desired: int, **incident: Any) -> PoolRecord:
    """A pool whose budget would let every node go at once."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=1000,
        budget=BudgetSpec(max_unavailable="100%"),
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
    return node(number, lost=True, lost_at=NOW + timedelta(seconds=after), provider_says=says)


def decide(record: PoolRecord, nodes: list[NodeRecord], *, after: float = 0) -> Plan:
    """What is decided `after` seconds."""
    world = World(fleet="f", record=record, nodes=tuple(nodes), revision=7)
    return plan(world, NOW + timedelta(seconds=after))


@pytest.mark.parametrize(
    ("nodes", "begun"),
    [
        ([node(i, 79) for i in range(4)], 4),
        ([node(i, 79) for i in range(5)], 1),
        ([node(i, 79 if i % 2 else 94) for i in range(8)], 8),
        ([node(i, 79, after=-20 * i) for i in range(5)], 5),
        ([node(i, 79, after=-15 * i) for i in range(5)], 1),
        ([node(i, 79, after=-2000) for i in range(9)], 9),
        ([*(node(i, 79) for i in range(6)), node(9, 48), node(10, 94)], 3),
        ([node(i, 79, health_kind="") for i in range(9)], 9),
    ],
)
def test_the_same_on_many_nodes_at_once_is_one_incident(
    nodes: list[NodeRecord], begun: int
) -> None:
    """Fewer, different, apart, or long ago: each is acted on; else one of them is."""
    fleet = [*nodes, *(node(100 + i) for i in range(20))]
    assert begun == len(decide(pool(len(fleet)), fleet).start)


def test_it_takes_a_share_of_a_large_pool() -> None:
    """Six of a thousand nodes are six faults; a hundred are one incident."""
    few = [node(i, 79 if i < 6 else 0) for i in range(1000)]
    many = [node(i, 79 if i < 100 else 0) for i in range(1000)]
    assert 6 == len(decide(pool(1000), few).start)
    assert 1 == len(decide(pool(1000), many).start)


def test_an_incident_is_told_once_and_named_by_the_breaker() -> None:
    """Opened with its nodes; the breaker says why the others wait; a second look adds nothing."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    opened, breaker = first.events
    assert isinstance(opened, Incident)
    assert isinstance(breaker, BreakerOpened)
    assert ("opened", "xid", 79, 6) == (opened.status, opened.kind, opened.code, opened.nodes)
    assert (tuple(f"n{i:03}" for i in range(6)), "f0") == (opened.named, opened.cause)
    assert "5 sick wait" in breaker.reason
    assert breaker.reason.endswith("one incident: XID 79 on 6 nodes")
    again = decide(first.record, nodes)
    assert ((), {}) == (again.events, again.start)


def test_one_after_the_other_while_it_is_open_and_as_the_budget_allows_then() -> None:
    """The next begins when the one before is done, and all when the incident is too old."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(20)]
    first = decide(pool(20), nodes)
    [saga] = first.start
    gone = msgspec.structs.replace(first.record, open={})
    second = decide(gone, nodes[1:], after=60)
    assert saga not in second.start
    assert ["n001"] == [each.node for each in second.start.values() if each.kind == "replace"]
    late = decide(first.record, nodes, after=900)
    [closed] = [each for each in late.events if isinstance(each, Incident)]
    assert ("closed", 5) == (closed.status, len(late.start))
    assert () == decide(late.record, nodes, after=901).events


def test_what_was_begun_before_counts() -> None:
    """Two were being replaced when the third and fourth came: none begins until both are done."""
    nodes = [node(i, 79 if i < 6 else 0) for i in range(20)]
    two = {
        f"replace-n00{i}-1": OpenSaga(kind="replace", node=f"n00{i}", sickness="xid-79", since=NOW)
        for i in range(2)
    }
    record = msgspec.structs.replace(pool(20), open=two)
    leaving = [msgspec.structs.replace(each, state="leaving") for each in nodes[:2]]
    decided = decide(record, [*leaving, *nodes[2:]])
    assert [] == [each for each in decided.start.values() if each.kind == "replace"]


def test_an_incident_without_nodes_is_closed() -> None:
    """All were uncordoned or replaced: the event says so, and the record forgets it."""
    first = decide(pool(20), [node(i, 79 if i < 6 else 0) for i in range(20)])
    record = msgspec.structs.replace(first.record, open={})
    well = decide(record, [node(i) for i in range(20)], after=60)
    [closed] = [each for each in well.events if isinstance(each, Incident)]
    assert ("closed", "no node has it any more") == (closed.status, closed.reason)
    assert {} == well.record.incidents


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
        map(name, ("xid-79", SILENCE, "fallen_off_bus"))
    )


# --- properties ----------------------------------------------------------------------------------


@given(worlds())
def test_of_an_open_incident_one_node_at_most_is_in_replacement(given_world: World) -> None:
    """No decision makes it two, and of silent nodes none while it is fresh."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    decided = plan(given_world, now)
    begun = Counter(each.sickness for each in decided.start.values() if each.kind == "replace")
    for what, incident in decided.record.incidents.items():
        before = sum(1 for each in given_world.record.open.values() if each.sickness == what)
        fresh = what == SILENCE and now < until(decided.record, incident)
        assert begun[what] <= (0 if fresh else max(0, 1 - before))


@given(worlds())
def test_what_is_in_no_incident_is_held_back_by_none(given_world: World) -> None:
    """Distinct faults are decided on as if there were no incidents at all."""
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    decided = plan(given_world, now)
    whats = {each.sickness for each in given_world.record.open.values()} | {"xid-79", ""}
    for what in whats - set(decided.record.incidents):
        assert room(decided.record, what, now) is None


@given(worlds())
def test_an_incident_always_ends(given_world: World) -> None:
    """Once the last node's illness is older than the hold, none is held back but one by one."""
    record = plan(given_world, NOW).record
    ends = [until(record, each) for each in record.incidents.values()]
    hold = timedelta(seconds=record.spec.health.incident.hold)
    ends += [fell + hold for each in given_world.nodes if (fell := fell_at(each)) is not None]
    again = plan(
        World(fleet="f", record=record, nodes=given_world.nodes, revision=8),
        max(ends, default=NOW) + MINUTE,
    )
    assert set(again.record.incidents) <= {SILENCE}
