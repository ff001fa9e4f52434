"""The store was restored from a backup: how that is recognised, and what is held."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas.breaker_state import Breaker
from schemas.instance_records import InstanceRecord, InstanceState
from schemas.messages import encode
from schemas.node_records import HeartbeatRecord, NodeRecord
from schemas.pool_records import PoolRecord
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec, FleetBudgetSpec, PoolSpec
from schemas.topology import HEARTBEATS, INSTANCES
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.pool_manager.planner.disruption_budget import allowance
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_planner import plan
from services.pool_manager.planner.pool_snapshot import PoolSnapshot
from services.pool_manager.planner.safety.restored_store import has_ended_since, held, is_behind
from services.pool_manager.pool_store import Store
from services.pool_manager.restore_detector import RestoreDetector
from services.primitives.clock import SystemClock

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
BEFORE = NOW - timedelta(hours=1)
UNHEALTHY = NodeRecord(
    pool="training",
    node="n1",
    state="active",
    health="unhealthy",
    health_action="replace",
    health_at=BEFORE,
    admitted_at=BEFORE,
)


def node(**changes: object) -> NodeRecord:
    """Return a node in service."""
    found = NodeRecord(pool="training", node="n1", state="active", admitted_at=BEFORE, sagas=1)
    return msgspec.structs.replace(found, **changes)


def beat(admitted_at: datetime | None = BEFORE, sagas: int = 1) -> HeartbeatRecord:
    """Return what the node's agent has read."""
    return HeartbeatRecord(
        pool="training", node="n1", time=NOW, admitted_at=admitted_at, sagas=sagas
    )


@pytest.mark.parametrize(
    ("record", "heard", "behind"),
    [
        pytest.param(node(), beat(), False, id="the same"),
        pytest.param(node(sagas=2), beat(), False, id="the agent has not read it yet"),
        pytest.param(node(), beat(sagas=2), True, id="a saga has ended since the backup"),
        pytest.param(node(admitted_at=None), beat(), True, id="admitted since the backup"),
        pytest.param(None, beat(), True, id="launched since the backup"),
        pytest.param(None, beat(None, 0), False, id="never admitted"),
        pytest.param(node(admitted_at=NOW), beat(sagas=9), False, id="adopted meanwhile"),
        pytest.param(node(state="terminated"), beat(sagas=9), False, id="on its way out"),
    ],
)
def test_what_an_agent_has_read_shows_that_its_record_is_old(
    record: NodeRecord | None, heard: HeartbeatRecord, *, behind: bool
) -> None:
    """Only what the agent read after the backup."""
    assert is_behind(record, heard) is behind


@pytest.mark.parametrize(
    ("state", "terminated_at", "forgotten"),
    [
        ("terminated", NOW, False),
        ("terminated", BEFORE - timedelta(days=1), True),  # an earlier machine of the name
        ("running", None, True),
    ],
)
async def test_a_node_that_left_while_nodes_was_lost_is_not_forgotten(
    state: InstanceState, terminated_at: datetime | None, forgotten: bool
) -> None:
    """The node is not recorded again; its last heartbeat outlives it, and nothing was restored."""
    bus = MemoryBus(MemoryServer(SystemClock()), PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    launch = LaunchSpec(fleet="f", provider="p", instance_type="t")
    instance = InstanceRecord(
        pool="training",
        instance="n1",
        state=state,
        provider="p",
        token="t1",
        launch=launch,
        saga="scale-up-n1",
        intended_at=NOW,
        terminated_at=terminated_at,
    )
    await bus.put(HEARTBEATS, "training.n1", encode(beat()))
    await bus.put(INSTANCES, "training.n1", encode(instance))
    detector = RestoreDetector(bus, SystemClock(), Store(bus, FleetBudgetSpec()), 1.0)
    assert bool(await detector.forgotten_nodes()) is forgotten


@pytest.mark.parametrize(
    ("heard", "ended"),
    [(beat(sagas=2), True), (beat(sagas=1), False), (beat(NOW, 9), False), (None, False)],
)
def test_a_saga_that_ended_since_the_backup(heard: HeartbeatRecord | None, *, ended: bool) -> None:
    """The saga's number is among those that the agent has read to have ended."""
    assert has_ended_since("replace-n1-2", node(), heard) is ended


@pytest.mark.parametrize("most", [3, "unlimited"])
def test_nothing_is_replaced_until_an_operator_closes_the_breaker(most: int | str) -> None:
    """Neither on a verdict that may be outdated, nor on a rate that has forgotten what began."""
    spec = PoolSpec(
        provider="p",
        instance_type="t",
        min_nodes=2,
        max_nodes=9,
        budget=BudgetSpec(max_replacements=most),
    )
    record = PoolRecord(name="training", spec=spec, desired=2)
    nodes = Nodes([UNHEALTHY, node(node="n2")])
    snapshot = PoolSnapshot(fleet="f", record=record, nodes=nodes)
    assert plan(snapshot, NOW).start

    after = held(snapshot, NOW)

    assert (after.breaker.state, after.breaker.cause, after.breaker.forced) == (
        *("open", "restored"),
        True,
    )
    assert len(after.pending_events) == 1
    assert "navarch breaker close training" in after.breaker.reason
    snapshot = PoolSnapshot(fleet="f", record=after, nodes=nodes)
    assert not plan(snapshot, NOW).start
    assert held(snapshot, NOW) is after
    closed = msgspec.structs.replace(after, breaker=Breaker())
    assert bool(allowance(closed, nodes, None, NOW).refusal(cordoned=False)) is (most == 3)
