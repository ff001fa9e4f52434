"""Nodes that no record names are warned of once each."""

from datetime import UTC, datetime

import pytest

from schemas.node_events import WorkRemains
from schemas.settings import FleetBudgetSpec
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.topology_setup import set_up
from services.pool_manager import unknown_nodes
from services.pool_manager.pool_store import Store
from services.pool_manager.unknown_nodes import UnknownNodes
from services.primitives.clock import SystemClock

AT = datetime(2026, 11, 30, tzinfo=UTC)


async def test_an_agent_that_is_early_makes_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen agents with three events each make sixteen; what is remembered is bounded."""
    server = MemoryServer(SystemClock())
    bus = MemoryBus(server, PerfectLink())
    await set_up(bus, SystemClock(), replicas=1)
    unknown = UnknownNodes(Store(bus, FleetBudgetSpec()))

    async def publish(node: int) -> None:
        about = {"pool": "gpu", "node": f"gpu-{node}"}
        await unknown.take(WorkRemains(id=f"e-{node}", time=AT, saga="s", total=1, **about))

    for _ in range(3):
        for node in range(16):
            await publish(node)
    assert len(caplog.records) == 16
    monkeypatch.setattr(unknown_nodes, "WARNED_MAX", 16)
    await publish(16)
    await publish(0)
    assert len(caplog.records) == 18
    await bus.close()
    server.close()
