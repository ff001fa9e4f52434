"""Nodes that cost much more than what is offered now are replaced by cheaper ones, at leisure."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.duration import Duration
from schemas.fault_signature import CONSOLIDATED
from schemas.launch_offers import Market, Offering
from schemas.lifecycle_settings import ConsolidationSpec
from schemas.node_records import GpuUse, NodeRecord
from schemas.offering_records import OfferingUse, OfferingView
from schemas.pool_records import DearNode, PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, PlacementSpec, PoolSpec, WindowSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import RENEW_AGAIN_SECONDS, close, plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolPlan
from services.pool_manager.planner.remediation import consolidation
from services.pool_manager.queries import pool_view
from services.pool_manager.reconciler import saga_params
from services.provisioner.offerings.offering_blocks import Free
from services.provisioner.offerings.offering_catalogue import Candidate
from services.provisioner.offerings.offering_choice import (
    RefuseLaunch,
    ScoredCandidate,
    TakeOffering,
    choose,
    saving_limits,
)
from services.settings.pool_validation import own_problems
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec
from tests.support.explained import renewal_wait

DAY = timedelta(days=1)
SAVES = ConsolidationSpec(min_saving=20, min_age=Duration(4 * 3600))
IDLE = GpuUse(busy=False, since=NOW - DAY)
BUSY = GpuUse(busy=True, since=NOW - DAY)
FROZEN = WindowSpec(name="week", kind="freeze", start="0 12 * * *", duration=Duration(3600))
SERVICE = WindowSpec(name="now", kind="service", start="0 12 * * *", duration=Duration(3600))
TONIGHT = WindowSpec(name="night", kind="service", start="0 22 * * *", duration=Duration(3600))
LEVEL = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements="unlimited")


def offering(zone: str, market: Market = "on-demand") -> Offering:
    """Return an offering in a zone."""
    return Offering(provider="p", zone=zone, instance_type="t", market=market)


def offered(
    zone: str, dollars: float | None, market: Market = "on-demand", **changes: Any
) -> OfferingView:
    """Return the provisioner's view of an offering."""
    view = OfferingView(
        provider="p",
        zone=zone,
        instance_type="t",
        market=market,
        dollars_per_hour=dollars,
        used_by=(OfferingUse(pool="training"),),
    )
    return msgspec.structs.replace(view, **changes)


def old(name: str, **changes: Any) -> NodeRecord:
    """A node on demand that has been in service for a day."""
    return node(name, **{"admitted_at": NOW - DAY, "market": "on-demand", **changes})


def saving(desired: int, **changes: Any) -> PoolRecord:
    """A pool whose nodes are to be cheap."""
    return pool(desired, spec=spec(**{"consolidation": SAVES, "budget": LEVEL, **changes}))


def bought(zone: str, dollars: float, market: Market = "on-demand") -> NodeUse:
    """Return the use of a node that was launched from this offering."""
    return NodeUse(dollars_per_hour=dollars, offering=offering(zone, market))


DEAR = bought("a", 10.0)


@pytest.mark.parametrize(
    ("case", "views", "changes", "cheaper"),
    [
        (old("n"), [offered("b", 8.0)], {}, 8.0),
        (old("n"), [offered("b", 8.1)], {}, None),
        (old("n"), [offered("b", 8.0), offered("c", 5.0)], {}, 5.0),
        (old("n"), [offered("b", None)], {}, None),
        (old("n"), [], {}, None),
        (old("n"), [offered("b", 8.0, state="exhausted", probe_at=NOW)], {}, None),
        (old("n"), [offered("b", 8.0, state="exhausted", probe_at=NOW - DAY)], {}, 8.0),
        (old("n"), [offered("b", 8.0, state="exhausted", probe_at=NOW - DAY, probe="x")], {}, None),
        (old("n"), [offered("b", 8.0, state="blocked", probe_at=NOW - DAY)], {}, None),
        (old("n"), [offered("b", 8.0, reported_available=False)], {}, None),
        (old("n"), [offered("b", 8.0, used_by=())], {}, None),
        (old("n"), [offered("b", 8.0), offered("a", 9.0)], {}, None),
        (old("n"), [offered("b", 8.0), offered("a", 20.0)], {}, 8.0),
        (old("n"), [offered("b", 1.0, "reserved")], {}, None),
        (old("n", market="reserved"), [offered("b", 1.0)], {}, None),
        (old("n", admitted_at=NOW - timedelta(hours=3)), [offered("b", 1.0)], {}, None),
        (old("n", spare=True), [offered("b", 1.0)], {}, None),
        (old("n", state="leaving"), [offered("b", 1.0)], {}, None),
        (old("n"), [offered("b", 1.0, "spot")], {"market": "on-demand"}, None),
        (old("n"), [offered("b", 1.0, "spot")], {"market": ("on-demand", "spot")}, 1.0),
        (old("n"), [offered("b", 1.0, "spot")], {"market": "spot"}, 1.0),
        (old("n"), [offered("b", 1.0, "spot")], {"market": "spot", "on_demand_min": 1}, None),
        (
            old("n"),
            [offered("b", 1.0, "spot", interrupted_at=NOW - timedelta(minutes=9))],
            {"market": "spot", "interruption_penalty": Duration(600)},
            None,
        ),
    ],
)
def test_a_node_is_dear_where_something_free_saves_enough(
    case: NodeRecord, views: list[OfferingView], changes: dict[str, Any], cheaper: float | None
) -> None:
    """Current prices count; a reserved, young or required node is not compared, or with less."""
    record = saving(1, **changes)
    found = consolidation.dear_nodes(record, Nodes([case]), {"n": DEAR}, views, NOW)
    assert (found["n"].cheaper if "n" in found else None) == cheaper


def known(record: PoolRecord, *names: str, minutes_ago: float = 1) -> PoolRecord:
    """The record after a look at prices: these nodes are dear."""
    at = NOW - timedelta(minutes=minutes_ago)
    dear = DearNode(dollars_per_hour=10.0, cheaper=5.0, offering="p b t", since=at, at=at)
    return msgspec.structs.replace(record, dear=dict.fromkeys(names, dear))


def decided(record: PoolRecord, *nodes: NodeRecord, use: GpuUse | None = IDLE) -> PoolPlan:
    """The plan where the nodes' GPUs are used so."""
    used = {each.node: NodeUse(gpus=use, work="none") for each in nodes}
    return plan(replace(snapshot(record, *nodes), use=used), NOW)


@pytest.mark.parametrize(
    ("changes", "use", "minutes_ago", "leaves"),
    [
        ({}, IDLE, 1, True),
        ({}, BUSY, 1, False),
        ({}, None, 1, False),
        ({}, IDLE, 16, False),
        ({"windows": (SERVICE,)}, BUSY, 1, True),
        ({"windows": (TONIGHT,)}, IDLE, 1, False),
        ({"windows": (FROZEN,)}, IDLE, 1, False),
        ({"consolidation": ConsolidationSpec()}, IDLE, 1, False),
    ],
)
def test_it_leaves_like_an_old_node(
    changes: dict[str, Any], use: GpuUse | None, minutes_ago: float, leaves: bool
) -> None:
    """A node leaves without work or in a window, never at last; prices are minutes old."""
    record = known(saving(2, **changes), "n", minutes_ago=minutes_ago)
    found = decided(record, old("n"), old("m"), use=use)
    assert [each.node for each in found.start.values()] == ["n"] * leaves


def test_its_successor_comes_first_and_saves_enough() -> None:
    """The saving holds whatever is chosen at the launch; it does not fall back to on-demand."""
    record = known(saving(1, market="spot"), "n")
    found = decided(record, old("n"))
    [opened] = found.start.values()
    assert (opened.order, opened.max_dollars) == ("provision_first", 8.0)
    assert (opened.fault_signature, opened.restores_service) == (CONSOLIDATED, True)
    assert opened.reason == "dear: $10 an hour, and p b t costs $5"
    launch = saga_params("f", found.record, opened).launch
    assert launch is not None
    assert launch.choice is not None
    assert (launch.choice.max_dollars, launch.choice.fallback_seconds) == (8.0, 0.0)
    assert [each.max_price for each in launch.choice.offers] == [0.0]
    failed = close(found.record, next(iter(found.start)), failed=True, now=NOW)
    assert failed.renew_at == NOW + timedelta(seconds=RENEW_AGAIN_SECONDS)


def test_a_launch_refuses_what_saves_too_little() -> None:
    """Prices may have risen since the decision: then the old node stays."""
    choice = msgspec.structs.replace(choice_of_spec(), max_dollars=8.0)
    dear, cheap = candidate("a", 9.0, 0), candidate("b", 8.0, 1)
    limits = saving_limits(choice)
    both = [dear.candidate, cheap.candidate]
    found = choose([dear, cheap], limits, None, both, NOW)
    assert found == TakeOffering(cheap)
    refused = choose([dear], limits, None, both, NOW)
    assert isinstance(refused, RefuseLaunch)
    assert "at which it would save enough" in refused.reason
    assert saving_limits(choice_of_spec()) == ()


def test_the_budget_and_why_are_those_of_renewals() -> None:
    """Half of the level; status counts them, and why names both prices."""
    names = [f"n{number}" for number in range(6)]
    record = known(saving(6, budget=msgspec.structs.replace(LEVEL, max_unavailable=4)), *names)
    nodes = [old(name) for name in names]
    assert len(decided(record, *nodes).start) == 2
    assert pool_view(record, nodes, NOW).to_renew == 6
    line = renewal_wait(nodes[0], record, NOW)
    assert "dear: $10 an hour, and p b t costs $5" in line
    assert line.endswith("at once: navarch replace n0")


def test_only_so_many_nodes_are_named() -> None:
    """The nodes that save most are named, and the pool's record stays small."""
    nodes = [old(f"n{number:03}") for number in range(200)]
    use = {each.node: bought("a", 10.0 + number) for number, each in enumerate(nodes)}
    found = consolidation.dear_nodes(saving(200), Nodes(nodes), use, [offered("b", 5.0)], NOW)
    assert sorted(found) == [f"n{number:03}" for number in range(150, 200)]


@pytest.mark.parametrize(
    ("changes", "place", "problem"),
    [
        ({}, "", ""),
        (
            {"consolidation": ConsolidationSpec(min_saving=20, min_age=Duration(60))},
            "min_age",
            "raise it",
        ),
        ({"health": HealthSpec(auto_replace=False)}, "", "auto_replace"),
        ({"spares": 1}, "", "excludes `spares`"),
        ({"workload_names": "n-[1-3]"}, "", "excludes `workload_names`"),
        (
            {"placement": PlacementSpec(together="region", required=True)},
            "",
            "excludes `placement`",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], place: str, problem: str) -> None:
    """The refusal has the place in the configuration."""
    plain = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=3, consolidation=SAVES)
    found = list(own_problems(msgspec.structs.replace(plain, **changes)))
    key = ("consolidation", place) if place else ("consolidation",)
    assert [each for each, _ in found] == [key] * bool(problem)
    assert all(problem in text for _, text in found)


prices = st.lists(st.floats(0.5, 100), min_size=2, max_size=6)


@given(prices=prices, saving_percent=st.integers(1, 90), first=st.integers(0, 5))
def test_nothing_is_replaced_for_ever(prices: list[float], saving_percent: int, first: int) -> None:
    """Where prices stay, each step is cheaper by so much, and soon there is none."""
    views = [offered(f"z{number}", each) for number, each in enumerate(prices)]
    rule = ConsolidationSpec(min_saving=saving_percent, min_age=Duration(0))
    record, at = saving(1, consolidation=rule), first % len(prices)
    steps = 0
    while True:
        use = {"n": bought(f"z{at}", prices[at])}
        found = consolidation.dear_nodes(record, Nodes([old("n")]), use, views, NOW)
        if "n" not in found:
            break
        limit = consolidation.limit(found["n"].dollars_per_hour, record)
        able = [number for number, each in enumerate(prices) if each <= limit]
        assert able
        assert limit <= prices[at] * (1 - saving_percent / 100) + 1e-9
        at = max(able, key=lambda number: prices[number])  # the dearest that the launch may take
        steps += 1
        assert steps <= len(prices)
    assert all(each > prices[at] * (1 - saving_percent / 100) for each in prices)


def candidate(zone: str, dollars: float, position: int) -> ScoredCandidate:
    """Return a free offering."""
    made = Candidate(offering=offering(zone), position=position)
    return ScoredCandidate(candidate=made, score=0.0, near=0, block_state=Free(), price=dollars)


def choice_of_spec() -> Any:
    """Return what a launch of such a pool chooses from."""
    launch = saga_params("f", *_one_launch()).launch
    assert launch is not None
    assert launch.choice is not None
    return launch.choice


def _one_launch() -> Any:
    found = plan(snapshot(saving(1)), NOW)
    return found.record, next(iter(found.start.values()))
