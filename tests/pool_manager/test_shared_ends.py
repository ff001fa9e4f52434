"""No node is replaced into capacity that ends at the same time."""

from datetime import timedelta
from typing import Any

import pytest

from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import CapacityEnd, PoolRecord
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.shared_ends import ENDS_MAX, observed, stays_until
from services.pool_manager.planner.sizing.ending_capacity import capacity_ends
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
END = NOW + 6 * HOUR
PLACE = "reserved in z1"


def ending(name: str, at: Any = END, **changes: Any) -> NodeRecord:
    """Return a node without a fault that its cloud takes at a time."""
    notice = CloudNotice(kind="maintenance", effect="retire", deadline=at, at=NOW, reason="ends")
    known = {"market": "reserved", "zone": "z1", "health": "degraded"}
    found = {"notices": {"n": notice}, "health_kind": "maintenance", "admitted_at": NOW - HOUR}
    return node(name, **{**known, **found, **changes})


def block(**changes: Any) -> PoolRecord:
    """Return a pool of reserved nodes of one zone."""
    return pool(2, spec=spec(market="reserved", zones=("z1",), **changes))


def known(shared: bool = True, since: Any = NOW - HOUR) -> tuple[CapacityEnd, ...]:
    """Return the end as a pool's record has it."""
    return (CapacityEnd(place=PLACE, at=END, since=since, shared=shared),)


@pytest.mark.parametrize(
    ("nodes", "before", "shared"),
    [
        ([ending("a"), ending("b")], (), [True]),
        ([ending("a"), ending("b", END + MINUTE)], (), [True]),
        ([ending("a")], (), [False]),
        ([ending("a"), node("b", market="reserved", zone="z1")], (), [False]),
        ([ending("a", market="on-demand"), ending("b", market="on-demand")], (), [False]),
        ([ending("a"), ending("b", END + HOUR)], (), [False, False]),
        ([ending("a", admitted_at=NOW - MINUTE)], known(shared=False), [True]),
        ([ending("a", admitted_at=NOW - 2 * HOUR)], known(shared=False), [False]),
        ([node("a")], known(), [True]),
        ([ending("a", health="unhealthy", health_kind="xid", health_at=NOW)], (), []),
    ],
    ids=[
        "a whole block",
        "times that are rounded",
        "one node",
        "another node stays",
        "nodes on demand",
        "several times",
        "a successor has the same end",
        "announced again",
        "it is kept until then",
        "a node with a fault",
    ],
)
def test_what_shares_an_end(
    nodes: list[NodeRecord], before: tuple[CapacityEnd, ...], shared: list[bool]
) -> None:
    """A node that was launched after an end was known, and has it, shows that the place has it."""
    found = observed(pool(2, capacity_ends=before), Nodes(nodes), NOW)
    assert [each.shared for each in found.capacity_ends] == shared


def test_ends_are_forgotten_once_they_have_passed_and_are_bounded() -> None:
    """The record grows with no number of announcements."""
    past = (CapacityEnd(place=PLACE, at=NOW, since=NOW - HOUR, shared=True),)
    assert observed(pool(2, capacity_ends=past), Nodes(), NOW).capacity_ends == ()
    many = [ending(f"n{hours}", NOW + hours * HOUR) for hours in range(1, 2 * ENDS_MAX)]
    assert len(observed(pool(2), Nodes(many), NOW).capacity_ends) == ENDS_MAX


@pytest.mark.parametrize(
    ("case", "zones", "shared", "stays"),
    [
        (ending("a"), ("z1",), True, True),
        (ending("a"), ("z1",), False, False),
        (ending("a", END + HOUR), ("z1",), True, False),
        (ending("a", zone="z2"), ("z1", "z2"), True, False),
        (ending("a", admitted_at=NOW - 2 * HOUR), ("z1", "z2"), True, False),
        (ending("a", admitted_at=NOW - MINUTE), ("z1", "z2"), True, True),
        (node("a", market="reserved", zone="z1"), ("z1",), True, False),
    ],
)
def test_who_is_not_replaced(
    case: NodeRecord, zones: tuple[str, ...], shared: bool, stays: bool
) -> None:
    """Where another zone may have room each node is replaced once, and its successor is not."""
    record = pool(2, spec=spec(market="reserved", zones=zones), capacity_ends=known(shared))
    assert (stays_until(case, record) is not None) is stays


@pytest.mark.parametrize(
    ("ahead", "kinds"), [(6 * HOUR, []), (30 * MINUTE, ["drain", "drain"])], ids=["early", "late"]
)
def test_work_is_drained_before_the_end_and_people_hear_of_it_once(
    ahead: timedelta, kinds: list[str]
) -> None:
    """A block whose nodes all end is not replaced, and not forgotten either."""
    nodes = [ending(each, NOW + ahead) for each in ("a", "b")]
    decided = plan(snapshot(block(), *nodes), NOW)
    assert sorted(each.kind for each in decided.start.values()) == kinds
    events = [each for each in decided.events if getattr(each, "condition", "") == "capacity-ends"]
    assert [each.reason.count("end with it") for each in events] == [1]
    again = plan(snapshot(decided.record, *nodes), NOW + MINUTE)
    assert not [each for each in again.events if getattr(each, "condition", "")]
    assert capacity_ends(snapshot(block()), block(), NOW) is None
