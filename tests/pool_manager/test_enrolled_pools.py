"""Pools of machines that joined, or that Slurm has: nothing is launched, replaced or ended."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.node_records import NodeRecord
from schemas.pool_events import OperatorNeeded
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.requests.node_refusals import node_refusal
from services.pool_manager.requests.request_replies import RefusedError
from services.pool_manager.requests.requested_size import resized, smaller

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SPEC = PoolSpec(
    provider="machines",
    nodes="enrolled",
    min_nodes=0,
    max_nodes=100,
    budget=BudgetSpec(max_quarantined=0, max_unavailable=1, max_replacements="unlimited"),
)
POOL = PoolRecord(name="gpu", spec=SPEC, desired=3)
HEALTHY = NodeRecord(pool="gpu", node="a", state="active", health="healthy", admitted_at=NOW)
UNHEALTHY = msgspec.structs.replace(
    HEALTHY, health="unhealthy", health_action="replace", health_at=NOW, health_reason="xid 79"
)
LISTED = LaunchSpec(fleet="", provider="machines", instance_type="", lasting=True)
ADOPTED = msgspec.structs.replace(POOL, spec=msgspec.structs.replace(SPEC, nodes="adopted"))
SILENT = msgspec.structs.replace(HEALTHY, lost=True, lost_at=datetime(2026, 11, 29, tzinfo=UTC))


def decide(record: PoolRecord, *nodes: NodeRecord) -> PoolPlan:
    """Decide about the pool, which has two more nodes."""
    others = tuple(msgspec.structs.replace(HEALTHY, node=name) for name in "bc")
    seen = PoolSnapshot(fleet="f", record=record, nodes=Nodes((*nodes, *others)), revision=7)
    return plan(seen, NOW)


def notified(decided: PoolPlan) -> list[OperatorNeeded]:
    """Return what operators are asked for."""
    return [each for each in decided.events if isinstance(each, OperatorNeeded)]


@pytest.mark.parametrize("node", [UNHEALTHY, SILENT])
def test_an_unhealthy_machine_is_drained_and_its_operator_notified(node: NodeRecord) -> None:
    """Nothing makes another in its place, so its work leaves it and it is repaired by people."""
    decided = decide(POOL, node)
    [opened] = decided.start.values()

    assert ("drain", "a") == (opened.kind, opened.node)
    [needed] = notified(decided)
    assert "navarch leave" in needed.remedy
    assert needed.cordoned


@pytest.mark.parametrize("node", [UNHEALTHY, SILENT])
@pytest.mark.parametrize(("launch", "kind"), [(LISTED, "drain"), (None, "replace")])
def test_an_adopted_node_is_drained_where_nothing_makes_another(
    node: NodeRecord, launch: LaunchSpec | None, kind: str
) -> None:
    """The node's record says whether something does, as a group of a cloud."""
    decided = decide(ADOPTED, msgspec.structs.replace(node, launch=launch))
    [opened] = decided.start.values()

    assert (kind, "a") == (opened.kind, opened.node)
    for needed in notified(decided):
        assert "repair it, then `navarch uncordon`" in needed.remedy
        assert "leave" not in needed.remedy


def test_one_that_is_drained_is_left_to_its_operator() -> None:
    """The drain is not repeated, nor is the notice to operators."""
    out = msgspec.structs.replace(UNHEALTHY, cordoned=True)
    decided = decide(POOL, out)

    assert not decided.start
    assert [] == notified(decide(decided.record, out))


def test_a_cloud_that_takes_a_machine_changes_nothing_of_that() -> None:
    """The work is drained, and no node is launched ahead of it."""
    taken = msgspec.structs.replace(HEALTHY, spare=True, health="unhealthy", health_at=NOW)

    assert {"drain"} >= {each.kind for each in decide(POOL, taken).start.values()}


def test_it_has_no_size() -> None:
    """The pool expects those that have joined; neither gaps nor surplus lead to anything."""
    more = msgspec.structs.replace(POOL, desired=50)

    assert not decide(more, HEALTHY).start
    assert 3 == decide(more, HEALTHY).record.desired
    for change in (lambda: resized(POOL, 5, NOW), lambda: smaller(POOL, NOW)):
        with pytest.raises(RefusedError, match="navarch leave"):
            change()


def test_a_request_to_replace_a_machine_is_refused() -> None:
    """The refusal says to drain it, or to take it out."""
    said = node_refusal("replace", HEALTHY, POOL, NOW)

    assert said is not None
    assert "navarch drain a" in said[1]
    assert node_refusal("drain", HEALTHY, POOL, NOW) is None
    assert node_refusal("replace", HEALTHY, ADOPTED, NOW) is None
    listed = msgspec.structs.replace(HEALTHY, launch=LISTED)
    said = node_refusal("replace", listed, ADOPTED, NOW)
    assert said is not None
    assert "take it out of its partition" in said[1]


def test_in_observe_mode_it_is_only_said() -> None:
    """The pool publishes what would be done, and nothing begins."""
    watching = msgspec.structs.replace(SPEC, mode="observe")
    decided = decide(msgspec.structs.replace(POOL, spec=watching), UNHEALTHY)

    assert not decided.start
    assert ["drain a"] == list(decided.record.observed_actions)
