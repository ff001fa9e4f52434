"""A node in service has no work where every workload system of its pool says so now."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.node_work import OWNERS_MAX, NodeWorkAnswer, NodeWorkQuery
from schemas.settings import PoolSpec
from schemas.topology import NODES
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.webhook_notifier import WebhookNotifier
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
)
from services.notifier.workload_endpoints import NodeWorkEndpoint, owned_work
from services.primitives.clock import SystemClock

JOB = NodeWorkload(drained=False, running=(RunningWork(id="4711"),), total=1)
NOTHING = NodeWorkload(drained=False)
UNSURE = NodeWorkload(drained=False, unsure=True)
PARTLY = NodeWorkload(drained=False, running=(RunningWork(id="4711"),), total=1, unsure=True)
UNKNOWN = NodeWorkload(drained=True, detail="Slurm knows no node b")
QUERY = NodeWorkQuery(pool="training", nodes=("a", "b"))


@dataclass(slots=True, eq=False)
class Systems:
    """A workload system that answers as a test says; it is no NoopNotifier."""

    answers: dict[str, WorkloadAnswer] = field(default_factory=dict)
    fails: str = ""
    name: str = "scripted"
    reports_running: bool = True
    asked: list[str] = field(default_factory=list)

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        self.asked += [each.node for each in nodes]
        if self.fails:
            raise ConnectionRefusedError(self.fails)
        return {each.node: self.answers[each.node] for each in nodes if each.node in self.answers}


@asynccontextmanager
async def fleet_of(*records: NodeRecord) -> AsyncIterator[Bus]:
    """Yield a bus with the topology and these nodes."""
    server = MemoryServer(SystemClock())
    connected = MemoryBus(server, PerfectLink())
    await set_up(connected, SystemClock(), replicas=1)
    for each in records:
        await connected.put(NODES, node_key(each.pool, each.node), encode(each))
    yield connected
    await connected.close()
    server.close()


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """Yield a fleet of two nodes."""
    nodes = [NodeRecord(pool="training", node=name, state="active") for name in QUERY.nodes]
    async with fleet_of(*nodes) as found:
        yield found


async def answered(bus: Bus, *systems: object) -> tuple[tuple[str, ...], str]:
    """Return the idle of both nodes of a pool with these systems, and why others are not."""
    found = await asked(bus, *systems)
    return found.idle, found.unknown


async def asked(bus: Bus, *systems: object) -> NodeWorkAnswer:
    """Return what the notifier answers about both nodes of a pool with these systems."""
    named: dict[str, Notifier] = {str(number): each for number, each in enumerate(systems)}  # type: ignore[misc]
    spec = PoolSpec(provider="p", instance_type="t", min_nodes=0, max_nodes=2, notifiers=(*named,))
    noop = NoopNotifier(options=NoopNotifier.Options(), clock=SystemClock())
    notifiers = PoolNotifiers(noop, named, {"training": spec}, bus)
    return await NodeWorkEndpoint(notifiers, bus).idle(QUERY)


async def test_without_a_workload_system_all_are_idle(bus: Bus) -> None:
    """The agents decide alone."""
    assert await answered(bus) == (("a", "b"), "")


@pytest.mark.parametrize(
    ("answers", "idle", "unknown"),
    [
        ({"a": NOTHING, "b": NOTHING}, ("a", "b"), ""),
        ({"a": NOTHING, "b": JOB}, ("a",), ""),
        ({"a": NOTHING, "b": UNKNOWN}, ("a",), "scripted does not know what runs on b"),
        ({"a": NOTHING, "b": UNSURE}, ("a",), "scripted does not know what runs on b"),
        ({"a": NOTHING}, ("a",), "scripted does not know what runs on b"),
        (
            {"a": NOTHING, "b": StepFailure("no name")},
            ("a",),
            "scripted does not know what runs on b",
        ),
    ],
)
async def test_only_a_known_node_without_work_is_idle(
    bus: Bus, answers: dict[str, WorkloadAnswer], idle: tuple[str, ...], unknown: str
) -> None:
    """One that the workload system does not know may be one whose name is wrong."""
    found = await answered(bus, Systems(answers))
    assert found[0] == idle
    assert unknown in found[1]
    assert bool(unknown) is bool(found[1])


@pytest.mark.parametrize(
    ("first", "second", "busy"),
    [
        ({"a": JOB, "b": UNKNOWN}, None, ("a",)),
        ({"a": JOB, "b": UNSURE}, None, ("a",)),
        ({"a": JOB}, None, ("a",)),
        ({"a": PARTLY, "b": NOTHING}, None, ("a",)),
        ({"a": UNSURE, "b": NOTHING}, None, ()),
        ({"a": JOB, "b": JOB}, None, ("a", "b")),
        ({"a": UNKNOWN, "b": NOTHING}, {"a": JOB, "b": NOTHING}, ("a",)),
    ],
)
async def test_a_node_that_is_not_known_hides_no_work_of_another(
    bus: Bus,
    first: dict[str, WorkloadAnswer],
    second: dict[str, WorkloadAnswer] | None,
    busy: tuple[str, ...],
) -> None:
    """One `unknown` for the whole question made every node with a job an unknown one."""
    systems = [Systems(first), *([] if second is None else [Systems(second)])]
    assert (await asked(bus, *systems)).busy == busy


async def test_every_workload_system_of_a_pool_must_say_so(bus: Bus) -> None:
    """One that fails, or never says what runs, leaves no node idle."""
    nothing: dict[str, WorkloadAnswer] = {"a": NOTHING, "b": NOTHING}
    assert await answered(bus, Systems(nothing), Systems({"a": JOB, "b": NOTHING})) == (("b",), "")
    failed = await answered(bus, Systems(nothing), Systems(fails="slurmctld does not answer"))
    assert failed == ((), "slurmctld does not answer")
    silent = Systems(nothing, name="silent", reports_running=False)
    assert await answered(bus, silent) == (
        (),
        "silent does not say what runs on a node in service",
    )
    assert not hasattr(WebhookNotifier, "reports_running")


@pytest.mark.parametrize(
    ("running", "expected"),
    [
        ((), []),
        # a job on two nodes is one; those with the most work come first
        (
            (("4711", "bob"), ("1", "alice"), ("4711", "bob"), ("4712", "bob")),
            [("bob", ("4711", "4712"), 2), ("alice", ("1",), 1)],
        ),
        ((("worker", ""),), [("", ("worker",), 1)]),
        ([(str(each), "alice") for each in range(9)], [("alice", tuple("01234"), 9)]),
    ],
)
def test_work_is_named_by_its_owners(
    running: Sequence[tuple[str, str]], expected: list[tuple[str, tuple[str, ...], int]]
) -> None:
    """A confirmation says whose work it would end, in a few lines."""
    found = owned_work([RunningWork(id=name, owner=owner) for name, owner in running])
    assert [(each.owner, each.work, each.total) for each in found] == expected


async def test_owners_on_all_nodes_are_in_the_answer(bus: Bus) -> None:
    """Owners on one node are named also where another node is not known."""
    mine = NodeWorkload(drained=False, running=(RunningWork(id="1", owner="alice"),), total=1)
    found = await asked(bus, Systems({"a": mine, "b": UNKNOWN}))
    assert [each.owner for each in found.owners] == ["alice"]
    assert found.unknown


def test_owners_are_bounded() -> None:
    """A reply of the notifier has room for it, whatever a workload system names."""
    running = [RunningWork(id="x" * 1000, owner=f"{each} " + "y" * 1000) for each in range(99)]
    found = owned_work(running)
    assert len(found) == OWNERS_MAX
    assert len(encode(NodeWorkAnswer(owners=found))) < 20_000
