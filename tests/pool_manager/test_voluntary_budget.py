"""Nodes without a fault leave within a budget of their own, for which no fault waits."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from schemas.duration import Duration
from schemas.fault_signature import EXPIRED
from schemas.fleet_budget import BudgetClaim, FleetBudgetRecord
from schemas.node_records import CloudNotice, NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import BudgetSpec, FleetBudgetSpec, HealthSpec, IncidentSpec
from services.pool_manager.planner.disruption_budget import (
    allowance,
    noted,
    others,
    room_at,
    voluntary_rate,
    with_counted,
    without_counted,
)
from services.pool_manager.planner.gates import pool_gates
from services.pool_manager.planner.gates.proposal import Proposal
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.safety.budget_claims import claim_of
from tests.pool_manager.test_pool_planner import NOW, node, pool, snapshot, spec

SIZE = 10
WINDOW = 3600.0
BUDGET = BudgetSpec(max_quarantined=0, max_unavailable=2, max_replacements=4)
CALM = HealthSpec(incident=IncidentSpec(stage=Duration(0), hold=Duration(0)))
FULL = noted({}, WINDOW, NOW, 4)
RETIRED = CloudNotice(
    at=NOW, effect="retire", kind="maintenance", deadline=NOW + timedelta(hours=30)
)


def removed(name: str, what: str) -> OpenSaga:
    """Return an open replacement of a node that a budget counts."""
    opened = OpenSaga(kind="replace", node=name, new_node=f"{name}-new", since=NOW, counted=True)
    if what == "renewal":
        return msgspec.structs.replace(opened, fault_signature=EXPIRED)
    if what == "notice":
        return msgspec.structs.replace(opened, notice="n-1")
    return msgspec.structs.replace(opened, fault_signature="xid-79", action="replace")


def begun(record: PoolRecord, *nodes: NodeRecord) -> list[str]:
    """Return the nodes that are replaced now."""
    started = plan(snapshot(record, *nodes), NOW).start.values()
    return sorted(each.node for each in started if each.kind == "replace")


@pytest.mark.parametrize(
    ("out", "counted", "expected"),
    [
        # Renewals and notices at every limit hold no fault; earlier faults do.
        (["renewal", "notice"], {"voluntary": FULL}, ["n8", "n9"]),
        (["fault", "notice"], {"voluntary": FULL}, ["n8"]),
        (["fault", "fault"], {}, []),
        ([], {"disruptions": FULL}, []),
        ([], {"voluntary": FULL}, ["n8", "n9"]),
    ],
)
def test_no_fault_waits_for_what_has_none(
    out: list[str], counted: dict[str, Any], expected: list[str]
) -> None:
    """Both the level and the rate of faults are theirs alone."""
    opened = {f"s{number}": removed(f"n{number}", what) for number, what in enumerate(out)}
    record = pool(SIZE, spec=spec(budget=BUDGET, health=CALM), open=opened, **counted)
    nodes = [node(f"n{number}") for number in range(SIZE - 2)]
    broken = [
        node(f"n{number}", health="unhealthy", health_at=NOW, health_code=number)
        for number in (8, 9)
    ]
    assert begun(record, *nodes, *broken) == expected


@pytest.mark.parametrize(
    ("budget", "changes", "expected"),
    [
        # Half of the level; half of the rate of faults where no key says otherwise.
        ({}, {}, 1),
        ({"max_unavailable": 6}, {}, 2),
        ({"max_unavailable": 6, "max_voluntary": 3}, {}, 3),
        ({"max_unavailable": 6, "max_voluntary": 0}, {}, 0),
        ({"max_unavailable": 6, "max_voluntary": "unlimited"}, {}, 3),
        ({"max_unavailable": 6}, {"voluntary": noted({}, WINDOW, NOW, 1)}, 1),
        # What faults have begun spends nothing of it.
        ({"max_unavailable": 6}, {"disruptions": FULL}, 2),
    ],
)
def test_retirements_have_a_budget_and_open_no_breaker(
    budget: dict[str, Any], changes: dict[str, Any], expected: int
) -> None:
    """Idle nodes that the cloud takes in hours leave a few at a time, and no operator is paged."""
    chosen = msgspec.structs.replace(BUDGET, **budget)
    record = pool(SIZE, spec=spec(budget=chosen, drain_timeout=Duration(20 * 3600)), **changes)
    leaving = [node(f"r{number}", notices={f"r{number}": RETIRED}) for number in range(5)]
    rest = [node(f"n{number}") for number in range(SIZE - len(leaving))]
    decided = plan(snapshot(record, *leaving, *rest), NOW)
    started = [each.node for each in decided.start.values() if each.kind == "replace"]
    assert started == ["r0", "r1", "r2"][:expected]
    assert decided.record.breaker.state == "closed"
    assert sum(decided.record.voluntary.values()) == expected + sum(
        changes.get("voluntary", {}).values()
    )
    assert decided.record.disruptions == changes.get("disruptions", {})


@pytest.mark.parametrize("beside", ["fault", "urgent"])
def test_a_retirement_that_is_left_behind_opens_no_breaker(beside: str) -> None:
    """A fault, or what the cloud takes at once, goes first in the same decision."""
    record = pool(SIZE, spec=spec(budget=BUDGET, health=CALM, drain_timeout=Duration(20 * 3600)))
    first = {
        "fault": node("a", health="unhealthy", health_at=NOW, health_code=79),
        "urgent": node("a", notices={"a": CloudNotice(at=NOW, deadline=NOW)}),
    }[beside]
    retired = node("b", notices={"b": RETIRED})
    rest = [node(f"n{number}") for number in range(SIZE - 2)]
    decided = plan(snapshot(record, first, retired, *rest), NOW)
    assert [each.node for each in decided.start.values() if each.node] == ["a"]
    assert decided.record.breaker.state == "closed"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 25),
        ({"max_replacements": 5}, 3),
        ({"max_replacements": "unlimited"}, None),
        ({"max_voluntary": 0}, 0),
        ({"max_voluntary": "1%"}, 3),
        ({"max_voluntary": "100%"}, 100),
        ({"max_voluntary": "unlimited"}, None),
    ],
)
def test_the_rate_of_what_has_no_fault(changes: dict[str, Any], expected: int | None) -> None:
    """A pool of a hundred nodes; without the key, half of what faults have."""
    assert voluntary_rate(BudgetSpec(**changes), 100) == expected


def test_a_saga_counts_in_one_rate_and_is_taken_out_of_the_same() -> None:
    """A cordon that was refused has disrupted nothing, whatever it was for."""
    opened = {what: removed(what, what) for what in ("renewal", "notice", "fault")}
    record = with_counted(pool(SIZE, open=opened), WINDOW, NOW, opened)
    assert (sum(record.voluntary.values()), sum(record.disruptions.values())) == (2, 1)
    assert record.fleet_voluntary == record.voluntary
    for each in opened.values():
        record = without_counted(record, each)
    assert [record.voluntary, record.disruptions, record.fleet_voluntary] == [{}, {}, {}]


def test_other_pools_renewals_spend_nothing_that_faults_need() -> None:
    """The fleet's rate of faults counts faults, and its half counts what has none."""
    fleet = FleetBudgetSpec(max_replacements=4)
    record = pool(SIZE, spec=spec(budget=BUDGET), fleet_voluntary=FULL)
    claim = claim_of(record, Nodes([node(f"n{number}") for number in range(SIZE)]), 1)
    assert (claim.voluntary, claim.disruptions) == (FULL, {})
    for claims, faults, no_fault in (
        ({"other": claim}, "", "fleet-rate"),
        ({"other": BudgetClaim(disruptions=FULL)}, "fleet-rate", ""),
    ):
        own = pool(SIZE, spec=spec(budget=BUDGET))
        nodes = Nodes([node(f"n{number}") for number in range(SIZE)])
        left = allowance(own, nodes, others(fleet, FleetBudgetRecord(claims=claims), "own"), NOW)
        assert left.refusal(cordoned=False) == faults
        assert left.for_no_fault().refusal(cordoned=False) == no_fault


def test_thousands_of_notices_leave_room_for_a_fault() -> None:
    """The cloud takes half of a pool, and a node beside it fails."""
    count = 500
    taken = [
        node(
            f"s{number}",
            market="spot",
            notices={"n": CloudNotice(at=NOW, deadline=NOW + timedelta(minutes=2))},
        )
        for number in range(count)
    ]
    rest = [node(f"n{number}") for number in range(count)]
    broken = node("broken", health="unhealthy", health_at=NOW, health_code=79)
    # Both in one decision and in two.
    world = snapshot(pool(2 * count + 1, spec=spec(max_nodes=2 * count + 1)), *taken, *rest)
    decided = plan(replace(world, nodes=Nodes([*taken, *rest, broken])), NOW)
    assert "broken" in {each.node for each in decided.start.values()}
    assert decided.record.breaker.state == "closed"
    leaving = plan(world, NOW).record
    assert sum(bool(each.notice) for each in leaving.open.values()) == count
    world = replace(world, record=leaving, nodes=Nodes([*taken, *rest, broken]))
    assert [each.node for each in plan(world, NOW).start.values() if each.node] == ["broken"]


@pytest.mark.parametrize(
    ("budget", "setting"),
    [
        (BUDGET, "half of budget.max_replacements: 4"),
        (msgspec.structs.replace(BUDGET, max_voluntary=2), "budget.max_voluntary: 2"),
    ],
)
def test_what_waits_for_it_names_its_setting_and_when_there_is_room(
    budget: BudgetSpec, setting: str
) -> None:
    """The gate of a renewal knows the rate of nodes without a fault, and not that of faults."""
    record = pool(SIZE, spec=spec(budget=budget, health=CALM), voluntary=FULL)
    nodes = Nodes([node(f"n{number}") for number in range(SIZE)])
    allowed = allowance(record, nodes, None, NOW)
    shut = pool_gates.budget(Proposal("renewal", record, NOW, nodes.by_name["n0"], allowed=allowed))
    assert shut is not None
    assert shut.text.startswith("4 removals of nodes without a fault began within 1h and 2 may be")
    assert setting in shut.text
    assert shut.until == room_at(FULL, WINDOW, NOW)
    assert pool_gates.budget(Proposal("repair", record, NOW, allowed=allowed)) is None
