"""Racks are units: a fault of a rack's fabric, the budget of racks, and sizes by whole racks."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.fault_signature import RACK, RACKS
from schemas.node_records import NodeRecord
from schemas.pool_events import Incident, OperatorNeeded
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import (
    BudgetSpec,
    HealthSpec,
    IncidentSpec,
    PlacementSpec,
    PluginSettings,
    PoolSpec,
    RackSpec,
)
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.node_counts import Nodes, size, unavailable
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.remediator import REPLACE, AlertOnly, Remediator
from services.pool_manager.planner.safety.breaker import closed_by_hand
from services.pool_manager.planner.safety.incidents import released
from services.pool_manager.planner.sizing import rack_size

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RACK_NODES = 4
WINDOW = 60.0
ALERT = AlertOnly(options=AlertOnly.Options())


def pool(racks: int, **changes: Any) -> PoolRecord:
    """A pool of so many racks, one of which may be out of service."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=0,
        max_nodes=1000,
        rack=RackSpec(nodes=RACK_NODES),
        placement=PlacementSpec(together="zone", required=True),
        budget=BudgetSpec(max_unavailable=1, max_replacements="unlimited", max_quarantined=0),
        health=HealthSpec(incident=IncidentSpec()),
    )
    spec = msgspec.structs.replace(spec, **changes)
    return PoolRecord(name="training", spec=spec, desired=RACK_NODES * racks)


def rack(number: int, nodes: int = RACK_NODES, **changes: Any) -> list[NodeRecord]:
    """Return the nodes of a rack, in service."""
    return [
        NodeRecord(
            pool="training",
            node=f"r{number}n{each}",
            rack=f"r{number}",
            state="active",
            health="healthy",
            **changes,
        )
        for each in range(nodes)
    ]


def failed(node: NodeRecord, after: float = 0, kind: str = "fabric", code: int = 0) -> NodeRecord:
    """A node that got a fault after so many seconds."""
    return msgspec.structs.replace(
        node,
        health="unhealthy",
        health_kind=kind,
        health_code=code,
        health_at=NOW + timedelta(seconds=after),
        health_fault=f"fault-{node.node}",
        health_reason=f"{kind} {code}",
    )


def decide(
    record: PoolRecord,
    nodes: list[NodeRecord],
    after: float = WINDOW,
    remediator: Remediator = REPLACE,
) -> PoolPlan:
    """Return the decision after `after` seconds."""
    snapshot = PoolSnapshot(
        fleet="f", record=record, nodes=Nodes(nodes), revision=7, remediator=remediator
    )
    return plan(snapshot, NOW + timedelta(seconds=after))


def replaced(decided: PoolPlan) -> set[str]:
    """The nodes that are replaced."""
    return {each.node for each in decided.start.values() if each.kind == "replace"}


@pytest.mark.parametrize(
    ("kind", "code", "after", "gone"),
    [
        ("xid", 79, 0, 1),
        ("fabric", 0, 0, 0),
        ("fabric", 0, WINDOW - 1, 0),
        ("fabric", 0, WINDOW, 1),
        ("xid", 149, WINDOW - 1, 0),
        ("xid", 74, WINDOW - 1, 0),
        ("sxid", 12028, WINDOW, 1),
        ("nvlink", 0, WINDOW, 1),
    ],
)
def test_one_bad_node_is_replaced_by_itself_once_it_is_known_to_be_alone(
    kind: str, code: int, after: float, gone: int
) -> None:
    """A GPU's fault at once, what may be the fabric's after the window in which others follow."""
    first, *others = rack(1)
    decided = decide(pool(2), [failed(first, 0, kind, code), *others, *rack(2)], after)
    assert len(replaced(decided)) == gone
    assert not decided.record.incidents
    if not gone:
        assert decided.wake_at == NOW + timedelta(seconds=WINDOW)
    else:
        (saga,) = decided.start.values()
        assert saga.new_node
        assert saga.rack == "r1"


@pytest.mark.parametrize(
    ("second", "kinds", "whole"),
    [
        (0, ("fabric", "fabric"), True),
        (WINDOW, ("fabric", "nvlink"), True),
        (WINDOW + 1, ("fabric", "fabric"), False),
        (5, ("fabric", "thermal"), False),
    ],
)
def test_two_nodes_with_faults_of_the_fabric_make_it_the_racks(
    second: float, kinds: tuple[str, str], whole: bool
) -> None:
    """The codes do not matter within the window; after it, or of another kind, it is the nodes'."""
    one, two, *others = rack(1)
    nodes = [failed(one, 0, kinds[0]), failed(two, second, kinds[1]), *others, *rack(2)]
    # A record that has seen both before the first is decided on.
    seen = decide(pool(2), nodes, WINDOW - 1)
    assert ("fabric-r1" in seen.record.incidents) is whole
    decided = decide(seen.record, nodes, WINDOW)
    assert replaced(decided) == ({each.node for each in rack(1)} if whole else {"r1n0"})


@pytest.mark.parametrize(("grave", "whole"), [(0, False), (1, True)])
def test_policy_says_whether_a_fault_of_the_fabric_is_grave(grave: int, whole: bool) -> None:
    """A node that it makes degraded shows whose fault it is; only an unhealthy one is a reason."""
    nodes = [failed(each) for each in rack(1)]
    mild = [msgspec.structs.replace(each, health="degraded") for each in nodes[grave:]]
    nodes = [*nodes[:grave], *mild, *rack(2)]
    record = decide(pool(2), nodes, 5).record
    assert bool(record.incidents) is whole
    assert replaced(decide(record, nodes)) == ({each.node for each in rack(1)} if whole else set())


def test_rack_is_one_incident_one_decision_and_one_unit_of_the_budget() -> None:
    """All its nodes leave together, nothing is launched for them, and nothing is held back."""
    nodes = [failed(each, number) for number, each in enumerate(rack(1)[:3])]
    nodes += [*rack(1)[3:], *rack(2), *rack(3)]
    first = decide(pool(3), nodes, 2)
    (event,) = [each for each in first.events if isinstance(each, Incident)]
    assert (event.scope, event.within, event.status, event.nodes) == ("rack", "r1", "opened", 3)
    assert "replaced as a whole" in event.reason
    assert not first.start
    assert first.record.breaker.state == "closed"
    decided = decide(first.record, nodes)
    sagas = decided.start.values()
    assert {each.node for each in sagas} == {each.node for each in rack(1)}
    assert {each.kind for each in sagas} == {"replace"}
    assert {(each.new_node, each.rack, each.fault_signature) for each in sagas} == {
        ("", "r1", RACK)
    }
    assert {each.fault for each in sagas} == {"fault-r1n0"}
    assert sum(each.counted for each in decided.record.open.values()) == 1
    left = allowance(decided.record, Nodes(nodes), None, NOW)
    assert (left.unavailable, left.level, left.disruptions) == (1, 1, 1)
    assert decided.record.serial == 0
    # Their alerts end with their termination, as no `node-replaced` follows: see alert_rules.
    assert set(decided.start) == {f"rack-{each.node}-1" for each in rack(1)}
    assert not decide(decided.record, nodes, WINDOW + 5).start


def test_second_rack_waits_until_another_is_in_service_in_place_of_the_first() -> None:
    """The second waits also once the first has gone, and while its successor is launched."""
    broken = [failed(each, 0) for each in rack(1)] + [failed(each, 1) for each in rack(2)]
    nodes = [*broken, *rack(3), *rack(4), *rack(5)]
    record = decide(pool(5), nodes).record
    assert {each.rack for each in record.open.values()} == {"r1"}
    record = decide(record, nodes, WINDOW + 1).record
    assert {each.rack for each in record.open.values()} == {"r1"}
    assert record.breaker.cause == "level"
    assert "1 of 5 racks" in record.breaker.reason
    # Its nodes have gone one after the other: nothing is launched before the last.
    nodes = nodes[RACK_NODES:]
    last = dict(list(record.open.items())[-1:])
    partly = msgspec.structs.replace(record, open=last)
    left = [each for each in rack(1) if each.node in {saga.node for saga in last.values()}]
    assert not decide(partly, [*left, *nodes]).start
    assert unavailable(partly, Nodes([*left, *nodes])) == 1
    gone = decide(msgspec.structs.replace(record, open={}), nodes)
    launched = list(gone.start.values())
    assert [each.kind for each in launched] == ["scale-up"] * RACK_NODES
    assert {each.gang_size for each in launched} == {RACK_NODES}
    assert len({each.gang for each in launched}) == 1
    assert unavailable(gone.record, Nodes(nodes)) == 1
    assert not decide(gone.record, nodes).start
    nodes = [*rack(6), *nodes]
    there = decide(msgspec.structs.replace(gone.record, open={}), nodes, WINDOW + 1)
    assert {each.rack for each in there.start.values()} == {"r2"}
    assert there.record.replaced_racks.keys() == {"r2"}


@pytest.mark.parametrize(("racks", "broken", "wave"), [(10, 4, False), (10, 5, True), (3, 3, True)])
def test_faults_of_many_racks_at_once_are_a_wave(racks: int, broken: int, wave: bool) -> None:
    """One node of each is enough; the first is not acted on before the last is seen."""
    nodes: list[NodeRecord] = []
    for number in range(racks):
        first, *others = rack(number)
        nodes += [failed(first, number * 10) if number < broken else first, *others]
    early = decide(pool(racks), nodes, (broken - 1) * 10)
    assert not early.start
    decided = decide(early.record, nodes, WINDOW + 50)
    assert bool(replaced(decided)) is not wave
    assert (RACKS in decided.record.incidents) is wave
    if wave:
        assert decided.record.breaker.cause == "wave"
        assert f"{broken} nodes with fabric faults" in decided.record.breaker.reason
        shut = closed_by_hand(decided.record.breaker, "real", "o", "r", NOW)
        after = released(msgspec.structs.replace(decided.record, breaker=shut))
        assert len(replaced(decide(after, nodes, WINDOW + 60))) == 1


def test_wave_of_whole_racks_is_acted_on_rack_by_rack_once_released() -> None:
    """An operator has closed the breaker: one rack at a time, as a whole."""
    nodes = [failed(each, number) for number in range(5) for each in rack(number)]
    record = decide(pool(5), nodes, 10).record
    assert record.breaker.cause == "wave"
    assert not decide(record, nodes).start
    shut = closed_by_hand(record.breaker, "real", "o", "r", NOW)
    after = released(msgspec.structs.replace(record, breaker=shut))
    assert replaced(decide(after, nodes, WINDOW + 10)) == {each.node for each in rack(0)}


@pytest.mark.parametrize(
    "changes",
    [
        {"held_until": NOW + timedelta(hours=1), "held_by": "o", "held_reason": "x"},
        {"saga": "drain"},
    ],
)
def test_rack_waits_while_one_of_its_nodes_may_not_leave(changes: dict[str, Any]) -> None:
    """An operator holds it, or a saga that keeps it has not ended: the rack is not taken apart."""
    nodes = [failed(each) for each in rack(1)[:3]]
    last = msgspec.structs.replace(rack(1)[3], **changes)
    record = pool(2)
    if last.saga:
        opened = OpenSaga(kind="drain", node=last.node, since=NOW, cause="r", rack="r1")
        record = msgspec.structs.replace(record, open={"drain": opened})
    decided = decide(decide(record, [*nodes, last, *rack(2)], 5).record, [*nodes, last, *rack(2)])
    assert not decided.start


def test_what_has_more_nodes_than_a_rack_is_none() -> None:
    """Clouds call partitions and fault domains racks: their nodes are units by themselves."""
    nodes = [failed(each) for each in rack(1, 2 * RACK_NODES)]
    record = pool(2, budget=BudgetSpec(max_unavailable=1, max_replacements="unlimited"))
    decided = decide(decide(record, nodes, 5).record, nodes)
    assert "fabric-r1" not in decided.record.incidents
    assert len(replaced(decided)) <= 1
    assert unavailable(decided.record, Nodes(nodes)) == len(replaced(decided))


def test_what_operators_keep_for_themselves_stays_theirs() -> None:
    """remediation: alert: one event for the rack."""
    record = pool(2, health=HealthSpec(remediation=PluginSettings(type="alert")))
    nodes = [*(failed(each) for each in rack(1)), *rack(2)]
    decided = decide(decide(record, nodes, 5, ALERT).record, nodes, WINDOW, ALERT)
    assert not decided.start
    assert sum(isinstance(each, OperatorNeeded) for each in decided.events) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "xid", "code": 79},
        {"kind": "fabric"},
    ],
)
def test_rack_is_replaced_for_one_node_where_the_provider_gives_none_back(
    changes: dict[str, Any],
) -> None:
    """The setting `rack.replace` is `rack`, so the whole rack leaves for one faulty node."""
    record = pool(2, rack=RackSpec(nodes=RACK_NODES, replace="rack"))
    first, *others = rack(1)
    decided = decide(record, [failed(first, **changes), *others, *rack(2)])
    assert replaced(decided) == {each.node for each in rack(1)}
    assert unavailable(decided.record, Nodes(rack(2))) == 1


@pytest.mark.parametrize("lost", [False, True])
def test_a_later_fault_of_another_kind_leaves_the_fault_the_racks(lost: bool) -> None:
    """A node has one verdict: its incident is about what the rack had before."""
    one, two, *others = rack(1)
    seen = decide(pool(2), [failed(one), failed(two), *others, *rack(2)], 5).record
    silent = msgspec.structs.replace(failed(two, 6, "xid", 79), lost=lost, lost_at=NOW)
    nodes = [failed(one, 6, "xid", 79), silent, *others, *rack(2)]
    waits = decide(seen, nodes, WINDOW - 1)
    assert (replaced(waits), waits.wake_at) == (set(), NOW + timedelta(seconds=WINDOW))
    assert replaced(decide(waits.record, nodes)) == {each.node for each in rack(1)}


def test_incident_closes_once_no_node_of_the_rack_is_unhealthy() -> None:
    """The rack's nodes are gone, or healthy again."""
    nodes = [*(failed(each) for each in rack(1)), *rack(2)]
    record = decide(pool(2), nodes, 5).record
    decided = decide(record, [*rack(1), *rack(2)], 6)
    (event,) = [each for each in decided.events if isinstance(each, Incident)]
    assert event.status == "closed"
    assert not decided.record.incidents


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("racks", "desired", "replace", "begun"),
    [
        ([], 8, "node", ("scale-up", 4)),
        ([], 5, "node", ("scale-up", 4)),
        ([4], 8, "node", ("scale-up", 4)),
        ([3], 4, "node", ("scale-up", 1)),
        ([3], 4, "rack", ("scale-up", 4)),
        ([3, 4], 12, "node", ("scale-up", 4)),
        ([4], 1, "node", None),
        ([4, 4], 4, "node", ("scale-down", 4)),
        ([4, 4], 1, "node", ("scale-down", 4)),
        ([4, 4], 5, "node", None),
        ([4, 4], 0, "node", ("scale-down", 8)),
        ([4, 2], 4, "node", ("scale-down", 2)),
        ([2, 2, 4], 4, "node", ("scale-down", 4)),
        ([3, 3], 4, "node", ("scale-down", 2)),
    ],
)
def test_pool_grows_and_shrinks_by_whole_racks(
    racks: list[int], desired: int, replace: Any, begun: tuple[str, int] | None
) -> None:
    """Rounded up to whole racks; what is not whole is filled up, or leaves first."""
    nodes = [each for number, count in enumerate(racks) for each in rack(number, count)]
    record = msgspec.structs.replace(
        pool(0, rack=RackSpec(nodes=RACK_NODES, replace=replace)), desired=desired
    )
    kinds = Counter(each.kind for each in decide(record, nodes).start.values())
    assert kinds == (Counter({begun[0]: begun[1]}) if begun else Counter())


def test_rack_with_a_node_that_may_not_leave_stays_whole() -> None:
    """Another leaves in its place; where there is none, all stay."""
    held = {"held_until": NOW + timedelta(hours=1), "held_by": "o", "held_reason": "x"}
    first = [msgspec.structs.replace(rack(1)[0], **held), *rack(1)[1:]]
    decided = decide(pool(1), [*first, *rack(2)])
    assert {each.rack for each in decided.start.values()} == {"r2"}
    assert not decide(pool(0), first).start
    removed = msgspec.structs.replace(pool(0), removing="r")
    assert len(decide(removed, first).start) == RACK_NODES - 1  # nothing of the pool is to stay


def test_rack_stays_one_while_a_nodes_successor_is_there_before_it_has_left() -> None:
    """A notice of an interruption gives a rack one node more than it holds for a moment."""
    leaves = msgspec.structs.replace(rack(1)[0], node="earlier", state="leaving")
    nodes = [leaves, *rack(1), *rack(2)]
    successor, *others = rack(1)
    free = [*others, *rack(2)]  # the saga that replaces `earlier` has its successor
    found = rack_size.leaving(pool(0), Nodes(nodes), free, 2 * RACK_NODES)
    assert {each.rack for each in found} == {"r2"}
    assert successor.rack == "r1"


SIZES = st.lists(st.integers(1, RACK_NODES), max_size=6)


@given(SIZES, st.integers(0, 30), st.sets(st.integers(0, 23)))
def test_no_whole_rack_is_split_by_a_scale_down(
    racks: list[int], desired: int, held: set[int]
) -> None:
    """The rule holds for any racks, any size that is asked for, and any held nodes."""
    nodes = [each for number, count in enumerate(racks) for each in rack(number, count)]
    free = [each for place, each in enumerate(nodes) if place not in held]
    record = msgspec.structs.replace(pool(0), desired=desired)
    surplus = -rack_size.gap(record, Nodes(nodes))
    leaving = rack_size.leaving(record, Nodes(nodes), free, max(0, surplus))
    assert len(leaving) <= max(0, surplus)
    left = Counter(each.rack for each in nodes) - Counter(each.rack for each in leaving)
    for number, count in enumerate(racks):
        assert count < RACK_NODES or left[f"r{number}"] in (0, RACK_NODES)
    if not held and surplus > 0:
        assert leaving


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 90)), max_size=12),
    st.integers(1, 2),
    st.sampled_from(["node", "rack"]),
)
def test_no_rack_is_acted_on_beyond_the_level(
    faults: list[tuple[int, int, int]], level: int, replace: Any
) -> None:
    """Decisions every ten seconds: sagas end in the next; a launched rack is in service then."""
    record = pool(
        4,
        rack=RackSpec(nodes=RACK_NODES, replace=replace),
        budget=BudgetSpec(max_unavailable=level, max_replacements="unlimited", max_quarantined=0),
    )
    nodes = {each.node: each for number in range(4) for each in rack(number)}
    due = {f"r{one}n{two}": at for one, two, at in faults}
    made = 10
    for moment in range(0, 400, 10):
        for name, at in due.items():
            if at <= moment and name in nodes and nodes[name].health == "healthy":
                nodes[name] = failed(nodes[name], at)
        record = _with_ended(record, nodes, made)
        made += 1
        decided = decide(record, list(nodes.values()), moment)
        record = decided.record
        out = {each.rack for each in record.open.values() if each.kind == "replace"}
        assert len(out) <= level
        assert unavailable(record, Nodes(nodes.values())) <= max(level, len(out))
        whole = Counter(e.rack for e in record.open.values() if e.fault_signature == RACK)
        for name, count in whole.items():
            assert count == sum(each.rack == name for each in nodes.values())
    assert size(record, Nodes(nodes.values())) == 4 * RACK_NODES


def _with_ended(record: PoolRecord, nodes: dict[str, NodeRecord], made: int) -> PoolRecord:
    """The record when all open sagas have ended well, and what they have done to the nodes."""
    for each in record.open.values():
        nodes.pop(each.node, None)
        if each.new_node:
            rack_name = each.rack or f"r{made}"
            nodes[each.new_node] = msgspec.structs.replace(
                rack(0)[0], node=each.new_node, rack=rack_name
            )
    return msgspec.structs.replace(record, open={})
