"""A node that is well, and leaves before its successor comes, waits until one could come."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.launch_offers import Market
from schemas.node_records import NodeRecord
from schemas.offering_records import OfferingView
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec, ProviderChoice
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan
from services.pool_manager.planner.remediation import launch_room, renewals
from tests.pool_manager.test_pool_planner import NOW, pool, snapshot, spec
from tests.pool_manager.test_renewals import EXPIRE, OLD, aged
from tests.support.explained import renewal_wait

HOUR = timedelta(hours=1)
FULL: dict[str, Any] = {"state": "exhausted", "kind": "CAPACITY", "probe_at": NOW}
QUOTA: dict[str, Any] = {"state": "blocked", "kind": "QUOTA", "probe_at": NOW + HOUR}
LOGIN: dict[str, Any] = {"state": "blocked", "kind": "AUTH", "probe_at": NOW + HOUR}
LEVEL = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements="unlimited")
OF_P = aged("a", OLD, launch=LaunchSpec(fleet="f", provider="p", instance_type="t"))
OF_Q = aged("a", OLD, launch=LaunchSpec(fleet="f", provider="q", instance_type="t"))


def view(type_: str = "t", /, market: Market = "on-demand", **changes: Any) -> OfferingView:
    """Return what the provisioner says of an offering."""
    found = OfferingView(provider="p", instance_type=type_, market=market)
    return msgspec.structs.replace(found, **changes)


def decided(offered: list[OfferingView] | None, **changes: Any) -> PoolPlan:
    """Return the plan of a pool with one node that is too old."""
    found = {"budget": LEVEL, "expire_after": EXPIRE, **changes}
    return plan(replace(snapshot(pool(1, spec=spec(**found)), OF_P), offered=offered), NOW)


@pytest.mark.parametrize(
    ("node", "views", "changes", "gap"),
    [
        (OF_P, [view()], {}, False),
        (OF_P, [view(**FULL)], {}, True),
        (OF_P, [view(reported_available=False)], {}, True),
        (OF_P, [view(**LOGIN)], {}, True),
        (OF_P, [], {}, True),
        (OF_P, [view(**FULL), view(zone="b")], {}, False),
        (OF_P, [view(**FULL), view(zone="b")], {"zones": ("a",)}, True),
        (OF_P, [view(**FULL), view("other")], {}, True),  # it has nodes of what it launches no more
        (OF_P, [view("x", abstract=("t",))], {}, False),
        (OF_P, [view(market="spot")], {"market": "on-demand"}, True),
        (OF_P, [view(**{**FULL, "probe_at": NOW - HOUR})], {}, False),
        (OF_P, [view(**{**FULL, "probe_at": NOW - HOUR, "probe": "other.b"})], {}, True),
        (OF_P, [view(**QUOTA)], {}, False),  # what leaves gives its part back
        (OF_P, [view(**FULL, fixed_capacity=True)], {}, False),
        (OF_P, [view(**LOGIN, fixed_capacity=True)], {}, True),
        (OF_Q, [view(**QUOTA)], {}, True),
        (OF_Q, [view(**FULL, fixed_capacity=True)], {}, True),
        (aged("a", OLD), [view(**QUOTA)], {}, False),
        (OF_P, [view(**FULL)], {"providers": (ProviderChoice(name="q"),)}, True),
        (OF_P, [view(provider="q")], {"providers": (ProviderChoice(name="q"),)}, False),
    ],
)
def test_a_gap_would_be_left_where_nothing_has_room(
    node: NodeRecord, views: list[OfferingView], changes: dict[str, Any], gap: bool
) -> None:
    """The room that the node itself makes counts, as it leaves first."""
    record = pool(1, spec=spec(**changes))
    may = launch_room.allowed(record, views)
    assert launch_room.leaves_gap(node, may, NOW) is gap


@pytest.mark.parametrize(
    ("offered", "changes", "begins"),
    [
        (None, {}, True),
        ([view()], {}, True),
        ([view(**FULL)], {}, False),
        ([], {}, False),
        ([view(**FULL)], {"replace_order": "provision_first"}, True),  # it cordons nothing before
    ],
)
def test_nothing_is_cordoned_for_a_healthy_node_while_nothing_has_room(
    offered: list[OfferingView] | None, changes: dict[str, Any], begins: bool
) -> None:
    """Such a node was drained and terminated, and its place stayed empty until there was room."""
    found = decided(offered, **changes)
    assert bool(found.start) is begins
    again = None if begins else NOW + launch_room.LOOK_AGAIN
    assert (found.record.renew_at, found.wake_at if again else None) == (again, again)


def test_the_offerings_are_asked_about_only_for_what_would_leave_first() -> None:
    """No other decision waits for the provisioner."""
    assert renewals.needs_room(decided(None))
    assert not renewals.needs_room(decided(None, replace_order="provision_first"))
    assert not renewals.needs_room(decided(None, expire_after=0))


def test_why_says_that_it_waits_for_room() -> None:
    """The line says until when, and how an operator does it at once."""
    record = decided([view(**FULL)]).record
    line = renewal_wait(OF_P, record, NOW)
    until = (NOW + launch_room.LOOK_AGAIN).astimezone()
    assert f"Not before {until:%m-%d %H:%M:%S}, as {launch_room.NO_ROOM}. At once: navarch" in line
