"""A smaller pool gives up launches first, and then the nodes that serve least."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas.enums import NodeState
from schemas.node_records import GpuUse, NodeRecord
from schemas.pool_records import OpenSaga, PoolRecord
from schemas.settings import HealthSpec, PoolSpec
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import NodeUse, PoolSnapshot, Work
from services.pool_manager.planner.sizing.pool_size import removable

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pool(desired: int) -> PoolRecord:
    """A pool that wants `desired` nodes."""
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)
    return PoolRecord(name="training", spec=spec, desired=desired, serial=100)


def node(name: str, admitted_at: datetime = NOW) -> NodeRecord:
    """Return a healthy node in service."""
    return NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=admitted_at
    )


def snapshot(record: PoolRecord, *nodes: NodeRecord) -> PoolSnapshot:
    """Return a pool and its nodes."""
    return PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7)


def use(busy: bool | None, minutes: float = 60, dollars: float = 0, work: Work = "none") -> NodeUse:
    """Return what an agent reports since `minutes`, and what the workload system says."""
    gpus = None if busy is None else GpuUse(busy=busy, since=NOW - timedelta(minutes=minutes))
    return NodeUse(gpus=gpus, dollars_per_hour=dollars, work=work)


DAYS_OLD = {"old": 9, "older": 99}
LEAVING_ORDERS = [
    # What is known of three nodes, in the order in which they leave.
    ({"a": use(busy=False), "b": use(busy=True), "c": use(None)}, "idle, busy, unknown"),
    ({"c": use(busy=False), "b": use(busy=True), "a": use(None)}, "whatever their names"),
    ({"b": use(busy=True, minutes=9), "a": use(busy=True, minutes=90)}, "the job that began last"),
    ({"a": use(busy=False), "c": NodeUse(), "b": use(busy=False, minutes=4)}, "a pause is no rest"),
    ({"a": use(busy=False, dollars=9), "b": use(busy=False, dollars=8)}, "the expensive one"),
    (
        {"c": use(busy=False), "b": use(busy=False, work="unknown"), "a": use(False, work="runs")},
        "a job that rests is work",
    ),
    ({"b": use(busy=False), "a": use(busy=True, work="unknown")}, "busy without being asked about"),
    ({"young": use(None), "old": use(None), "older": use(None)}, "unknown: the youngest"),
    ({"older": use(busy=True), "old": use(busy=True), "young": use(busy=True)}, "busy: the oldest"),
    ({"young": use(busy=True, dollars=2), "older": use(busy=True, dollars=1)}, "price before age"),
]


@pytest.mark.parametrize(
    "known", [known for known, _ in LEAVING_ORDERS], ids=[why for _, why in LEAVING_ORDERS]
)
def test_smaller_pool_gives_away_the_least_used(known: dict[str, NodeUse]) -> None:
    """One at a time, each decision takes the next in order."""
    staying = [
        node(name, admitted_at=NOW - timedelta(days=DAYS_OLD.get(name, 1))) for name in known
    ]
    order = []
    while staying:
        world = replace(snapshot(pool(len(staying) - 1), *staying), use=known)
        (leaving,) = plan(world, NOW).start.values()
        order.append(leaving.node)
        staying = [each for each in staying if each.node != leaving.node]

    assert list(known) == order


@pytest.mark.parametrize(
    "changes",
    [
        {"cordoned": True},
        {"lost": True, "lost_at": NOW},
        {"health": "unhealthy", "health_at": NOW},
        {"health": "unhealthy", "health_at": NOW, "cordoned": True},
    ],
    ids=["cordoned", "silent", "unhealthy", "unhealthy and cordoned"],
)
def test_what_takes_no_work_leaves_before_a_node_in_service(changes: dict[str, Any]) -> None:
    """The node in service stays although it is dearer and has no work either."""
    out = msgspec.structs.replace(node("z", NOW - timedelta(days=9)), **changes)
    spec = msgspec.structs.replace(pool(1).spec, health=HealthSpec(auto_replace=False))
    known = {"a": use(busy=False, dollars=9), "z": use(busy=True, minutes=900)}
    record = msgspec.structs.replace(pool(1), spec=spec)
    (leaving,) = plan(replace(snapshot(record, node("a"), out), use=known), NOW).start.values()
    assert leaving.node == "z"


def test_what_is_to_be_repaired_leaves_before_what_is_cordoned() -> None:
    """The cordoned node works, and may come back."""
    out = msgspec.structs.replace(node("a"), cordoned=True)
    broken = msgspec.structs.replace(node("z"), health="unhealthy", health_at=NOW)
    (leaving,) = plan(snapshot(pool(1), out, broken), NOW).start.values()
    assert leaving.node == "z"


def test_a_node_with_a_job_of_several_nodes_is_busy() -> None:
    """The node's record has the job, whatever its GPUs do."""
    gang = msgspec.structs.replace(node("a"), gangs=("4711",))
    world = replace(snapshot(pool(1), gang, node("b")), use=dict.fromkeys("ab", use(busy=False)))
    (leaving,) = plan(world, NOW).start.values()
    assert leaving.node == "b"


def test_use_is_read_where_it_decides() -> None:
    """Use is not read while no node leaves, nor where all may."""
    nodes = [node(each) for each in "abc"]

    def read(desired: int) -> list[str]:
        world = snapshot(pool(desired), *nodes)
        return removable(world, plan(world, NOW), NOW)

    assert [[], ["a", "b", "c"], []] == [read(3), read(1), read(0)]


def test_a_job_on_many_nodes_loses_the_hours_of_all_of_them() -> None:
    """A job of ten minutes on three nodes loses more than one of twenty minutes on one."""
    gang = [msgspec.structs.replace(node(each), gangs=("4711",)) for each in "abc"]
    known = {
        **dict.fromkeys("abc", use(busy=True, minutes=10)),
        "d": use(busy=True, minutes=20),
        "e": use(busy=True, minutes=40),
    }
    world = replace(snapshot(pool(4), *gang, node("d"), node("e")), use=known)
    (leaving,) = plan(world, NOW).start.values()
    assert leaving.node == "d"


def test_a_node_that_has_just_come_leaves_before_one_with_a_job() -> None:
    """No job on it can be older than the node."""
    fresh = node("fresh", admitted_at=NOW - timedelta(minutes=1))
    known = {"fresh": use(busy=False, minutes=1), "old": use(busy=True, minutes=30)}
    world = replace(snapshot(pool(1), node("old", NOW - timedelta(days=1)), fresh), use=known)
    (leaving,) = plan(world, NOW).start.values()
    assert leaving.node == "fresh"


def launch(name: str, **changes: Any) -> OpenSaga:
    """Return a launch under way."""
    return OpenSaga(kind="scale-up", new_node=name, since=NOW, **changes)


def reboot(name: str) -> OpenSaga:
    """Return a repair that keeps its node."""
    return OpenSaga(kind="reboot", node=name, since=NOW)


def replacement(old: str, new: str, **changes: Any) -> OpenSaga:
    """Return a replacement whose launch is to come."""
    return OpenSaga(kind="replace", node=old, new_node=new, since=NOW, **changes)


def booting(name: str, state: NodeState = "launching") -> NodeRecord:
    """Return a node that is not in service yet."""
    return NodeRecord(pool="training", node=name, state=state)


GIVEN_UP = [
    # What is open, which nodes there are, what is wanted: what is called off, and who leaves.
    ([launch("x"), launch("y")], [], 2, "x y", "", "launches go before nodes in service"),
    ([launch("x"), launch("y")], [], 1, "x y", "a", "and then a node in service"),
    ([launch("x"), launch("y")], [], 3, "y", "", "the last one first"),
    ([launch("x"), launch("y")], [booting("y")], 3, "x", "", "one that was not made yet"),
    (
        *([launch("x"), launch("y")], [booting("y"), booting("x", "registered")], 3, "y", ""),
        "one that boots before one that has registered",
    ),
    ([launch("x"), replacement("a", "z")], [], 2, "x", "", "a replacement's launch stays"),
    ([launch("x"), replacement("a", "z")], [], 1, "x z", "", "until it is too many as well"),
    ([replacement("a", "z", called_off="r")], [], 2, "", "", "one that is wanted again goes on"),
    ([replacement("a", "z", called_off="r")], [], 1, "z", "", "one that is not stays given up"),
    ([reboot("a")], [], 1, "", "", "a node in repair is waited for"),
    ([reboot("a")], [], 0, "", "b", "where one of two leaves, it is the other"),
    (
        *([launch("x", gang="g", gang_size=2), launch("y", gang="g", gang_size=2)], [], 3),
        *("x y", "", "a gang as a whole"),
    ),
    ([launch("x", called_off="")], [node("x")], 2, "", "", "one that has just come is waited for"),
    ([launch("x", called_off="r")], [node("x")], 3, "", "", "it is in service, and counts again"),
]


@pytest.mark.parametrize(
    ("opened", "there", "wanted", "given_up", "leaving"),
    [each[:5] for each in GIVEN_UP],
    ids=[each[5] for each in GIVEN_UP],
)
def test_what_serves_least_is_given_up_first(
    opened: list[OpenSaga],
    there: list[NodeRecord],
    wanted: int,
    given_up: str,
    leaving: str,
) -> None:
    """Two nodes are in service; no node of those leaves while something else counts."""
    known = {f"s-{number}": each for number, each in enumerate(opened)}
    record = msgspec.structs.replace(pool(wanted), open=known)
    plain = {"a": node("a"), "b": node("b"), **{each.node: each for each in there}}
    decided = plan(snapshot(record, *plain.values()), NOW)
    found = decided.record.open.values()
    assert " ".join(sorted(each.new_node for each in found if each.called_off)) == given_up
    assert " ".join(each.node for each in decided.start.values()) == leaving
