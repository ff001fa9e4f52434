"""Agents of simulated machines: what a node publishes.

Like real agents they lose no fact: what the bus does not take now is published again until it does,
in order.
"""

import asyncio
from typing import Any, Final

from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import NodeEvent
from schemas.node_records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS
from services.primitives.errors import BusError
from services.provisioner.provider_client.provider import Instance
from services.simulator.engine.simulated_machine import SimulatedMachine
from services.simulator.engine.simulation_context import SimulationContext

AGAIN_SECONDS: Final = 0.5
BEAT_SECONDS: Final = 3.0
BEAT_TTL_SECONDS: Final = 9
HUNG_SECONDS: Final = 1.0
"""How often an agent that hangs looks whether it still does."""
BOOT_SECONDS: Final = (3.0, 15.0)
GPUS: Final = 8


class ScriptedAgents:
    """Every agent of the fleet: the half of `AgentMachines` that speaks."""

    def __init__(self, simulation: SimulationContext) -> None:
        """Speak in `simulation`."""
        self._simulation = simulation
        self._chance = simulation.chance("agents")
        self.nodes: dict[str, SimulatedMachine] = {}
        """Provider ID -> node."""
        self._by_name: dict[str, SimulatedMachine] = {}
        self.never_boot = 0
        """So many machines to come never boot."""
        self.beat_seconds = BEAT_SECONDS
        self.beat_ttl_seconds = BEAT_TTL_SECONDS

    def vanish(self, instance: Instance) -> None:
        """A machine is ended: its agent says nothing more."""
        node = self.nodes.pop(instance.provider_id, None)
        if node is not None:
            node.process.crash()
            if self._by_name.get(node.name) is node:
                del self._by_name[node.name]

    def serving(self) -> list[SimulatedMachine]:
        """Nodes whose boot check has passed and that are not known to be broken, oldest first."""
        return [each for each in self.nodes.values() if each.ready and not each.broken]

    def named(self, name: str) -> SimulatedMachine | None:
        """The node of a name."""
        return self._by_name.get(name)

    def names(self) -> list[str]:
        """Every node that has a machine, oldest first."""
        return [each.name for each in self.nodes.values()]

    # --- what a node says ---------------------------------------------------------------------

    def _about(self, node: SimulatedMachine) -> dict[str, Any]:
        now = self._simulation.clock_of(node.name).now()
        return {"time": now, "pool": node.instance.pool, "node": node.name}

    def _begin_to_beat(self, node: SimulatedMachine) -> None:
        """Its agent is up."""
        node.process.spawn(self._beat_for_ever(node))

    async def _beat_for_ever(self, node: SimulatedMachine) -> None:
        key = node_key(node.instance.pool, node.name)
        while True:
            await self._awake(node)
            beat = HeartbeatRecord(instance=node.name, **self._about(node))
            try:
                ttl = self.beat_ttl_seconds
                await node.process.bus.put(HEARTBEATS, key, encode(beat), ttl_seconds=ttl)
                node.last_heartbeat_at = self._simulation.now()
            except BusError:
                pass  # the next beat says the same
            await asyncio.sleep(self.beat_seconds)

    async def _awake(self, node: SimulatedMachine) -> None:
        while (left := node.hung_until - self._simulation.now()) > 0:  # noqa: ASYNC110 - a moment
            await asyncio.sleep(min(left, HUNG_SECONDS))

    async def _say(self, node: SimulatedMachine, event: NodeEvent) -> None:
        subject = event_subject(event)
        while True:
            await self._awake(node)
            try:
                await node.process.bus.publish(subject, encode(event), msg_id=event.id)
            except BusError:
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return

    # --- what happens to a node ---------------------------------------------------------------

    def hang(self, node: SimulatedMachine, seconds: float) -> None:
        """A node says nothing for a while."""
        self._simulation.note(f"{node.name} says nothing for {seconds:.0f} s")
        node.hung_until = self._simulation.now() + seconds

    def power_off(self, node: SimulatedMachine) -> None:
        """A machine is powered off; its instance still exists."""
        self._simulation.note(f"{node.name} is dead")
        node.broken = node.powered_off = True
        node.process.crash()
