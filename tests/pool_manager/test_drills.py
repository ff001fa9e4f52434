"""When a drill may begin, and what the pool-manager makes of its verdict."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.breaker_state import Breaker
from schemas.drill_orders import DrillOrder
from schemas.enums import DrillReach
from schemas.node_events import GpuIdentity, Verdict
from schemas.node_records import NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import BudgetSpec, HealthSpec, PoolSpec
from schemas.stops import Stop, StopState
from services.pool_manager.planner import node_projection
from services.pool_manager.planner.admission.denied_hardware import condemned
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.remediator import BUILT_IN, Remediator
from services.pool_manager.planner.safety.fault_waves import find_unhealthy
from services.pool_manager.requests.drill_decision import DrillRefusedError, drill
from tests.pool_manager.test_admission import CONDEMNED, about

NOW = datetime(2026, 11, 30, 7, tzinfo=UTC)
GPUS = tuple(GpuIdentity(index=n, uuid=f"GPU-{n}", serial=f"s{n}") for n in range(2))
XID = DrillOrder(pool="training", node="n1", kind="xid", code=79)


def node(name: str = "n1", **changes: Any) -> NodeRecord:
    """Return a node in service on which drills are allowed."""
    fields = {"state": "active", "health": "healthy", "drills": True, "gpus": GPUS} | changes
    return NodeRecord(pool="training", node=name, **fields)


def pool(**changes: Any) -> PoolRecord:
    """Return a pool of three."""
    fields = {"budget": BudgetSpec(max_unavailable=1), "health": HealthSpec()} | changes
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=3, max_nodes=9, **fields)
    return PoolRecord(name="training", spec=spec, desired=3)


def snapshot(first: NodeRecord, record: PoolRecord | None = None, **changes: Any) -> PoolSnapshot:
    """Return what is decided on: this node and two that are well."""
    nodes = Nodes((first, changes.pop("second", node("n2")), node("n3")))
    found = record or pool()
    return PoolSnapshot(fleet="f", record=found, revision=1, nodes=nodes, **changes)


def refused(asked: DrillOrder, seen: PoolSnapshot | None, begun: str = "") -> str:
    """Return why a drill is refused."""
    with pytest.raises(DrillRefusedError) as found:
        drill(asked, "ada", seen, begun, NOW)
    return str(found.value)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"drills": False}, "NAVARCH_DRILLS=allowed"),
        ({"state": "registered"}, "is registered"),
        ({"state": "leaving"}, "is leaving"),
        ({"spare": True}, "is a spare"),
        ({"health": "unhealthy", "health_reason": "XID 48"}, "XID 48"),
        ({"health": "degraded"}, "hide a real fault"),
        ({"health": "unhealthy", "health_drill": "drain"}, "navarch uncordon n1"),
        ({"lost": True, "lost_at": NOW}, "is silent"),
        ({"saga": "reboot-n1-1"}, "navarch saga show reboot-n1-1"),
        ({"cordoned": True}, "navarch uncordon n1"),
        (
            {"held_until": NOW + timedelta(hours=1), "held_reason": "bisecting"},
            "navarch release n1",
        ),
    ],
)
def test_a_drill_on_such_a_node_is_refused_with_its_remedy(
    changes: dict[str, Any], why: str
) -> None:
    """Where it would show nothing, or would hide something."""
    assert why in refused(XID, snapshot(node(**changes)))


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"code": 0}, "navarch drill n1 xid 79"),
        ({"kind": "ecc_dbe"}, "has no code"),
        ({"kind": "thermal", "code": 0, "subcode": "melted"}, "hw_slowdown"),
        ({"kind": "ecc_dbe", "code": 0, "subcode": "x"}, "it has none"),
        ({"gpu": 2}, "has no GPU 2"),
        ({"node": "gone"}, "navarch list"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(asked: dict[str, Any], why: str) -> None:
    """The sentence says what there is."""
    assert why in refused(msgspec.structs.replace(XID, **asked), snapshot(node()))


def test_a_drill_waits_for_nothing() -> None:
    """A stop, the breaker, the budget and another drill refuse it, as they would hold it back."""
    stop = Stop(reason="change", by="ada", since=NOW)
    stopped = StopState(stops={"fleet": stop})
    shut = msgspec.structs.replace(pool(), breaker=Breaker(state="open", forced=True))
    out = node("n2", cordoned=True)
    drilled = node("n2", health="unhealthy", health_drill="drain")
    assert "navarch resume" in refused(XID, snapshot(node(), stops=stopped))
    assert "breaker" in refused(XID, snapshot(node(), shut))
    assert "would wait" in refused(XID, snapshot(node(), second=out))
    assert "navarch uncordon n2" in refused(XID, snapshot(node(), second=drilled))
    assert "navarch uncordon n3" in refused(XID, snapshot(node()), begun="n3")
    assert "auto_replace" in refused(
        XID, snapshot(node(), pool(health=HealthSpec(auto_replace=False)))
    )
    assert "navarch list" in refused(XID, None)


@pytest.mark.parametrize(("act", "reach"), [(False, "drain"), (True, "act")])
def test_what_is_published_says_who_and_how_far(act: bool, reach: str) -> None:
    """The event is what the health-monitor acts on."""
    asked = msgspec.structs.replace(XID, act=act)
    event = drill(asked, "ada", snapshot(node()), "", NOW)
    assert (event.by, event.reach, event.kind, event.code) == ("ada", reach, "xid", 79)
    assert ("navarch uncordon n1" in event.remedy) is not act


def unhealthy(reach: DrillReach, action: str, name: str = "n1") -> NodeRecord:
    """Return a node once its drill's verdict is in its record."""
    verdict = Verdict(
        id=f"v-{name}",
        time=NOW,
        pool="training",
        node=name,
        status="unhealthy",
        action=action,
        reason="drill: XID 79",
        kind="xid",
        code=79,
        fault="f",
        drill=reach,
    )
    found = node_projection.apply_event(node(name), verdict, NOW)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", BUILT_IN.values())
def test_a_drill_that_does_not_act_drains_whatever_the_remediation_is(
    kind: type[Remediator],
) -> None:
    """A pool that leaves all to operators drains it, too, as an operator ordered it."""
    remediator: Any = kind(options=kind.Options())  # type: ignore[call-arg,attr-defined]
    decided = plan(snapshot(unhealthy("drain", "inspect"), remediator=remediator), NOW)
    assert [each.kind for each in decided.start.values()] == ["drain"]
    [opened] = decided.start.values()
    assert (opened.fault_signature, opened.reason) == ("drill-xid-79", "drill: XID 79")


def test_a_drained_drill_waits_for_the_operator_and_nothing_else_begins() -> None:
    """No cordon, no successor, no repair: it stays out until it is uncordoned."""
    drained = msgspec.structs.replace(
        unhealthy("drain", "inspect"), cordoned=True, drained=True, cordoned_at=NOW
    )
    decided = plan(snapshot(drained), NOW + timedelta(hours=1))
    assert decided.start == {}


def test_a_drill_that_acts_is_remediated_as_a_fault() -> None:
    """The action of the verdict is done."""
    decided = plan(snapshot(unhealthy("act", "replace")), NOW)
    assert [each.kind for each in decided.start.values()] == ["replace"]
    assert {each.fault_signature for each in decided.start.values()} == {"drill-xid-79"}


def test_drills_are_in_no_incident() -> None:
    """Nodes with a real fault of the same kind are counted without them."""
    real = msgspec.structs.replace(unhealthy("act", "replace", "n4"), health_drill="")
    nodes = Nodes((unhealthy("drain", "inspect"), unhealthy("act", "replace", "n2"), real))
    assert [each.node.node for each in find_unhealthy(nodes)] == ["n4"]


def test_no_hardware_is_listed_for_a_drill() -> None:
    """The node is replaced for the drill, or leaves for another reason meanwhile."""
    drilled = msgspec.structs.replace(CONDEMNED, health_drill="act")
    replaced = about(
        "replace", action="replace", fault="f1", reason="r", fault_signature="drill-xid-79"
    )
    assert condemned(about(), CONDEMNED, NOW)
    assert condemned(about(), drilled, NOW) == {}
    assert condemned(replaced, drilled, NOW) == {}


def test_a_silent_node_is_remediated_for_its_silence() -> None:
    """A drill does not keep a machine that is gone."""
    gone = msgspec.structs.replace(
        unhealthy("drain", "inspect"), lost=True, lost_at=NOW, provider_state="gone"
    )
    decided = plan(snapshot(gone), NOW + timedelta(minutes=10))
    assert [each.kind for each in decided.start.values()] == ["replace"]
