"""Real services over a real nats-server, and agents that only publish what real ones would."""

import asyncio
import json
import os
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, BootChecked, GpuIdentity, NodeEvent, Registered
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.settings import NatsSettings
from schemas.topology import HEARTBEATS, NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError
from tests.support.cluster import Cluster

SERVICES: Final = ("pool_manager", "health_monitor", "provisioner", "notifier")
POOL: Final = "training"
HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT_TTL_SECONDS: Final = 30
GPUS: Final = 8
POLL_SECONDS: Final = 0.2
SETTLED_SECONDS_MAX: Final = 900.0

_decode_node = decoder(NodeRecord)


class ScriptedAgents:
    """Runs one agent for each instance of the `fake` provider."""

    def __init__(self, bus: NatsBus, provider: Path) -> None:
        """Read the instances from the provider's file."""
        self._bus = bus
        self._provider = provider
        self._agents: dict[str, asyncio.Task[None]] = {}

    def instances(self) -> set[str]:
        """Names of the instances that exist at the provider."""
        if not self._provider.exists():
            return set()
        with closing(sqlite3.connect(self._provider)) as database, suppress(sqlite3.Error):
            return {name for (name,) in database.execute("SELECT name FROM made")}
        return set()

    async def run(self) -> None:
        """Start an agent for each new instance and stop those whose instance is gone, forever."""
        while True:
            names = self.instances()
            for name in names - set(self._agents):
                self._agents[name] = asyncio.create_task(self._agent(name))
            for name in set(self._agents) - names:
                self._agents.pop(name).cancel()
            await asyncio.sleep(POLL_SECONDS)

    async def _agent(self, node: str) -> None:
        about: dict[str, Any] = {"time": datetime.now(UTC), "pool": POOL, "node": node}
        boot = f"boot-{node}"
        gpus = tuple(GpuIdentity(index=i, uuid=f"GPU-{node}-{i}") for i in range(GPUS))
        await self._publish(
            Registered(id=f"{node}.reg", instance=node, boot_id=boot, gpus=gpus, **about)
        )
        await self._publish(BootChecked(id=f"{node}.boot", ok=True, boot_id=boot, **about))
        key = node_key(POOL, node)
        while True:
            beat = HeartbeatRecord(pool=POOL, node=node, instance=node, time=datetime.now(UTC))
            with suppress(BusError):
                await self._bus.put(
                    HEARTBEATS, key, encode(beat), ttl_seconds=HEARTBEAT_TTL_SECONDS
                )
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _publish(self, event: NodeEvent) -> None:
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        while True:
            with suppress(BusError):
                await self._bus.publish(subject, encode(event), msg_id=event.id)
                return
            await asyncio.sleep(1)


def remove_instance(provider: Path, node: str) -> None:
    """Remove an instance at the provider, as dead hardware does."""
    with closing(sqlite3.connect(provider)) as database, database:
        database.execute("DELETE FROM made WHERE name = ?", (node,))


@dataclass(frozen=True, slots=True)
class ScriptedFleet:
    """Holds the parts of a fleet that runs."""

    servers: tuple[EmbeddedServer, ...]
    bus: NatsBus
    agents: ScriptedAgents
    provider: Path
    services: dict[str, int]
    """Process ID of each service."""

    @property
    def server(self) -> EmbeddedServer:
        """Return the only server, or the first of three."""
        return self.servers[0]

    async def active_nodes(self) -> dict[str, NodeRecord]:
        """Nodes in service whose agent is heard, by name."""
        with suppress(BusError):
            entries = await self.bus.entries(NODES, f"{POOL}.>")
            found: list[NodeRecord] = [_decode_node.decode(each.value) for each in entries]
            return {each.node: each for each in found if each.state == "active" and not each.lost}
        return {}

    async def wait_for_nodes(self, count: int) -> float:
        """Wait until so many nodes are in service; return the seconds that it took."""
        start = time.monotonic()
        async with asyncio.timeout(SETTLED_SECONDS_MAX):
            while len(await self.active_nodes()) != count:  # noqa: ASYNC110 - records are polled
                await asyncio.sleep(POLL_SECONDS)
        return time.monotonic() - start


@asynccontextmanager
async def _started_servers(
    directory: Path, count: int
) -> AsyncIterator[tuple[EmbeddedServer, ...]]:
    """Start one nats-server, or several that are a cluster."""
    if count > 1:
        async with Cluster(directory, count) as cluster:
            yield tuple(cluster.servers)
        return
    server = EmbeddedServer(directory)
    await server.start()
    try:
        yield (server,)
    finally:
        await server.stop()


@asynccontextmanager
async def running_fleet(
    directory: Path,
    pool: dict[str, Any],
    *,
    ping_seconds: int = 10,
    servers: int = 1,
    **settings: Any,
) -> AsyncIterator[ScriptedFleet]:
    """Start nats-server, the services and the agents of one pool, in a directory."""
    provider = directory / "provider.json"
    configuration = {
        "fleet": "bench",
        "data_dir": str(directory / "data"),
        "providers": {"fake": {"file": str(provider)}},
        "pools": {
            POOL: {"provider": "fake", "instance_type": "simulated", "gpu_count": GPUS} | pool
        },
        "notifier": {"type": "noop"},
        "nats": {"replicas": servers},
    } | settings
    config = directory / "navarch.yaml"
    config.write_text(json.dumps(configuration), "utf-8")
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(_started_servers(directory / "nats", servers))
        url = ",".join(each.url for each in started)
        options = ConnectOptions(
            settings=NatsSettings(url=url, replicas=servers),
            name="bench",
            ping_seconds=ping_seconds,
        )
        bus = await NatsBus.connect(options)
        stack.push_async_callback(bus.close)
        await set_up(bus, SystemClock(), replicas=servers)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")} | {
            "NAVARCH_NATS_URL": url,
            "NAVARCH_CONFIG": str(config),
        }
        services: dict[str, int] = {}
        for name in SERVICES:
            with (directory / f"{name}.log").open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", f"services.{name}"),
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            services[name] = process.pid
            stack.push_async_callback(_stop, process)
        agents = ScriptedAgents(bus, provider)
        running = asyncio.create_task(agents.run())
        stack.callback(running.cancel)
        yield ScriptedFleet(started, bus, agents, provider, services)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()
