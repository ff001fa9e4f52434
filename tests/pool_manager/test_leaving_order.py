"""Which nodes a smaller pool gives away."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.node_records import GpuUse, NodeRecord
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
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
    """A healthy node in service."""
    return NodeRecord(
        pool="training", node=name, state="active", health="healthy", admitted_at=admitted_at
    )


def snapshot(record: PoolRecord, *nodes: NodeRecord) -> PoolSnapshot:
    """A pool and its nodes."""
    return PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), revision=7)


def use(busy: bool | None, minutes: float = 60, dollars: float = 0, work: Work = "none") -> NodeUse:
    """As its agent reports it: so since `minutes`; and what the workload system says."""
    gpus = None if busy is None else GpuUse(busy=busy, since=NOW - timedelta(minutes=minutes))
    return NodeUse(gpus=gpus, dollars_per_hour=dollars, work=work)


DAYS_OLD = {"old": 9, "older": 99}
LEAVING_ORDERS = [
    # What is known of three nodes, in the order in which they leave.
    ({"a": use(busy=False), "b": use(None), "c": use(busy=True)}, "idle, unknown, busy"),
    ({"c": use(busy=False), "b": use(None), "a": use(busy=True)}, "whatever their names"),
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
        node(name, admitted_at=NOW - timedelta(days=DAYS_OLD.get(name, 0))) for name in known
    ]
    order = []
    while staying:
        world = replace(snapshot(pool(len(staying) - 1), *staying), use=known)
        (leaving,) = plan(world, NOW).start.values()
        order.append(leaving.node)
        staying = [each for each in staying if each.node != leaving.node]

    assert list(known) == order


def test_a_node_with_a_job_of_several_nodes_is_busy() -> None:
    """Its record has the job, whatever its GPUs do."""
    gang = msgspec.structs.replace(node("a"), gangs=("4711",))
    world = replace(snapshot(pool(1), gang, node("b")), use=dict.fromkeys("ab", use(busy=False)))
    (leaving,) = plan(world, NOW).start.values()
    assert leaving.node == "b"


def test_use_is_read_where_it_decides() -> None:
    """Not while no node leaves, nor where all may."""
    nodes = [node(each) for each in "abc"]

    def read(desired: int) -> list[str]:
        world = snapshot(pool(desired), *nodes)
        return removable(world, plan(world, NOW), NOW)

    assert [[], ["a", "b", "c"], []] == [read(3), read(1), read(0)]
