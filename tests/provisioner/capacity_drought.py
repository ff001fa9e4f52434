"""A fleet in virtual time whose clouds have no capacity for an hour: the real services, for a test.

Three offerings at two providers; the times when each has capacity, and every call to it, are
recorded here.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from schemas.pool_events import LaunchWaiting, pool_codec
from schemas.topology import EVENTS
from services.bus.port import Stored
from services.provisioner.provider_client.provider import Instance, ProvisionRequest
from services.provisioner.provider_client.provider_errors import ProviderError
from services.settings.settings_file import parse_settings
from services.simulator.engine.agent_machines import GPUS
from services.simulator.engine.fleet_settings import FAST_HEARTBEATS, fleet_settings
from services.simulator.engine.simulated_cloud import SimulatedProvider
from services.simulator.engine.simulated_fleet import FleetSetup, SimulatedFleet
from services.simulator.engine.simulation_context import CURRENT_SIMULATION, SimulationContext

ZONES = {"east": ("a", "b"), "west": ("c",)}
"""Provider -> its zones."""


@dataclass
class Drought:
    """When each zone has capacity, for how many, and who asked for it when."""

    begins: dict[str, float]
    ends: dict[str, float]
    room: dict[str, int] = field(default_factory=dict)
    """How many a zone has once it has any; missing: any number."""
    calls: dict[str, list[float]] = field(default_factory=dict)
    made: dict[str, list[float]] = field(default_factory=dict)
    waited: set[str] = field(default_factory=set)
    """Nodes whose launch was reported as waiting."""

    def ask(self, zone: str, now: float) -> None:
        """A launch asks; ProviderError where there is nothing."""
        self.calls.setdefault(zone, []).append(now)
        dry = self.begins[zone] <= now < self.ends[zone]
        if dry or len(self.made.get(zone, ())) >= self.room.get(zone, 1_000_000):
            raise ProviderError("CAPACITY", f"zone {zone} has none")
        self.made.setdefault(zone, []).append(now)

    def asked_while_dry(self, zone: str) -> int:
        """Calls that could not succeed."""
        return sum(self.begins[zone] <= at < self.ends[zone] for at in self.calls.get(zone, ()))


class DryProvider(SimulatedProvider):
    """The simulated cloud, asked only where there is capacity."""

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Make a machine where there is room."""
        simulation = CURRENT_SIMULATION.get()
        simulation.parts["drought"].ask(request.zone, simulation.now())
        return await super().provision(request)

    async def list(self) -> list[Instance]:
        """Return the instances in the zones of this provider alone."""
        mine = ZONES[self.name]
        return [each for each in await super().list() if each.zone in mine]


def settings(nodes: int, **pool: Any) -> dict[str, Any]:
    """Return the configuration of a fleet with so many nodes."""
    training = {
        "instance_type": "simulated",
        "providers": [{"name": name, "zones": zones} for name, zones in ZONES.items()],
        "gpu_count": GPUS,
        "min_nodes": nodes,
        "max_nodes": nodes,
        **pool,
    }
    provider = "tests.provisioner.capacity_drought:DryProvider"
    return fleet_settings({"training": training}, ZONES, provider=provider, agent=FAST_HEARTBEATS)


async def live(drought: Drought, nodes: int, seconds: float, replicas: int, **pool: Any) -> None:
    """Run a fleet for so long, with so many replicas of each service."""
    given = parse_settings("(drought)", json.dumps(settings(nodes, **pool)), {})
    fleet = SimulatedFleet(
        SimulationContext("drought"), FleetSetup(settings=given, replicas=replicas)
    )
    fleet.simulation.parts["drought"] = drought

    def note_waiting(stream: str, stored: Stored) -> None:
        event = pool_codec.decode(stored.data) if stream == EVENTS.name else None
        if isinstance(event, LaunchWaiting):
            drought.waited.add(event.node)

    async def run() -> None:
        await fleet.open()
        await fleet.start()
        await asyncio.sleep(seconds)

    fleet.simulation.watchers.append(note_waiting)
    assert await fleet.run(run()) is None
    names = Counter(each.name for each in fleet.cloud.instances())
    assert max(names.values(), default=0) <= 1
    assert fleet.defects == []
