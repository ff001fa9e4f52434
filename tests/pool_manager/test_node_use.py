"""The workload system is asked about those nodes that may leave and rest."""

from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.node_records import GpuUse, HeartbeatRecord, NodeRecord, node_key
from schemas.node_work import NODE_WORK, NODES_MAX, NodeWorkAnswer, NodeWorkQuery
from schemas.pool_records import PoolRecord
from schemas.settings import PoolSpec
from schemas.topology import HEARTBEATS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus, Headers
from services.bus.topology_setup import set_up
from services.pool_manager.heartbeat_reader import HeartbeatReader
from services.pool_manager.node_use_reader import NodeUseReader
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.primitives.clock import SystemClock

CLOCK = SystemClock()


class WorkloadSystem:
    """The notifier's endpoint, as a test scripts it."""

    def __init__(self) -> None:
        self.answer = NodeWorkAnswer()
        self.asked: list[tuple[str, ...]] = []

    async def reply(self, data: bytes, _: Headers) -> bytes:
        """Answer a question."""
        self.asked.append(msgspec.json.decode(data, type=NodeWorkQuery).nodes)
        return encode(self.answer)


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """Two nodes rest, one has done so for a moment, one works, and one is silent."""
    server = MemoryServer(CLOCK)
    connected = MemoryBus(server, PerfectLink())
    await set_up(connected, CLOCK, replicas=1)
    now = CLOCK.now()
    for name, busy, minutes in (("a", 0, 9), ("b", 0, 9), ("pause", 0, 1), ("works", 1, 9)):
        use = GpuUse(busy=bool(busy), since=now - timedelta(minutes=minutes))
        beat = HeartbeatRecord(pool="training", node=name, time=now, gpu_use=use)
        await connected.put(HEARTBEATS, node_key("training", name), encode(beat))
    yield connected
    await connected.close()
    server.close()


NODES = ("a", "b", "pause", "works", "silent")


async def works(reader: NodeUseReader) -> str:
    """Return what is known of the work of each node."""
    found = await reader.read_with_work("training", NODES)
    return " ".join(found[name].work for name in NODES)


@pytest.mark.parametrize(
    ("answer", "known"),
    [
        (NodeWorkAnswer(idle=("a",)), "none runs"),
        (NodeWorkAnswer(idle=("a",), unknown="slurm does not know b"), "none unknown"),
        (NodeWorkAnswer(unknown="slurmctld does not answer"), "unknown unknown"),
        (NodeWorkAnswer(busy=("a",), unknown="slurm does not know b"), "runs unknown"),
        (NodeWorkAnswer(busy=("another",), unknown="slurm does not know b"), "unknown unknown"),
        (NodeWorkAnswer(idle=("a",), busy=("b",)), "none runs"),
        (NodeWorkAnswer(idle=("another",)), "runs runs"),
    ],
)
async def test_only_nodes_that_rest_are_asked_about(
    bus: Bus, answer: NodeWorkAnswer, known: str
) -> None:
    """A node that the workload system does not know stays unknown."""
    system = WorkloadSystem()
    system.answer = answer
    await bus.serve("notifier", "", {subjects.query(NODE_WORK): system.reply})
    reader = NodeUseReader(bus, CLOCK, HeartbeatReader(bus))
    assert await works(reader) == f"{known} unknown unknown unknown"
    assert system.asked == [("a", "b")]


@pytest.mark.parametrize(
    "answer",
    [
        NodeWorkAnswer(),
        NodeWorkAnswer(busy=("a", "b"), unknown="slurm does not know strange"),
    ],
    ids=["all known", "one unknown"],
)
async def test_an_unknown_node_does_not_change_the_order_of_the_others(
    bus: Bus, answer: NodeWorkAnswer
) -> None:
    """Jobs of unknown age: the oldest node leaves first, and did last beside an unknown one."""
    system, now = WorkloadSystem(), CLOCK.now()
    system.answer = answer
    beat = HeartbeatRecord(
        pool="training",
        node="strange",
        time=now,
        gpu_use=GpuUse(busy=False, since=now - timedelta(minutes=9)),
    )
    await bus.put(HEARTBEATS, node_key("training", "strange"), encode(beat))
    await bus.serve("notifier", "", {subjects.query(NODE_WORK): system.reply})
    use = await NodeUseReader(bus, CLOCK, HeartbeatReader(bus)).read_with_work(
        "training", ("a", "b", "strange")
    )
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=9)
    record = PoolRecord(name="training", spec=spec, desired=1)
    nodes = [
        NodeRecord(
            pool="training",
            node=name,
            state="active",
            health="healthy",
            admitted_at=now - timedelta(days=days),
        )
        for name, days in (("a", 9), ("b", 2))
    ]
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=Nodes(nodes), use=use)
    assert [each.node for each in plan(snapshot, now).start.values()] == ["a"]


async def test_without_an_answer_nothing_is_asked_for_a_minute(bus: Bus) -> None:
    """Each decision of the pool would wait for it."""
    system, reader = WorkloadSystem(), NodeUseReader(bus, CLOCK, HeartbeatReader(bus))
    assert await works(reader) == "unknown unknown unknown unknown unknown"
    await bus.serve("notifier", "", {subjects.query(NODE_WORK): system.reply})
    assert await works(reader) == "unknown unknown unknown unknown unknown"
    assert system.asked == []


async def test_a_node_with_work_is_not_asked_about_again_at_once(bus: Bus) -> None:
    """A pool is decided on every few seconds; a node without work leaves by what is said now."""
    system, reader = WorkloadSystem(), NodeUseReader(bus, CLOCK, HeartbeatReader(bus))
    system.answer = NodeWorkAnswer(idle=("a",))
    await bus.serve("notifier", "", {subjects.query(NODE_WORK): system.reply})
    for _ in range(2):
        assert await works(reader) == "none runs unknown unknown unknown"
    assert system.asked == [("a", "b"), ("a",)]


async def test_many_nodes_are_asked_about_in_parts(bus: Bus) -> None:
    """No answer is larger than a message may be."""
    system = WorkloadSystem()
    await bus.serve("notifier", "", {subjects.query(NODE_WORK): system.reply})
    reader = NodeUseReader(bus, CLOCK, HeartbeatReader(bus))
    names = [f"n{number}" for number in range(NODES_MAX + 1)]
    found = await reader.work("training", names, 10.0)
    assert [len(each) for each in system.asked] == [NODES_MAX, 1]
    assert (found.busy, found.idle) == (frozenset(names), frozenset())
