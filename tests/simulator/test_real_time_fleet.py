"""Simulated agents in real time, against real services."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from schemas import subjects
from schemas.settings import AgentSettings
from schemas.topology import EVENTS, HEARTBEATS
from services.bus.topology_setup import set_up
from services.primitives.errors import BusError
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine import virtual_time
from services.simulator.engine.real_time_fleet import (
    AgentConnections,
    RealTimeContext,
    RealTimeMachines,
    RealTimeProcess,
)
from services.simulator.engine.simulation_context import SimulatedProcess, SimulationContext


def test_real_time_agents_use_the_machines_clock() -> None:
    """A simulated host's clock may be wrong; in real time it is this machine's clock."""
    now = RealTimeContext("1", lambda _: None).clock_of("node-1").now()
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_heartbeats_pass_though_other_messages_cannot() -> None:
    """Heartbeats have a connection of their own."""

    async def play() -> None:
        simulation = SimulationContext("connections")
        facts, beats = (SimulatedProcess(simulation, each) for each in ("facts", "beats"))
        await set_up(beats.bus, simulation.clock, replicas=1)
        simulation.network.cut["facts"] = 1
        facts.update_connection()
        over = AgentConnections(facts.bus, beats.bus)
        agent = RealTimeProcess(RealTimeContext("1", lambda _: None), "node-1", over).bus
        with pytest.raises(BusError):
            await agent.publish(subjects.telemetry("training", "node-1"), b"{}")
        await agent.put(HEARTBEATS, "training.node-1", b"{}", ttl_seconds=30)
        assert await beats.bus.get(HEARTBEATS, "training.node-1") is not None
        simulation.server.close()

    virtual_time.run(play)


def test_an_agent_registers_and_beats() -> None:
    """The connections have everything that agents use of a bus."""

    async def play() -> None:
        simulation, real = SimulationContext("agents"), RealTimeContext("1", lambda _: None)
        bus = SimulatedProcess(simulation, "fleet").bus
        await set_up(bus, simulation.clock, replicas=1)
        machines = RealTimeMachines(real, [AgentConnections(bus, bus)], AgentSettings())
        machines.booting = lambda _: 0.1
        machines.appear(Instance(name="node-1", provider_id="i-1", pool="training"))
        await asyncio.sleep(60)
        assert await bus.get(HEARTBEATS, "training.node-1") is not None
        facts = [subjects.parse_node(each.subject) for each in await bus.read(EVENTS.name, ">")]
        assert ["registered", "boot-checked"] == [each.fact for each in facts if each]
        assert real.defects == []
        await machines.close()
        simulation.server.close()

    virtual_time.run(play)


def test_a_part_of_an_agent_that_fails_is_reported() -> None:
    """Otherwise the fleet would only look well."""

    async def play() -> None:
        real = RealTimeContext("1", lambda _: None)
        bus = SimulatedProcess(SimulationContext("agents"), "fleet").bus
        agent = RealTimeProcess(real, "node-1", AgentConnections(bus, bus))

        async def fail() -> None:
            raise ValueError("no such reading")

        agent.spawn(fail())
        await asyncio.sleep(1)
        assert real.defects == ["node-1: ValueError: no such reading"]

    virtual_time.run(play)
