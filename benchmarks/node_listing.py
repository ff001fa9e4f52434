"""The time that `navarch list` takes is measured from the shell, over the bus and over HTTP.

Small: two nodes. Medium: 2,000, large: 10,000, of one pool. The pool-manager and the gateway are
real; the nodes are records and heartbeats. Each figure is the median of the runs, and the first run
is apart. The floor of each run is the start of the interpreter, which runs nothing, right after it.
"""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison import medians
from benchmarks.served import Effort, Ran, service, serving, timed
from schemas.messages import encode
from schemas.node_events import GpuIdentity
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.topology import HEARTBEATS, NODES
from services.bus.nats.nats_bus import NatsBus

SIZES: Final = {"small": 2, "medium": 2_000, "large": 10_000}
EFFORT: Final = Effort(9, 20.0)
AT_ONCE: Final = 500
POOL: Final = "training"
GPUS: Final = 8
TOKEN: Final = "token-of-the-benchmark"
HEARTBEAT_TTL_SECONDS: Final = 900
SETTLED_SECONDS_MAX: Final = 120.0
DEVIATIONS: Final = {
    "remediation mode": "observe: the nodes are records, so nothing is done about their silence",
    "heartbeats": f"one for each node, kept for {HEARTBEAT_TTL_SECONDS} s",
}


async def measure() -> dict[str, Any]:
    """List fleets of every size, over the bus and over HTTP."""
    found: dict[str, Any] = {}
    for name in SIZES:
        found |= await measure_fleet(name, ("bus", "http"), EFFORT)
    return found


async def measure_fleet(name: str, ways: tuple[str, ...], effort: Effort) -> dict[str, Any]:
    """List a fleet of one size."""
    nodes = SIZES[name]
    found: dict[str, Any] = {}
    async with serving(sync=False) as (server, bus, place):
        config = await configured(bus, place, nodes)
        async with (
            service("services.pool_manager", server.url, config),
            service("services.gateway", server.url, config, NAVARCH_AUTH_TOKEN=TOKEN) as (_, ready),
        ):
            environments = {
                "bus": {"NAVARCH_NATS_URL": server.url},
                "http": {"NAVARCH_SERVER": ready["http"], "NAVARCH_AUTH_TOKEN": TOKEN},
            }
            await settled(environments["bus"], nodes)
            for way in ways:
                listed = await _list(environments[way], effort)
                found |= {f"listing_{name}_{way}_{each}": value for each, value in listed.items()}
    return found


async def configured(bus: NatsBus, place: Path, nodes: int) -> Path:
    """Store the nodes' records; return the configuration of their services."""
    await _fill(bus, nodes)
    config = place / "navarch.yaml"
    config.write_text(json.dumps(_configuration(place, nodes)), "utf-8")
    return config


def _configuration(place: Path, nodes: int) -> dict[str, Any]:
    return {
        "fleet": "bench",
        "data_dir": f"{place}/data",
        "providers": {"fake": {"file": f"{place}/provider"}},
        "notifier": {"type": "noop"},
        "pools": {
            POOL: {
                "provider": "fake",
                "instance_type": "simulated",
                "gpu_count": GPUS,
                "min_nodes": nodes,
                "max_nodes": nodes,
                "mode": "observe",
            }
        },
        "gateway": {"port": 0},
    }


async def _fill(bus: NatsBus, nodes: int) -> None:
    for first in range(0, nodes, AT_ONCE):
        names = [f"{POOL}-{number}" for number in range(first, min(first + AT_ONCE, nodes))]
        await asyncio.gather(*(_put(bus, each) for each in names))


async def _put(bus: NatsBus, name: str) -> None:
    now = datetime.now(UTC)
    launch = LaunchSpec(
        fleet="bench", provider="fake", instance_type="simulated", region="r", gpu_count=GPUS
    )
    record = NodeRecord(
        pool=POOL,
        node=name,
        state="active",
        health="healthy",
        gpus=tuple(GpuIdentity(index=i, uuid=f"GPU-{name}-{i}") for i in range(GPUS)),
        launch=launch,
        zone="zone-a",
        hostname=name,
        registered_at=now,
        changed_at=now,
    )
    beat = HeartbeatRecord(pool=POOL, node=name, instance=name, time=now)
    key = node_key(POOL, name)
    await bus.put(NODES, key, encode(record))
    await bus.put(HEARTBEATS, key, encode(beat), ttl_seconds=HEARTBEAT_TTL_SECONDS)


async def settled(environment: dict[str, str], nodes: int) -> None:
    """Wait until the pool-manager knows all nodes."""
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        known = 0
        while known != nodes:
            known = len(json.loads((await _run(environment, "-o", "json")).output))


async def _run(environment: dict[str, str], *options: str) -> Ran:
    return await timed("-m", "services.cli", "list", *options, environment=environment)


async def _list(environment: dict[str, str], effort: Effort) -> dict[str, float]:
    first = await _run(environment)
    rounds = []
    for _ in effort.numbers():
        ran, floor = await _run(environment), await timed("-c", "pass")
        rounds.append(
            (
                {"seconds": ran.seconds, "cpu_seconds": ran.cpu_seconds},
                {"seconds": floor.seconds, "cpu_seconds": floor.cpu_seconds},
            )
        )
    return {"first_seconds": round(first.seconds, 3), **medians(rounds)}
