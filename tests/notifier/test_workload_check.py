"""`navarch workload check`: what the notifier sees and may do, and what it never touches."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord, node_key
from schemas.topology import NODES
from schemas.workload_checks import WorkloadCheck, WorkloadCheckRequest
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.notifier.workload.combined_notifier import CombinedNotifier
from services.notifier.workload.noop_notifier import NoopNotifier
from services.notifier.workload.pool_notifiers import PoolNotifiers
from services.notifier.workload.workload_notifier import (
    NodeReference,
    NodeWorkload,
    Notifier,
    RunningWork,
    StepFailure,
    WorkloadAnswer,
    WorkloadOrder,
)
from services.notifier.workload_endpoints import WorkloadCheckEndpoint
from services.primitives.clock import SystemClock

JOB = RunningWork(id="job 4711", owner="alice")


@dataclass(slots=True)
class ScriptedWorkload(NoopNotifier):
    """A workload system with one node, one job, and the rights that a test gives it."""

    refused: frozenset[str] = frozenset()
    orders: list[str] = field(default_factory=list)

    confirms_drains = True

    async def self_check(self) -> Sequence[WorkloadCheck]:
        if "connect" in self.refused:
            raise ConnectionRefusedError("slurmctld does not answer")
        return [WorkloadCheck(what="connect", detail="primary UP")]

    async def cordon(self, order: WorkloadOrder) -> None:
        if "cordon" in self.refused:
            raise StepFailure("Invalid user id", "INVALID", "run the notifier as SlurmUser")
        self.orders.append(f"cordon {order.node.node}")

    async def uncordon(self, order: WorkloadOrder) -> None:
        self.orders.append(f"uncordon {order.node.node}")

    async def workloads(self, nodes: Sequence[NodeReference]) -> Mapping[str, WorkloadAnswer]:
        return {each.node: NodeWorkload(drained=False, running=(JOB,), total=1) for each in nodes}


@pytest.fixture
async def bus() -> AsyncIterator[Bus]:
    """Yield a fleet of one free node, one in a saga and one cordoned."""
    server = MemoryServer(SystemClock())
    connected = MemoryBus(server, PerfectLink())
    await set_up(connected, SystemClock(), replicas=1)
    for record in (
        NodeRecord(pool="training", node="free", state="active"),
        NodeRecord(pool="training", node="leaving", state="active", saga="replace-leaving-1"),
        NodeRecord(pool="training", node="cordoned", state="active", cordoned=True),
    ):
        await connected.put(NODES, node_key(record.pool, record.node), encode(record))
    yield connected
    await connected.close()
    server.close()


async def checks(bus: Bus, notifier: Notifier, node: str | None = None) -> list[WorkloadCheck]:
    """Return the checks that the command shows."""
    endpoint = WorkloadCheckEndpoint(PoolNotifiers(notifier, {}, {}, bus), bus)
    async with asyncio.timeout(20):
        answer = await endpoint.check(WorkloadCheckRequest(pool="training", node=node))
    return list(answer.checks)


async def test_it_shows_what_runs_and_changes_nothing(bus: Bus) -> None:
    """The command only reads where --node is not given."""
    workload = ScriptedWorkload()
    found = await checks(bus, workload)
    assert [each.what for each in found] == ["connect", "cordoned", "free", "leaving"]
    assert found[1].detail == "1 running: job 4711 of alice"
    assert all(each.passed for each in found)
    assert workload.orders == []


async def test_named_node_is_cordoned_and_uncordoned(bus: Bus) -> None:
    """A right that is missing is named with its remedy; the node is uncordoned in any case."""
    workload = ScriptedWorkload()
    assert all(each.passed for each in await checks(bus, workload, "free"))
    assert workload.orders == ["cordon free", "uncordon free"]
    denied = ScriptedWorkload(refused=frozenset({"cordon"}))
    last = (await checks(bus, denied, "free"))[-1]
    assert (last.passed, last.detail) == (False, "Invalid user id")
    assert last.remedy == "run the notifier as SlurmUser"
    assert denied.orders == ["uncordon free"]


@pytest.mark.parametrize("node", ["leaving", "cordoned", "unknown"])
async def test_node_that_navarch_works_on_is_not_touched(bus: Bus, node: str) -> None:
    """Uncordoning a node in the middle of its replacement would give it new work."""
    workload = ScriptedWorkload()
    last = (await checks(bus, workload, node))[-1]
    assert not last.passed
    assert last.remedy
    assert workload.orders == []


async def test_nothing_is_tried_after_a_connection_that_failed(bus: Bus) -> None:
    """The first failure is the answer; the rest would only repeat it."""
    workload = ScriptedWorkload(refused=frozenset({"connect"}))
    found = await checks(bus, workload, "free")
    assert [(each.what, each.passed) for each in found] == [("connect", False)]
    assert found[0].detail == "slurmctld does not answer"
    assert workload.orders == []


async def test_noop_says_that_nothing_confirms_its_drains(bus: Bus) -> None:
    """A fleet without a workload system passes, and the answer says what that means."""
    notifier = NoopNotifier(options=NoopNotifier.Options(), clock=SystemClock())
    found = await checks(bus, notifier)
    assert len(found) == 1
    assert "a drain ends when it is ordered" in found[0].detail


class OneWayWorkload(ScriptedWorkload):
    """A workload system in which a cordon cannot be undone."""

    async def check_order(self, order: WorkloadOrder) -> Sequence[WorkloadCheck]:
        return [WorkloadCheck(what=f"find {order.node.node}")]


async def test_a_cordon_that_cannot_be_undone_is_not_tried(bus: Bus) -> None:
    """The cordon is left out also beside one that can be undone, in a pool with two systems."""
    one_way, other = OneWayWorkload(), ScriptedWorkload()
    found = await checks(bus, CombinedNotifier([one_way, other]), "free")
    assert [each.what for each in found[-2:]] == ["find free", "cordon and uncordon free"]
    assert (one_way.orders, other.orders) == ([], ["cordon free", "uncordon free"])
