"""One seed's life of a fleet: the real services, a simulated world, a campaign, and the checks."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Final

from schemas.messages import encode
from schemas.records import FLEET_KEY, FleetRecord
from schemas.requests import ScaleRequest
from schemas.topology import POOLS
from services.bus.topology_setup import set_up
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.pool_manager.service import build as build_pool_manager
from services.provisioner.service import build as build_provisioner
from services.runtime.process import Build
from services.settings.settings_file import parse_settings
from services.simulator.engine import virtual_time
from services.simulator.engine.agent_machines import Machines
from services.simulator.engine.hardware_failures import Kind
from services.simulator.engine.invariants import Checks, ViolationError
from services.simulator.engine.scripted_agents import BEAT_SECONDS, BEAT_TTL_SECONDS, GPUS
from services.simulator.engine.simulated_cloud import Cloud
from services.simulator.engine.simulated_process import Life
from services.simulator.engine.simulated_workload import Workload
from services.simulator.engine.simulation_context import FLEET, WORLD, World
from services.simulator.engine.supervised_service import Supervised
from services.simulator.inputs.fuzz.fault_injector import SOMEBODY, Blows
from services.simulator.inputs.fuzz.fuzz_campaign import Campaign, Shape

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
class Outcome:
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


def simulate(seed: str, campaign: Campaign) -> Outcome:
    """Live through a campaign; the same seed and campaign have the same outcome, to the byte."""
    return virtual_time.run(lambda: Simulation(seed, campaign).run())


class Simulation:
    """Everything of one run."""

    def __init__(self, seed: str, campaign: Campaign) -> None:
        """Put the world together; nothing moves yet."""
        self._seed = seed
        self._campaign = campaign
        self.world = World(seed)
        WORLD.set(self.world)
        shape = campaign.shape
        self.world.skew_seconds = shape.skew_seconds
        self.cloud = Cloud(self.world, shape.idempotent, shape.list_lag_seconds)
        self.workload = Workload(self.world)
        self.machines = Machines(self.world, lambda _: Kind(gpu_count=GPUS))
        self.world.parts |= {"cloud": self.cloud, "workload": self.workload}
        self.checks = Checks(self.world, self.cloud, self.workload, self.machines, POOL)
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
            Supervised(self.world, name if number == 1 else f"{name}/{number}", build, settings)
            for name, build in BUILDS.items()
            for number in range(1, shape.replicas + 1)
        ]
        self.blows = Blows(
            *(self.world, POOL, self.cloud, self.workload, self.machines),
            *(self.checks, self.services),
        )

    def _made(self, instance: Any) -> None:
        self.checks.made(instance)
        self.machines.appear(instance)

    def _ending(self, instance: Any) -> None:
        self.checks.ending(instance)
        self.machines.vanish(instance)

    async def run(self) -> Outcome:
        """Live through it."""
        violation, about = "", tuple[str, ...]()
        try:
            await self._live()
        except ViolationError as error:
            violation, about = str(error), error.about
        self.world.server.close()
        tail = self.world.history.tail(TAIL_LINES, about) if violation else []
        return Outcome(
            seed=self._seed,
            digest=self.world.history.digest,
            events=self.world.history.events,
            seconds=self.world.now(),
            violation=violation,
            tail=tuple(tail),
            made=self.cloud.made,
            killed=sum(each.starts - 1 for each in self.services),
        )

    async def _live(self) -> None:
        self.operator = self.blows.operator = Life(self.world, "operator")
        await set_up(self.operator.bus, self.world.clock, replicas=1)
        # The pool-manager would draw its own: this one is the same in every run.
        await self.operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
        for each in self.services:
            each.start()
        await self._rest(BEGIN_SECONDS_MAX, steady_seconds=0)
        begun = self.world.now()
        for blow in self._campaign.blows:
            await self._until(begun + blow.at)
            self.blows.strike(blow)
        await self._until(begun + self._campaign.seconds)
        self.blows.mend()
        await self._rest(REST_SECONDS_MAX, steady_seconds=STEADY_SECONDS)

    async def _until(self, at: float) -> None:
        while (left := at - self.world.now()) > 0:
            await asyncio.sleep(min(left, LOOK_SECONDS))
            self.checks.look()

    async def _rest(self, seconds_max: float, *, steady_seconds: float) -> None:
        until, since = self.world.now() + seconds_max, None
        while True:
            self.checks.look()
            self._clear_up()
            unrest = self.checks.unrest()
            now = self.world.now()
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
            self.blows.ask("scale", ScaleRequest(nodes=nodes, by=SOMEBODY))
        for name in self.checks.cordoned() & self.checks.left_cordoned.keys():
            self.blows.give_back(name)


def settings_of(shape: Shape) -> dict[str, Any]:
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
