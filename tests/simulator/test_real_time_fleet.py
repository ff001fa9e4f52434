"""Simulated agents in real time, against real services."""

from datetime import UTC, datetime, timedelta

import pytest

from schemas import subjects
from schemas.topology import HEARTBEATS
from services.bus.topology_setup import set_up
from services.primitives.errors import BusError
from services.simulator.engine import virtual_time
from services.simulator.engine.real_time_fleet import (
    AgentConnections,
    RealTimeContext,
    RealTimeProcess,
)
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulation_context import SimulationContext


def test_real_time_agents_use_the_machines_clock() -> None:
    """A simulated host's clock may be wrong; in real time it is this machine's clock."""
    now = RealTimeContext("1", lambda _: None).clock_of("node-1").now()
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_heartbeats_pass_though_other_messages_cannot() -> None:
    """They have a connection of their own."""

    async def play() -> None:
        simulation = SimulationContext("connections")
        facts, beats = (SimulatedProcess(simulation, each) for each in ("facts", "beats"))
        await set_up(beats.bus, simulation.clock, replicas=1)
        simulation.network.cut["facts"] = 1
        facts.update_connection()
        over = AgentConnections(facts.bus, beats.bus)
        agent = RealTimeProcess(simulation, "node-1", over).bus
        with pytest.raises(BusError):
            await agent.publish(subjects.telemetry("training", "node-1"), b"{}")
        await agent.put(HEARTBEATS, "training.node-1", b"{}", ttl_seconds=30)
        assert await beats.bus.get(HEARTBEATS, "training.node-1") is not None
        simulation.server.close()

    virtual_time.run(play)
