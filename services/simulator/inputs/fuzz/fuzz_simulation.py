"""One seed's life of a fleet: the real services, a simulated world, a campaign, and the checks."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from schemas.messages import encode
from schemas.operator_requests import ScaleRequest
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.topology import POOLS
from services.bus.topology_setup import set_up
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.pool_manager.service import build as build_pool_manager
from services.provisioner.service import build as build_provisioner
from services.runtime.process import Build
from services.settings.settings_file import parse_settings
from services.simulator.engine import virtual_time
from services.simulator.engine.agent_machines import AgentMachines
from services.simulator.engine.hardware_failures import MachineSpec
from services.simulator.engine.invariants import Invariants, ViolationError
from services.simulator.engine.scripted_agents import BEAT_SECONDS, BEAT_TTL_SECONDS, GPUS
from services.simulator.engine.simulated_cloud import SimulatedCloud
from services.simulator.engine.simulated_process import SimulatedProcess
from services.simulator.engine.simulated_workload import SimulatedWorkload
from services.simulator.engine.simulation_context import (
    CURRENT_SIMULATION,
    FLEET,
    SimulationContext,
)
from services.simulator.engine.supervised_service import SupervisedService
from services.simulator.inputs.fuzz.fault_injector import OPERATOR, FaultInjector
from services.simulator.inputs.fuzz.fuzz_campaign import Campaign, FleetShape

POOL: Final = "training"
BUILDS: Final[dict[str, Build]] = {
    "health-monitor": build_health_monitor,
    "pool-manager": build_pool_manager,
    "provisioner": build_provisioner,
    "notifier": build_notifier,
}
BEGIN_SECONDS_MAX: Final = 300.0
REST_SECONDS_MAX: Final = 1_800.0
"""Once nothing goes wrong any more, a fleet is at rest at the latest after this."""
STEADY_SECONDS: Final = 20.0
"""At rest is what stays so."""
LOOK_SECONDS: Final = 2.0
DRAIN_SECONDS: Final = 30
WINDOW_SECONDS: Final = 300
TAIL_LINES: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What came of a seed."""

    seed: str
    digest: str
    events: int
    seconds: float
    """Virtual."""
    violation: str = ""
    tail: tuple[str, ...] = ()
    made: int = 0
    """Machines ever made."""
    killed: int = 0
    """How often a service was killed or ended by itself."""


def simulate(seed: str, campaign: Campaign) -> SeedResult:
    """Live through a campaign; the same seed and campaign have the same outcome, to the byte."""
    return virtual_time.run(lambda: Simulation(seed, campaign).run())


class Simulation:
    """Everything of one run."""

    def __init__(self, seed: str, campaign: Campaign) -> None:
        """Put the world together; nothing moves yet."""
        self._seed = seed
        self._campaign = campaign
        self.simulation = SimulationContext(seed)
        CURRENT_SIMULATION.set(self.simulation)
        shape = campaign.shape
        self.simulation.skew_seconds = shape.skew_seconds
        self.cloud = SimulatedCloud(self.simulation, shape.idempotent, shape.list_lag_seconds)
        self.workload = SimulatedWorkload(self.simulation)
        self.machines = AgentMachines(self.simulation, lambda _: MachineSpec(gpu_count=GPUS))
        self.simulation.parts |= {"cloud": self.cloud, "workload": self.workload}
        self.checks = Invariants(self.simulation, self.cloud, self.workload, self.machines, POOL)
        self.checks.allowed = shape.max_unavailable
        self.checks.rate_max = shape.max_replacements
        self.checks.window_seconds = WINDOW_SECONDS
        self.checks.drain_seconds = DRAIN_SECONDS
        self.cloud.on_made = self._made
        self.cloud.on_ending = self._ending
        self.cloud.on_gone = self.machines.vanish
        if shape.reboots:
            self.cloud.on_rebooted = self.machines.reboot
        self.checks.spares = shape.spares
        settings = parse_settings("(simulation)", json.dumps(settings_of(shape)), {})
        self.services = [
            SupervisedService(
                self.simulation, name if number == 1 else f"{name}/{number}", build, settings
            )
            for name, build in BUILDS.items()
            for number in range(1, shape.replicas + 1)
        ]
        self.blows = FaultInjector(
            *(self.simulation, POOL, self.cloud, self.workload, self.machines),
            *(self.checks, self.services),
        )

    def _made(self, instance: Any) -> None:
        self.checks.made(instance)
        self.machines.appear(instance)

    def _ending(self, instance: Any) -> None:
        self.checks.ending(instance)
        self.machines.vanish(instance)

    async def run(self) -> SeedResult:
        """Live through it."""
        violation, about = "", tuple[str, ...]()
        try:
            await self._live()
        except ViolationError as error:
            violation, about = str(error), error.about
        self.simulation.server.close()
        tail = self.simulation.history.tail(TAIL_LINES, about) if violation else []
        return SeedResult(
            seed=self._seed,
            digest=self.simulation.history.digest,
            events=self.simulation.history.events,
            seconds=self.simulation.now(),
            violation=violation,
            tail=tuple(tail),
            made=self.cloud.made,
            killed=sum(each.starts - 1 for each in self.services),
        )

    async def _live(self) -> None:
        self.operator = self.blows.operator = SimulatedProcess(self.simulation, "operator")
        await set_up(self.operator.bus, self.simulation.clock, replicas=1)
        # The pool-manager would draw its own: this one is the same in every run.
        await self.operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
        for each in self.services:
            each.start()
        await self._rest(BEGIN_SECONDS_MAX, steady_seconds=0)
        begun = self.simulation.now()
        for blow in self._campaign.blows:
            await self._until(begun + blow.at)
            self.blows.strike(blow)
        await self._until(begun + self._campaign.seconds)
        self.blows.mend()
        await self._rest(REST_SECONDS_MAX, steady_seconds=STEADY_SECONDS)

    async def _until(self, at: float) -> None:
        while (left := at - self.simulation.now()) > 0:
            await asyncio.sleep(min(left, LOOK_SECONDS))
            self.checks.look()

    async def _rest(self, seconds_max: float, *, steady_seconds: float) -> None:
        until, since = self.simulation.now() + seconds_max, None
        while True:
            self.checks.look()
            self._clear_up()
            unrest = self.checks.unrest()
            now = self.simulation.now()
            if unrest:
                since = None
            elif since is None:
                since = now
            if since is not None and now - since >= steady_seconds:
                return
            if now > until:
                raise ViolationError(
                    f"not at rest {seconds_max:.0f} s after the last fault: {'; '.join(unrest)}"
                )
            await asyncio.sleep(LOOK_SECONDS)

    def _clear_up(self) -> None:
        """Do what people must do in the end: lift their cordons, and ask for new nodes again."""
        nodes = self.checks.waits_for_a_person()
        if nodes is not None:
            self.blows.ask("scale", ScaleRequest(nodes=nodes, by=OPERATOR))
        for name in self.checks.cordoned() & self.checks.left_cordoned.keys():
            self.blows.give_back(name)


def settings_of(shape: FleetShape) -> dict[str, Any]:
    """The configuration of a simulated fleet."""
    return {
        "fleet": FLEET,
        "providers": {
            "cloud": {"type": "services.simulator.engine.simulated_cloud:SimulatedProvider"}
        },
        "notifier": {"type": "services.simulator.engine.simulated_workload:SimulatedNotifier"},
        "agent": {
            "heartbeat_interval": f"{BEAT_SECONDS:.0f}s",
            "heartbeat_ttl": f"{BEAT_TTL_SECONDS}s",
        },
        "budget": {"max_replacements": "unlimited"},
        "pools": {
            POOL: {
                "provider": "cloud",
                "instance_type": "simulated",
                "gpu_count": GPUS,
                "min_nodes": shape.nodes,
                "max_nodes": shape.nodes + 3,
                "replace_order": shape.order,
                "budget": {
                    "max_unavailable": shape.max_unavailable,
                    "max_replacements": shape.max_replacements or "unlimited",
                    "window": f"{WINDOW_SECONDS}s",
                },
                "health": {
                    "lost_after": "30s",
                    "incident": {"hold": "60s"},
                    "remediation": {"type": shape.remediation},
                },
                "spares": shape.spares,
                "drain_timeout": f"{DRAIN_SECONDS}s",
                "launch_timeout": "90s",
            }
        },
    }
