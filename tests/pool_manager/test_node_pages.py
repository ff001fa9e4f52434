"""Pages of nodes fit in a message, however long their labels are, and leave none out."""

from datetime import UTC, datetime

import msgspec
import pytest

from schemas.fleet_queries import ListedNode, NodeView
from schemas.health_records import GpuHealth, HealthRecord
from schemas.messages import encode
from schemas.node_events import GpuIdentity
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.stream_specs import MESSAGE_BYTES_MAX
from schemas.topology import HEARTBEATS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.pool_manager.heartbeat_reader import HeartbeatTimes
from services.pool_manager.queries import node_view, page_of, pool_view
from services.primitives.clock import SystemClock
from tests.pool_manager.test_pool_planner import pool

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)

LABELS = {f"example.com/label-{number}": "x" * 60 for number in range(40)}
NAMES = [f"n-{number:04}" for number in range(1_200)]


def view(name: str, labels: dict[str, str]) -> ListedNode:
    """Return a node of a pool with labels."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="p5", region="r", labels=labels)
    record = NodeRecord(pool="training", node=name, launch=launch, hostname=f"host-{name}")
    return node_view(ListedNode, record, None, now=NOW, detailed=False)


@pytest.mark.parametrize("labels", [{}, LABELS])
@pytest.mark.parametrize("limit", [1_000, 100])
def test_every_node_is_in_one_page(labels: dict[str, str], limit: int) -> None:
    """Each node is listed with its hostname and labels."""
    every = [(f"training.{name}", view(name, labels)) for name in NAMES]
    found: list[NodeView] = []
    after, more = "", True
    while more:
        page = page_of(((key, each) for key, each in every if key > after), limit)
        assert len(msgspec.json.encode(page)) < MESSAGE_BYTES_MAX
        assert 0 < len(page.items) <= limit
        found += [msgspec.json.decode(each, type=NodeView) for each in page.items]
        after, more = page.next, bool(page.next)

    assert [each.id for each in found] == NAMES
    assert {each.hostname for each in found} == {f"host-{name}" for name in NAMES}
    assert all(each.labels == labels for each in found)


def test_there_may_be_none() -> None:
    """Then nothing follows."""
    assert page_of(iter(()), 10).next == ""


def test_a_silent_node_has_one_word_in_lists_and_counts() -> None:
    """The last verdict was given before the node's heartbeats stopped."""
    records = [
        NodeRecord(pool="training", node="a", state="active", health="healthy", lost=True),
        NodeRecord(pool="training", node="b", state="active", health="healthy"),
    ]
    listed = [node_view(ListedNode, each, None, now=NOW, detailed=False).health for each in records]
    counted = pool_view(pool(2), records, NOW)
    assert listed == ["unhealthy", "healthy"]
    assert (counted.unhealthy, counted.healthy) == (1, 1)


def test_every_gpu_has_its_identity_its_health_and_its_cordon() -> None:
    """The reason why the policy does not find a GPU healthy is empty for healthy ones."""
    gpus = tuple(
        GpuIdentity(
            index=each, uuid=f"GPU-{each}", serial=f"s{each}", pci="0000:3b:00", name="H100"
        )
        for each in (0, 3)
    )
    record = NodeRecord(pool="training", node="a", gpus=gpus, cordoned_gpus=(3,))
    affected = GpuHealth(
        index=3, status="unhealthy", action="reset_gpu", rule="xid", reason="XID 48", since=NOW
    )
    health = HealthRecord(pool="training", node="a", status="degraded", gpus=(affected,))
    good, bad = msgspec.to_builtins(
        node_view(NodeView, record, health, now=NOW, detailed=True).gpus
    )
    assert {key: value for key, value in good.items() if value != "" and key != "code"} == {
        "index": 0,
        "uuid": "GPU-0",
        "serial": "s0",
        "pci": "0000:3b:00",
        "name": "H100",
        "health": "healthy",
        "cordoned": False,
    }
    assert (bad["health"], bad["cordoned"], bad["reason"]) == ("unhealthy", True, "XID 48")
    assert bad["since"] == "2026-11-23T09:00:00.000Z"


async def test_heartbeats_that_cannot_be_read_are_not_known() -> None:
    """A long list reads them once in five seconds; a lost bucket hides no node."""
    server = MemoryServer(SystemClock())
    bus = MemoryBus(server, PerfectLink())
    beats = HeartbeatTimes(bus, SystemClock())
    assert (await beats.all(), await beats.of("training", "a")) == ({}, None)
    await set_up(bus, SystemClock(), replicas=1)
    record = HeartbeatRecord(pool="training", node="a", time=NOW)
    await bus.put(HEARTBEATS, node_key("training", "a"), encode(record))
    assert await beats.all() == {"training.a": NOW}
    assert await beats.of("training", "a") == NOW
    await bus.put(HEARTBEATS, node_key("training", "b"), encode(record))
    assert await beats.all() == {"training.a": NOW}
    await bus.close()
    server.close()
