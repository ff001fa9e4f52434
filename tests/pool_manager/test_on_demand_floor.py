"""A pool keeps as many nodes on demand or reserved as it requires; spot takes no such place."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.node_records import NodeRecord
from schemas.pool_events import OnDemandShort
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import PlacementSpec, PoolSpec, ProviderChoice
from services.pool_manager.planner.explanation.pool_explanation import present_answer
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import close, plan
from services.pool_manager.planner.pool_snapshot import PoolPlan
from services.pool_manager.planner.sizing import on_demand_floor
from services.pool_manager.queries import pool_view
from services.pool_manager.reconciler import saga_params
from services.settings.pool_validation import own_problems
from services.settings.provider_choices import choice_of
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

MIXED: dict[str, Any] = {"market": "spot", "on_demand_min": 2}


def dear(name: str, **changes: Any) -> NodeRecord:
    """Return a node on demand."""
    return node(name, market="on-demand", **changes)


def spot(name: str, **changes: Any) -> NodeRecord:
    """Return a spot node."""
    return node(name, market="spot", **changes)


def mixed(desired: int, least: int | str = 2, **changes: Any) -> PoolRecord:
    """A pool of so many nodes, some of which must not be spot."""
    return pool(desired, spec=spec(**{**MIXED, "on_demand_min": least, **changes}))


def launched(found: PoolPlan) -> list[bool]:
    """Return for each node that is launched whether it must not be spot."""
    return [each.not_spot for each in found.start.values() if each.new_node]


@pytest.mark.parametrize(
    ("nodes", "desired", "least", "expected"),
    [
        ([], 4, 2, [True, True, False, False]),
        ([], 4, "30%", [True, True, False, False]),
        ([], 4, "100%", [True] * 4),
        ([], 4, 0, [False] * 4),
        ([], 1, 2, [True]),
        ([dear("a")], 3, 2, [True, False]),
        ([dear("a"), dear("b")], 4, 2, [False, False]),
        ([dear("a"), node("b", market="reserved")], 3, 2, [False]),
        ([spot("a"), spot("b")], 3, 2, [True]),
        ([node("a"), node("b")], 3, 2, [True]),
    ],
)
def test_the_first_launches_are_those_that_are_missing(
    nodes: list[NodeRecord], desired: int, least: int | str, expected: list[bool]
) -> None:
    """A percentage is rounded up; a node whose market is unknown counts as spot."""
    found = plan(snapshot(mixed(desired, least), *nodes), NOW)
    assert launched(found) == expected
    assert all(found.record.open[saga] == each for saga, each in found.start.items())


BAD: dict[str, Any] = {"health": "unhealthy", "health_at": NOW, "health_kind": "xid"}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([dear("a", **BAD), dear("b"), spot("c")], [True]),
        ([dear("a"), dear("b"), spot("c", **BAD)], [False]),
        ([dear("a", **BAD), dear("b"), dear("c")], [False]),
        ([dear("a"), spot("b", **BAD), spot("c")], [True]),
    ],
)
def test_a_replacement_keeps_the_floor(nodes: list[NodeRecord], expected: list[bool]) -> None:
    """The successor is what is missing without the node that leaves."""
    found = plan(snapshot(mixed(len(nodes)), *nodes), NOW)
    assert launched(found) == expected


@pytest.mark.parametrize(
    ("nodes", "desired", "leaving"),
    [
        ([dear("a"), dear("b"), spot("c"), spot("d")], 2, ["c", "d"]),
        ([dear("a"), dear("b"), dear("c"), spot("d")], 2, ["a", "d"]),
        ([dear("a", **BAD), dear("b"), spot("c")], 2, ["c"]),
        ([dear("a"), dear("b"), spot("c", held_until=NOW.replace(year=2027))], 2, []),
        ([dear("a"), dear("b"), spot("c")], 1, ["a", "c"]),
    ],
)
def test_a_smaller_pool_keeps_the_floor(
    nodes: list[NodeRecord], desired: int, leaving: list[str]
) -> None:
    """Spot nodes leave, and of the others only what is not required; a held one is waited for."""
    found = plan(snapshot(mixed(desired), *nodes), NOW)
    left = [each.node for each in found.start.values() if each.kind == "scale-down"]
    assert sorted(left) == sorted(leaving)


def test_an_operators_replacement_keeps_it_too() -> None:
    """An operator exchanges spot nodes this way, so it holds where the pool is full too."""
    record = mixed(2)
    nodes = Nodes([spot("a"), spot("b")])
    opened = OpenSaga(kind="replace", node="a", new_node="n", since=NOW)
    asked = msgspec.structs.replace(record, open={"s": opened})
    found = on_demand_floor.with_markets(asked, nodes, ("s",))
    assert found.open["s"].not_spot


def test_such_a_launch_has_no_spot_offering() -> None:
    """Neither first nor as a fallback, and it survives a lost record."""
    found = plan(snapshot(mixed(3), spot("a"), spot("b")), NOW)
    [opened] = found.start.values()
    params = saga_params("f", found.record, opened)
    assert params.not_spot
    assert params.launch is not None
    assert params.launch.choice is not None
    assert [each.market for each in params.launch.choice.offers] == ["on-demand"]
    assert params.launch.choice.fallback_seconds == 0


@pytest.mark.parametrize(
    ("changes", "markets"),
    [
        ({"market": "spot"}, ["on-demand"]),
        ({"market": ("reserved", "spot")}, ["reserved"]),
        ({"market": ("spot", "on-demand")}, ["on-demand"]),
        ({"market": ("reserved", "spot", "on-demand")}, ["reserved", "on-demand"]),
        (
            {
                "provider": "",
                "market": "spot",
                "providers": (
                    ProviderChoice(name="x"),
                    ProviderChoice(name="y", market="reserved"),
                ),
            },
            ["on-demand", "reserved"],
        ),
    ],
)
def test_what_is_not_spot_is_what_the_pool_names(
    changes: dict[str, Any], markets: list[str]
) -> None:
    """A launch is on demand where a provider is to launch nothing but spot."""
    offers = choice_of(spec(**changes), not_spot=True).offers
    assert [each.market for each in offers] == markets


def test_operators_hear_once_of_a_floor_that_is_not_kept() -> None:
    """Operators also hear of its end: once so many serve, and not when a launch begins."""
    record = mixed(2)
    found = plan(snapshot(record, spot("a"), spot("b")), NOW)
    [event] = found.events
    assert isinstance(event, OnDemandShort)
    assert (event.status, event.nodes, event.required) == ("opened", 0, 2)
    assert "navarch replace NODE" in event.remedy
    assert plan(snapshot(found.record, spot("a"), spot("b")), NOW).events == ()
    [view] = pool_view(found.record, [spot("a"), spot("b")], NOW).warnings
    assert "0 of the 2 nodes" in view
    answer = present_answer(found.record, Nodes([spot("a"), spot("b")]), NOW)
    assert any("0 of the 2 nodes" in held.text for held in answer.blocked)

    one_left = plan(snapshot(found.record, dear("a")), NOW)
    assert (launched(one_left), one_left.events) == ([True], ())
    ended = plan(snapshot(found.record, dear("a"), dear("c")), NOW)
    [event] = ended.events
    assert isinstance(event, OnDemandShort)
    assert (event.status, ended.record.on_demand_short) == ("closed", False)


def test_a_launch_that_fails_is_published_and_tried_again_the_same_way() -> None:
    """While it waits for the next try, nothing spot is launched in its place."""
    begun = plan(snapshot(mixed(2), dear("a")), NOW)
    [(saga, opened)] = begun.start.items()
    assert (opened.not_spot, begun.events) == (True, ())
    failed = close(begun.record, saga, failed=True, now=NOW, exhausted=True)
    waits = plan(snapshot(failed, dear("a")), NOW)
    assert waits.start == {}
    assert [type(each) for each in waits.events] == [OnDemandShort]
    assert failed.retry_at is not None
    again = plan(snapshot(waits.record, dear("a")), failed.retry_at)
    assert launched(again) == [True]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (MIXED, ""),
        ({"market": ("reserved", "spot"), "on_demand_min": "50%"}, ""),
        ({"on_demand_min": 2}, "add `market: spot`"),
        ({**MIXED, "on_demand_min": "half"}, "write 2 or 20%"),
        ({**MIXED, "on_demand_min": -1}, "use 1 or more"),
        ({**MIXED, "on_demand_min": 4}, "above max_nodes 3"),
        ({**MIXED, "spares": 1}, "excludes `spares`"),
        ({**MIXED, "workload_names": "n-[1-3]"}, "excludes `workload_names`"),
        (
            {**MIXED, "placement": PlacementSpec(together="region", required=True)},
            "excludes `placement`",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(changes: dict[str, Any], problem: str) -> None:
    """The refusal has the place in the configuration, and what to write."""
    plain = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=3)
    found = list(own_problems(msgspec.structs.replace(plain, **changes)))
    assert [place for place, _ in found] == [("on_demand_min",)] * bool(problem)
    assert all(problem in text for _, text in found)


markets = st.lists(st.sampled_from(["on-demand", "reserved", "spot", ""]), max_size=12)


@given(
    there=markets,
    desired=st.integers(0, 14),
    least=st.one_of(st.integers(1, 14), st.integers(1, 100).map("{}%".format)),
    bad=st.sets(st.integers(0, 11)),
)
def test_no_decision_goes_below_the_floor(
    there: list[Any], desired: int, least: int | str, bad: set[int]
) -> None:
    """Once everything begun has ended as decided, as many as can be are not spot; none is extra."""
    nodes = [
        node(f"n{number:02}", market=market, **(BAD if number in bad else {}))
        for number, market in enumerate(there)
    ]
    record = mixed(desired, least)
    share = least if isinstance(least, int) else math.ceil(desired * int(least[:-1]) / 100 - 1e-9)
    required = min(share, desired)
    before = sum(market in ("on-demand", "reserved") for market in there)
    for _ in range(3):
        found = plan(snapshot(record, *nodes), NOW)
        record = found.record
        after = on_demand_floor.expected(record, Nodes(nodes))
        begun = sum(bool(each.new_node) for each in record.open.values())
        assert after >= min(required, before)
        assert after <= required or not any(launched(found))
        firm = sum(each.not_spot for each in record.open.values())
        assert after >= required or begun == firm
