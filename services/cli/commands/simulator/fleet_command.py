"""`navarch simulator fleet`: simulated agents in real time, for load tests and demonstrations.

Without a bus it serves a fleet of its own from a temporary directory, and removes it afterwards.
With a bus it runs the agents of that fleet's instances, and scales the pool back to its former size
before they stop.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import msgspec
import uvloop

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_events import Cordoned, Fault, Lost, Verdict, node_codec
from schemas.node_records import NodeRecord
from schemas.operator_requests import ScaleRequest
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.pool_records import PoolRecord, pool_key
from schemas.settings import AgentSettings, NatsSettings, PoolSpec
from schemas.topology import EVENTS, NODES, POOLS
from services.bus.bucket_mirror import BucketView
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.cli import console
from services.cli.bus_client import user_options
from services.cli.commands.serve_command import temporary_fleet
from services.cli.fleet_discovery import find_bus, served_settings, settings_of
from services.primitives.errors import NavarchError
from services.simulator.engine.real_time_fleet import (
    AgentConnections,
    RealTimeContext,
    RealTimeFleet,
    RealTimeMachines,
)

OWN_PROVIDER: Final = "fake"
NODES_A_CONNECTION: Final = 50
CONNECTIONS_MAX: Final = 64
HEARTBEAT_CONNECTIONS: Final = 4
"""Further connections, which carry nothing but heartbeats."""
CONNECT_SECONDS_MAX: Final = 10.0
READY_SECONDS_MAX: Final = 60.0
REPORT_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.2
BOOT_SPREAD: Final = 5.0
"""The fastest machine boots so many times faster than the slowest."""
LEAVE_SECONDS_MIN: Final = 120.0
LEAVE_SECONDS_A_NODE: Final = 0.05
"""For the pool to shrink to its former size: so long for each node, and no less than that."""
FAULTS_KEPT_MAX: Final = 100_000
SECURED: Final = (
    "this fleet's bus asks for credentials, and yours are not those of the many nodes that this "
    "command plays: start the fleet with `navarch serve --open`"
)

_pools = decoder(PoolRecord)


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the command's options."""

    nodes: int
    nats_url: str = ""
    config: Path | None = None
    pool: str = ""
    faults_per_hour: float = 0.0
    boot_seconds: float = 15.0
    minutes: float = 0.0
    """0: until it is interrupted."""
    seed: str = "1"


class FleetSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the last line of the output."""

    nodes: int
    active: int
    seconds_to_active: float
    """From the request to the last node in service; -1: not all nodes came into service."""
    faults: int
    fatal: int
    replaced: int
    fault_to_cordon_ms_p50: float
    """From the fault that makes a node unhealthy to its cordon, including the budget's wait."""
    fault_to_cordon_ms_p99: float
    lost: int
    left: int
    """Instances beyond the pool's former size that still existed at the end."""


def run(options: FleetOptions) -> int:
    """Run until interrupted; exit code 1: not every node came into service."""
    try:
        summary = uvloop.run(_run(options))
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(msgspec.json.encode(summary).decode() + "\n")
    return 0 if summary.seconds_to_active >= 0 else 1


async def _run(options: FleetOptions) -> FleetSummary:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as ending:
        if options.nats_url or options.config or not options.nodes:
            nats = find_bus(options.nats_url, options.config)
            if not user_options(nats).may_create_consumers:
                raise NavarchError(SECURED)
            by_url = bool(options.nats_url)
            settings = settings_of(options.config) if by_url else served_settings(options.config)[0]
            agent = settings.agent
            types = {name: each.type for name, each in settings.providers.items()}
        else:
            types = {OWN_PROVIDER: OWN_PROVIDER}
            nats, agent, pool = await ending.enter_async_context(_serve_own_fleet(options.nodes))
            options = msgspec.structs.replace(options, pool=pool)
        count = min(max(options.nodes // NODES_A_CONNECTION, 1), CONNECTIONS_MAX)

        async def connected(number: int) -> list[NatsBus]:
            return [await ending.enter_async_context(_bus(nats)) for _ in range(number)]

        own, facts = await connected(1), await connected(count)
        beats = await connected(min(count, HEARTBEAT_CONNECTIONS))
        over = [AgentConnections(bus, beats[i % len(beats)]) for i, bus in enumerate(facts)]
        return await FleetRun(options, own[0], over, agent, stopping, types).run()


@asynccontextmanager
async def _serve_own_fleet(nodes: int) -> AsyncIterator[tuple[NatsSettings, AgentSettings, str]]:
    """Serve a fleet from a temporary directory."""
    async with temporary_fleet(
        "navarch-simulated-",
        lambda data: _configuration(nodes, data),
        is_open=True,  # one connection plays many nodes, which credentials forbid
        gateway=True,
    ) as serving:
        url, directory = serving.supervisor.url, serving.directory.parent
        console.write(f"a fleet of our own: the bus is {url}, its files are in {directory}")
        async with asyncio.timeout(READY_SECONDS_MAX):
            await serving.supervisor.ready()
        if serving.dashboard:
            console.write(f"its dashboard is {serving.dashboard}")
        if serving.port_remark:
            console.note(serving.port_remark)
        yield NatsSettings(url=url), serving.settings.agent, "simulated"


def _configuration(nodes: int, data: Path) -> str:
    return msgspec.json.encode(
        {
            "fleet": "simulated",
            "data_dir": str(data),
            "providers": {"cloud": {"type": "fake", "file": str(data / "cloud.db")}},
            "notifier": {"type": "noop"},
            "pools": {
                "simulated": {
                    "provider": "cloud",
                    "instance_type": "simulated-8gpu",
                    "gpu_count": 8,
                    "min_nodes": 0,
                    "max_nodes": nodes,
                    "drain_timeout": "10s",
                    "budget": {"max_replacements": "unlimited"},
                    # Simulated faults are independent: they have no common cause.
                    "health": {"incident": {"hold": "0s"}},
                }
            },
            "budget": {"max_replacements": "unlimited"},
        }
    ).decode()


@asynccontextmanager
async def _bus(nats: NatsSettings) -> AsyncIterator[NatsBus]:
    options = ConnectOptions(settings=nats, name="navarch-simulator")
    bus = await NatsBus.connect(options, seconds_max=CONNECT_SECONDS_MAX)
    try:
        yield bus
    finally:
        await bus.close()


def unplayable(spec: PoolSpec, nodes: int, types: Mapping[str, str]) -> str:
    """Return why a pool's agents cannot be simulated, and what to do; empty: they can."""
    if nodes and not spec.min_nodes <= nodes <= spec.max_nodes:
        bounds = f"{spec.min_nodes} to {spec.max_nodes} nodes (min_nodes, max_nodes)"
        return f"it has {bounds}: choose --nodes within, or change them"
    for name in [each.name for each in spec.providers] or [spec.provider]:
        if types.get(name, OWN_PROVIDER) != OWN_PROVIDER:
            return (
                f"its provider {name} is of type {types[name]}, whose machines have agents of "
                f"their own; play one whose provider is of type {OWN_PROVIDER}"
            )
    return ""


class FleetRun:
    """One run, from the request for nodes until the last of them is gone."""

    def __init__(
        self,
        options: FleetOptions,
        bus: NatsBus,
        connections: list[AgentConnections],
        agent: AgentSettings,
        stopping: asyncio.Event,
        types: Mapping[str, str],
    ) -> None:
        """Run agents over `connections` until `stopping`, and follow the fleet on `bus`.

        `types`: provider -> its type, where known.
        """
        self._order = options
        self._types = types
        self._bus = bus
        self._stopping = stopping
        simulation = RealTimeContext(options.seed, lambda _: None)
        self._defects = simulation.defects
        self._machines = RealTimeMachines(simulation, connections, agent)
        boots = simulation.chance("boots")
        low, high = options.boot_seconds / BOOT_SPREAD, options.boot_seconds
        self._machines.booting = lambda _: boots.uniform(low, high)
        self._fleet = RealTimeFleet(self._machines, self._bus, options.pool, options.seed)
        self._nodes = BucketView(self._bus, NODES, NodeRecord)
        self._faults: dict[str, float] = {}
        """Fault -> when it was stored."""
        self._unhealthy: dict[str, float] = {}
        """Node -> when the fault was stored that made it unhealthy, until it is cordoned."""
        self._cordons: list[float] = []
        self._replaced = self._lost = 0

    async def run(self) -> FleetSummary:
        """Scale up, run the agents, scale back."""
        pool, before = await self._pool()
        loops: list[Callable[[], Any]] = [self._nodes.run, self._fleet.follow, self._follow_events]
        tasks = [asyncio.create_task(each()) for each in loops]
        try:
            began = time.monotonic()
            if self._order.nodes:
                await self._scale(pool, self._order.nodes)
            wanted = self._order.nodes or before
            took = await self._until_active(pool, wanted, began)
            active = self._active(pool)
            tasks.append(asyncio.create_task(self._fleet.break_things(self._order.faults_per_hour)))
            await self._live(pool, wanted, began)
            left = await self._leave(pool, before) if self._order.nodes else 0
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._machines.close()
        return self._summary(wanted, active, took, left)

    async def _pool(self) -> tuple[str, int]:
        """The pool, and its desired size."""
        records: dict[str, PoolRecord] = {}
        for _ in range(int(READY_SECONDS_MAX / LOOK_SECONDS)):
            entries = await self._bus.entries(POOLS, pool_key("*"))
            records = {each.name: each for each in (_pools.decode(e.value) for e in entries)}
            if records:
                break
            await asyncio.sleep(LOOK_SECONDS)
        name = self._order.pool or (next(iter(records)) if len(records) == 1 else "")
        if name not in records:
            known = ", ".join(sorted(records)) or "none"
            raise NavarchError(f"name the pool with --pool; there are: {known}")
        if wrong := unplayable(records[name].spec, self._order.nodes, self._types):
            raise NavarchError(f"pool {name}: {wrong}")
        self._fleet.pool = name
        return name, records[name].desired

    async def _scale(self, pool: str, nodes: int) -> None:
        request = ScaleRequest(nodes=nodes, by="simulator")
        await self._bus.publish(subjects.pool_request(pool, "scale"), encode(request))

    def _active(self, pool: str) -> int:
        return sum(node.state == "active" for node in self._nodes.of(pool))

    async def _until_active(self, pool: str, wanted: int, began: float) -> float:
        """Seconds until all nodes are in service; -1: interrupted before."""
        printed = began
        while (active := self._active(pool)) < wanted:
            if await self._wait_stop(LOOK_SECONDS):
                return -1.0
            if time.monotonic() - printed > REPORT_SECONDS:
                printed = time.monotonic()
                console.write(f"{printed - began:6.1f} s: {active} of {wanted} nodes in service")
        took = time.monotonic() - began
        console.write(f"{took:6.1f} s: all {wanted} nodes in service")
        return round(took, 2)

    async def _live(self, pool: str, wanted: int, began: float) -> None:
        """Print the counts until interrupted, or until the time is up."""
        until = time.monotonic() + self._order.minutes * 60 if self._order.minutes else None
        while until is None or time.monotonic() < until:
            left = REPORT_SECONDS if until is None else until - time.monotonic()
            if await self._wait_stop(max(min(left, REPORT_SECONDS), LOOK_SECONDS)):
                return
            counts = self._fleet.counts
            console.write(
                f"{time.monotonic() - began:6.1f} s: {self._active(pool)} of {wanted} nodes in "
                f"service, {counts.faults} faults ({counts.fatal} fatal), {self._replaced} "
                f"replaced, {self._lost} lost"
            )

    async def _wait_stop(self, seconds: float) -> bool:
        if self._defects:
            raise NavarchError(f"a simulated agent has failed: {self._defects[0]}")
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _leave(self, pool: str, before: int) -> int:
        """Scale back to the former size; return how many nodes are left over."""
        console.write(f"stopping: the pool goes back to {before} nodes")
        self._stopping.clear()
        await self._scale(pool, before)
        seconds = max(LEAVE_SECONDS_MIN, LEAVE_SECONDS_A_NODE * len(self._machines.nodes))
        until = time.monotonic() + seconds
        while (left := len(self._machines.nodes) - before) > 0 and time.monotonic() < until:
            if await self._wait_stop(LOOK_SECONDS):
                break
        return max(left, 0)

    async def _follow_events(self) -> None:
        """Count events until cancelled."""
        async for stored in self._bus.follow(
            EVENTS.name, [subjects.NODE_EVENTS, subjects.POOL_EVENTS], "new"
        ):
            node = subjects.parse_node(stored.subject) is not None
            event = (node_codec if node else pool_codec).decode(stored.data)
            at = stored.time.timestamp()
            match event:
                case Fault() if len(self._faults) < FAULTS_KEPT_MAX:
                    self._faults[event.id] = at
                case Verdict(status="unhealthy") if event.fault in self._faults:
                    self._unhealthy[event.node] = self._faults.pop(event.fault)
                case Cordoned() if (since := self._unhealthy.pop(event.node, None)) is not None:
                    self._cordons.append((at - since) * 1_000)
                case NodeReplaced():
                    self._replaced += 1
                case Lost():
                    self._lost += 1
                case _:
                    pass

    def _summary(self, wanted: int, active: int, took: float, left: int) -> FleetSummary:
        cuts = quantiles(self._cordons, n=100) if len(self._cordons) > 1 else [0.0] * 99
        return FleetSummary(
            nodes=wanted,
            active=active,
            seconds_to_active=took,
            faults=self._fleet.counts.faults,
            fatal=self._fleet.counts.fatal,
            replaced=self._replaced,
            fault_to_cordon_ms_p50=round(cuts[49], 1),
            fault_to_cordon_ms_p99=round(cuts[98], 1),
            lost=self._lost,
            left=left,
        )
