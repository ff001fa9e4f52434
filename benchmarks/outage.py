"""`python -m benchmarks.outage`: the broker is away for two minutes while 500 agents live.

Real: nats-server, health-monitor, pool-manager and provisioner as processes, time-outs as in
production (beats each 10 s that live 30 s, lost after five minutes), and the outage itself. Played:
the agents, whose hearts beat from one process, and their instances, which exist at the `fake`
provider by name only. One node dies at the provider while the broker is away. Afterwards exactly
that one is to be replaced, and none that came back.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import AsyncExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import uvloop

from schemas import subjects
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, BootChecked, GpuIdentity, Lost, NodeEvent, Registered
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.pool_events import NodeReplaced, pool_codec
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, HEARTBEATS, NODES, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError

SERVICES: Final = ("pool_manager", "health_monitor", "provisioner", "notifier")
POOL: Final = "training"
BEAT_SECONDS: Final = 10.0
BEAT_TTL_SECONDS: Final = 30
GPUS: Final = 8
LOOK_SECONDS: Final = 0.2
SETTLED_SECONDS_MAX: Final = 900.0
AFTER_SECONDS: Final = 60.0
"""Watched on after the replacement: what else was to happen would by then."""

_nodes = decoder(NodeRecord)


class Agents:
    """Every agent of the pool, by what a node says on the bus."""

    def __init__(self, bus: NatsBus, provider: Path) -> None:
        """Live as long as the provider's file holds the instance."""
        self._bus = bus
        self._provider = provider
        self._lives: dict[str, asyncio.Task[None]] = {}

    def names(self) -> set[str]:
        """What stands at the provider."""
        if not self._provider.exists():
            return set()
        with closing(sqlite3.connect(self._provider)) as database, suppress(sqlite3.Error):
            return {name for (name,) in database.execute("SELECT name FROM made")}
        return set()

    async def run(self) -> None:
        """Give every instance its agent, for ever."""
        while True:
            names = self.names()
            for name in names - set(self._lives):
                self._lives[name] = asyncio.create_task(self._live(name))
            for name in set(self._lives) - names:
                self._lives.pop(name).cancel()
            await asyncio.sleep(LOOK_SECONDS)

    async def _live(self, node: str) -> None:
        about: dict[str, Any] = {"time": datetime.now(UTC), "pool": POOL, "node": node}
        boot = f"boot-{node}"
        gpus = tuple(GpuIdentity(index=i, uuid=f"GPU-{node}-{i}") for i in range(GPUS))
        await self._say(
            Registered(id=f"{node}.reg", instance=node, boot_id=boot, gpus=gpus, **about)
        )
        await self._say(BootChecked(id=f"{node}.boot", ok=True, boot_id=boot, **about))
        key = node_key(POOL, node)
        while True:
            beat = HeartbeatRecord(pool=POOL, node=node, instance=node, time=datetime.now(UTC))
            with suppress(BusError):
                await self._bus.put(HEARTBEATS, key, encode(beat), ttl_seconds=BEAT_TTL_SECONDS)
            await asyncio.sleep(BEAT_SECONDS)

    async def _say(self, event: NodeEvent) -> None:
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        while True:
            with suppress(BusError):
                await self._bus.publish(subject, encode(event), msg_id=event.id)
                return
            await asyncio.sleep(1)


def die(provider: Path, node: str) -> None:
    """Let an instance vanish at the provider, as dead hardware does."""
    with closing(sqlite3.connect(provider)) as database, database:
        database.execute("DELETE FROM made WHERE name = ?", (node,))


async def _active(bus: NatsBus) -> dict[str, NodeRecord]:
    with suppress(BusError):
        entries = await bus.entries(NODES, f"{POOL}.>")
        found: list[NodeRecord] = [_nodes.decode(each.value) for each in entries]
        return {each.node: each for each in found if each.state == "active" and not each.lost}
    return {}


async def _until(bus: NatsBus, count: int) -> float:
    """Wait until so many nodes serve; return how long that took."""
    begun = time.monotonic()
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        while len(await _active(bus)) != count:  # noqa: ASYNC110 - records tell nobody
            await asyncio.sleep(LOOK_SECONDS)
    return time.monotonic() - begun


async def _replacements(bus: NatsBus) -> list[str]:
    stored = await bus.read(SAGAS.name, subjects.saga_step_wildcard("saga", "started"))
    begun = [json.loads(each.data) for each in stored]
    return [str(each["params"]["node"]) for each in begun if each["kind"] == "replace"]


async def _replaced(bus: NatsBus) -> list[str]:
    found = await bus.read(EVENTS.name, subjects.pool_event_wildcard("node-replaced"))
    told = (pool_codec.decode(each.data) for each in found)
    return [each.old_node for each in told if isinstance(each, NodeReplaced)]


async def measure(
    nodes: int, seconds: float, directory: Path, say: Any = print, lost_after: str = "5m"
) -> dict[str, Any]:
    """Let the broker be away for so long; the result says who was replaced, and when."""
    provider = directory / "provider.json"
    settings = {
        "fleet": "outage",
        "data_dir": str(directory / "data"),
        "providers": {"fake": {"file": str(provider)}},
        "pools": {
            POOL: {
                "provider": "fake",
                "instance_type": "simulated",
                "gpu_count": GPUS,
                "min_nodes": nodes,
                "max_nodes": nodes,
                "health": {"lost_after": lost_after},
            }
        },
        "notifier": {"type": "noop"},
    }
    (directory / "outage.yaml").write_text(json.dumps(settings), "utf-8")
    server = EmbeddedServer(directory / "nats")
    async with AsyncExitStack() as ending:
        url = await server.start()
        ending.push_async_callback(server.stop)
        bus = await NatsBus.connect(
            ConnectOptions(settings=NatsSettings(url=url), name="outage", ping_seconds=2)
        )
        ending.push_async_callback(bus.close)
        await set_up(bus, SystemClock(), replicas=1)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")} | {
            "NAVARCH_NATS_URL": url,
            "NAVARCH_CONFIG": str(directory / "outage.yaml"),
        }
        for name in SERVICES:
            log = (directory / f"{name}.log").open("ab")
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"services.{name}"),
                env=environment,
                stdout=log,
                stderr=log,
            )
            ending.push_async_callback(_stop, process)
        agents = Agents(bus, provider)
        living = asyncio.create_task(agents.run())
        ending.callback(living.cancel)
        say(f"{nodes} nodes in service after {await _until(bus, nodes):.1f} s")
        return await _outage(bus, server, agents, provider, nodes, seconds, say)


async def _outage(
    bus: NatsBus,
    server: EmbeddedServer,
    agents: Agents,
    provider: Path,
    nodes: int,
    seconds: float,
    say: Any,
) -> dict[str, Any]:
    await asyncio.sleep(BEAT_SECONDS)  # every heart has beaten
    await server.kill()
    dead = min(agents.names())
    say(f"the broker is away for {seconds:g} s; {dead} dies meanwhile")
    await asyncio.sleep(seconds / 2)
    die(provider, dead)
    await asyncio.sleep(seconds / 2)
    back = time.monotonic()
    await server.start()
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        while not bus.connected or dead not in await _replaced(bus):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
    replaced = time.monotonic() - back
    say(f"{dead} was replaced {replaced:.1f} s after the broker's return")
    await _until(bus, nodes)
    await asyncio.sleep(AFTER_SECONDS)
    begun = await _replacements(bus)
    lost = await bus.read(EVENTS.name, subjects.node_event_wildcard(FACTS[Lost]))
    return {
        "outage_seconds": seconds,
        "outage_nodes": nodes,
        "outage_lost": len(lost),
        "outage_replaced_dead": int(dead in begun),
        "outage_replaced_living": len([each for each in begun if each != dead]),
        "outage_dead_replaced_after_seconds": round(replaced, 1),
    }


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    await process.wait()


def main() -> int:
    """Do it; 0 where the dead node was replaced and no other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120, help="without a broker")
    parser.add_argument("--lost-after", default="5m", help="the pool's setting (default: 5m)")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outage-", ignore_cleanup_errors=True) as place:
        figures = uvloop.run(
            measure(told.nodes, told.seconds, Path(place), lost_after=told.lost_after)
        )
    print(json.dumps(figures))
    return (
        0 if (figures["outage_replaced_dead"], figures["outage_replaced_living"]) == (1, 0) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
