"""One seed's life of a fleet: the real services, a simulated world, a campaign, and the checks."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from schemas import subjects
from schemas.messages import encode
from schemas.records import FLEET_KEY, FleetRecord
from schemas.requests import DrainRequest, NodeRequest, Request, ScaleRequest
from schemas.topology import POOLS
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.pool_manager.service import build as build_pool_manager
from services.provisioner.service import build as build_provisioner
from services.runtime.configuration import parse_settings
from services.runtime.errors import BusError
from services.runtime.process import Build
from services.runtime.topology import set_up
from services.simulator import virtual
from services.simulator.agents import BEAT_SECONDS, BEAT_TTL_SECONDS, GPUS, Agents, Node
from services.simulator.campaign import EVERYBODY, Blow, Campaign, Shape
from services.simulator.checks import Checks, ViolationError
from services.simulator.cloud import Cloud, Trouble
from services.simulator.member import Life
from services.simulator.running import Supervised
from services.simulator.workload import Workload
from services.simulator.world import FLEET, WORLD, World

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
    return virtual.run(lambda: Simulation(seed, campaign).run())


class Simulation:
    """Everything of one run."""

    def __init__(self, seed: str, campaign: Campaign) -> None:
        """Put the world together; nothing moves yet."""
        self._seed = seed
        self._campaign = campaign
        self.world = World(seed)
        WORLD.set(self.world)
        shape = campaign.shape
        self.cloud = Cloud(self.world, shape.idempotent, shape.list_lag_seconds)
        self.workload = Workload(self.world)
        self.agents = Agents(self.world)
        self.world.parts |= {"cloud": self.cloud, "workload": self.workload}
        self.checks = Checks(self.world, self.cloud, self.workload, self.agents, POOL)
        self.checks.allowed = shape.max_unavailable
        self.checks.rate_max = shape.max_replacements
        self.checks.window_seconds = WINDOW_SECONDS
        self.checks.drain_seconds = DRAIN_SECONDS
        self.cloud.on_made = self._made
        self.cloud.on_ending = self._ending
        self.cloud.on_gone = self.agents.vanish
        self._chance = self.world.chance("targets")
        settings = parse_settings("(simulation)", json.dumps(settings_of(shape)), {})
        self.services = [
            Supervised(self.world, name if number == 1 else f"{name}/{number}", build, settings)
            for name, build in BUILDS.items()
            for number in range(1, shape.replicas + 1)
        ]
        self._later: set[asyncio.TimerHandle] = set()

    def _made(self, instance: Any) -> None:
        self.checks.made(instance)
        self.agents.appear(instance)

    def _ending(self, instance: Any) -> None:
        self.checks.ending(instance)
        self.agents.vanish(instance)

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
        self.operator = Life(self.world, "operator")
        await set_up(self.operator.bus, self.world.clock, replicas=1)
        # The pool-manager would draw its own: this one is the same in every run.
        await self.operator.bus.create(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
        for each in self.services:
            each.start()
        await self._rest(BEGIN_SECONDS_MAX, steady_seconds=0)
        begun = self.world.now()
        for blow in self._campaign.blows:
            await self._until(begun + blow.at)
            self.world.note(f"campaign: {blow}")
            self._strike(blow)
        await self._until(begun + self._campaign.seconds)
        self._mend()
        await self._rest(REST_SECONDS_MAX, steady_seconds=STEADY_SECONDS)

    async def _until(self, at: float) -> None:
        while (left := at - self.world.now()) > 0:
            await asyncio.sleep(min(left, LOOK_SECONDS))
            self._look()

    def _look(self) -> None:
        if self.checks.broken is not None:
            raise self.checks.broken

    async def _rest(self, seconds_max: float, *, steady_seconds: float) -> None:
        until, since = self.world.now() + seconds_max, None
        while True:
            self._look()
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
        """Do what whoever asked for a replacement that could not be must do: lift its cordon."""
        for name in list(self.checks.left_cordoned):
            del self.checks.left_cordoned[name]
            self._ask("uncordon", NodeRequest(node=name, by="somebody"))

    # --- blows --------------------------------------------------------------------------------

    def _strike(self, blow: Blow) -> None:
        match blow.kind:
            case "fault" | "mild-fault" | "power-off" | "vanish" | "hang":
                node = self._some_node()
                if node is not None:
                    self._strike_node(blow, node)
            case "kill" | "kill-after-effects":
                self._strike_service(blow)
            case "cut" | "lost-requests" | "lost-answers" | "lost-acks" | "slow":
                self._strike_links(blow)
            case "launch-fails" | "no-capacity" | "terminate-fails" | "list-fails":
                self._strike_cloud(blow)
            case "stillborn":
                self.agents.stillborn += 1
            case "workload-away" | "endless-drain":
                self._strike_workload(blow)
            case "scale" | "replace":
                self._wish(blow)

    def _strike_workload(self, blow: Blow) -> None:
        until = self.world.now() + blow.seconds
        if blow.kind == "workload-away":
            self.workload.away_until = until
        else:
            self.workload.endless_until = until

    def _wish(self, blow: Blow) -> None:
        """Ask what a person asks."""
        if blow.kind == "scale":
            self._ask("scale", ScaleRequest(nodes=blow.number, by="somebody"))
        elif (node := self._some_node()) is not None:
            self._ask("replace", DrainRequest(node=node.name, by="somebody"))

    def _some_node(self) -> Node | None:
        serving = self.agents.serving()
        return self._chance.choice(serving) if serving else None

    def _strike_node(self, blow: Blow, node: Node) -> None:
        match blow.kind:
            case "power-off":
                self.agents.power_off(node)
            case "vanish":
                self.world.note(f"cloud loses {node.name}")
                node.broken = True
                self.cloud.vanish(node.instance.provider_id)
            case "hang":
                self.agents.hang(node, blow.seconds)
            case _:
                self.agents.fault(node, blow.number)

    def _strike_service(self, blow: Blow) -> None:
        struck = [each for each in self.services if each.name.split("/")[0] == blow.target]
        service = self._chance.choice(struck)
        if blow.kind == "kill":
            service.crash()
            self._in(blow.seconds, service.start)
        elif service.life is not None and not service.life.dead:
            life = service.life
            life.dies_after = life.effects + blow.number
            life.died = lambda: self._in(blow.seconds, service.start)

    def _strike_links(self, blow: Blow) -> None:
        weather = self.world.weather
        names = self._members(blow.target)
        if blow.kind == "cut":
            key = EVERYBODY if blow.target == EVERYBODY else names[0]
            weather.cut[key] = weather.cut.get(key, 0) + 1
            self._connections()
            self._in(blow.seconds, lambda: self._join(key))
            return
        table = {
            "lost-requests": weather.lost_requests,
            "lost-answers": weather.lost_answers,
            "lost-acks": weather.lost_acks,
            "slow": weather.slow,
        }[blow.kind]
        for name in names:
            table[name] = blow.share
            self._in(blow.seconds, partial(table.pop, name, None))

    def _members(self, target: str) -> list[str]:
        return [
            each.name
            for each in self.services
            if target in (EVERYBODY, each.name, each.name.split("/")[0])
        ]

    def _join(self, key: str) -> None:
        cut = self.world.weather.cut
        if key in cut:
            cut[key] -= 1
            if cut[key] <= 0:
                del cut[key]
            self.world.note(f"connection of {key} is back")
            self._connections()

    def _connections(self) -> None:
        """Tell every connection whether it stands."""
        lives = [each.life for each in self.services if each.life is not None]
        lives += [node.life for node in self.agents.nodes.values()]
        for life in lives:
            if not life.dead:
                life.connection_changed()

    def _strike_cloud(self, blow: Blow) -> None:
        how: Any = blow.how or "before"
        kind: Any = blow.target or "TRANSIENT"
        match blow.kind:
            case "no-capacity":
                self.cloud.order(Trouble("provision", "CAPACITY"), blow.seconds)
            case "launch-fails":
                self.cloud.order(Trouble("provision", kind, how), 0)
            case "terminate-fails":
                self.cloud.order(Trouble("terminate", "TRANSIENT", how), 0)
            case _:
                self.cloud.order(Trouble("list", "TRANSIENT", how), blow.seconds)

    def _ask(self, verb: str, request: Request) -> None:
        async def ask() -> None:
            try:
                await self.operator.bus.publish(subjects.pool_request(POOL, verb), encode(request))
            except BusError as error:
                self.world.note(f"nobody hears {verb}: {error}")

        self.operator.spawn(ask())

    def _in(self, seconds: float, what: Callable[[], Any]) -> None:
        handle = asyncio.get_running_loop().call_later(seconds, what)
        self._later.add(handle)

    def _mend(self) -> None:
        """Nothing goes wrong any more."""
        self.world.note("nothing goes wrong any more")
        self.world.weather.clear()
        self._connections()
        self.cloud.troubles.clear()
        self.agents.stillborn = 0
        self.workload.away_until = self.workload.endless_until = 0.0
        for each in self.services:
            if each.life is not None:
                each.life.dies_after = None
            each.start()


def settings_of(shape: Shape) -> dict[str, Any]:
    """The configuration of a simulated fleet."""
    return {
        "fleet": FLEET,
        "providers": {"cloud": {"type": "services.simulator.cloud:SimulatedProvider"}},
        "notifier": {"type": "services.simulator.workload:SimulatedNotifier"},
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
                "drain_timeout": f"{DRAIN_SECONDS}s",
                "launch_timeout": "90s",
            }
        },
    }
