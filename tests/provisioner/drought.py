"""A fleet in virtual time whose clouds have no capacity for an hour: the real services, for a test.

Three offerings at two providers; when each has capacity, and every call to it, stand here.
"""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from schemas.messages import encode
from schemas.pool_events import LaunchWaiting, pool_codec
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.topology import EVENTS, POOLS
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.pool_manager.service import build as build_pool_manager
from services.provisioner.provider_client.provider import Instance, ProvisionRequest
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.service import build as build_provisioner
from services.settings.settings_file import parse_settings
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.scripted_agents import BEAT_SECONDS, BEAT_TTL_SECONDS, GPUS
from services.simulator.engine.simulated_cloud import SimulatedCloud, SimulatedProvider
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    FLEET,
    SimulationContext,
)
from services.simulator.engine.supervised_service import SupervisedService

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
    """Nodes of which it was told that their launch waits."""

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
        """Its own alone."""
        mine = ZONES[self.name]
        return [each for each in await super().list() if each.zone in mine]


def settings(nodes: int, **pool: Any) -> dict[str, Any]:
    """The configuration of the fleet."""
    kind = {"type": "tests.provisioner.drought:DryProvider"}
    return {
        "fleet": FLEET,
        "providers": dict.fromkeys(ZONES, kind),
        "notifier": {"type": "services.simulator.engine.simulated_workload:SimulatedNotifier"},
        "agent": {
            "heartbeat_interval": f"{BEAT_SECONDS:.0f}s",
            "heartbeat_ttl": f"{BEAT_TTL_SECONDS}s",
        },
        "pools": {
            "training": {
                "instance_type": "simulated",
                "providers": [{"name": name, "zones": zones} for name, zones in ZONES.items()],
                "gpu_count": GPUS,
                "min_nodes": nodes,
                "max_nodes": nodes,
                **pool,
            }
        },
    }


async def live(drought: Drought, nodes: int, seconds: float, replicas: int, **pool: Any) -> None:
    """Let a fleet live for so long, with so many provisioners."""
    simulation = SimulationContext("drought")
    CURRENT_SIMULATION.set(simulation)
    cloud, agents = (
        SimulatedCloud(simulation, idempotent=True, list_lag_seconds=0.0),
        AgentMachines(simulation, lambda _: MachineSpec(gpu_count=GPUS)),
    )
    simulation.parts |= {
        "cloud": cloud,
        "workload": SimulatedWorkload(simulation),
        "drought": drought,
    }
    cloud.on_made, cloud.on_ending, cloud.on_gone = agents.appear, agents.vanish, agents.vanish

    def told(stream: str, stored: Stored) -> None:
        event = pool_codec.decode(stored.data) if stream == EVENTS.name else None
        if isinstance(event, LaunchWaiting):
            drought.waited.add(event.node)

    simulation.watchers.append(told)
    operator = SimulatedProcess(simulation, "operator")
    await set_up(operator.bus, simulation.clock, replicas=1)
    await operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
    given = parse_settings("(drought)", json.dumps(settings(nodes, **pool)), {})
    services = [
        SupervisedService(simulation, "health-monitor", build_health_monitor, given),
        SupervisedService(simulation, "pool-manager", build_pool_manager, given),
        SupervisedService(simulation, "notifier", build_notifier, given),
        *(
            SupervisedService(simulation, f"provisioner-{number}", build_provisioner, given)
            for number in range(replicas)
        ),
    ]
    for each in services:
        each.start()
    await asyncio.sleep(seconds)
    names = Counter(each.name for each in cloud.standing())
    assert max(names.values(), default=0) <= 1
    assert {each.name: each.defects for each in services if each.defects} == {}
    simulation.server.close()
