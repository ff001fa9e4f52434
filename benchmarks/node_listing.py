"""How long `navarch list` takes, from the shell's point of view, over the bus and over HTTP.

Small: two nodes. Large: 10,000, of one pool. The pool-manager and the gateway are real; the nodes
are records and heartbeats. Each figure is the median of the runs, and the first run is apart.
"""

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.event_streams import READY_SECONDS_MAX
from schemas.messages import encode
from schemas.node_events import GpuIdentity
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import NatsSettings
from schemas.topology import HEARTBEATS, NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock

SMALL: Final = 2
LARGE: Final = 10_000
RUNS: Final = 9
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
    """List a small and a large fleet."""
    return {**await _fleet("small", SMALL), **await _fleet("large", LARGE)}


async def _fleet(name: str, nodes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats", sync=False)
        await server.start()
        try:
            await _fill(server.url, nodes)
            config = Path(place) / "navarch.yaml"
            config.write_text(json.dumps(_configuration(place, nodes)), "utf-8")
            async with (
                _service("pool_manager", server.url, config),
                _service("gateway", server.url, config) as ready,
            ):
                bus = {"NAVARCH_NATS_URL": server.url}
                http = {"NAVARCH_SERVER": ready["http"], "NAVARCH_AUTH_TOKEN": TOKEN}
                await _settle(bus, nodes)
                return {
                    f"listing_{name}_{way}_{figure}": value
                    for way, environment in (("bus", bus), ("http", http))
                    for figure, value in (await _list(environment)).items()
                }
        finally:
            await server.stop()


def _configuration(place: str, nodes: int) -> dict[str, Any]:
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


async def _fill(url: str, nodes: int) -> None:
    bus = await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name="fill"))
    await set_up(bus, SystemClock(), replicas=1)
    for first in range(0, nodes, AT_ONCE):
        names = [f"{POOL}-{number}" for number in range(first, min(first + AT_ONCE, nodes))]
        await asyncio.gather(*(_put(bus, each) for each in names))
    await bus.close()


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


@asynccontextmanager
async def _service(name: str, url: str, config: Path) -> AsyncIterator[dict[str, Any]]:
    """The line with which it says that it is ready."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"services.{name}", "--config", str(config)),
        env=os.environ | {"NAVARCH_NATS_URL": url, "NAVARCH_AUTH_TOKEN": TOKEN},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    entry: dict[str, Any] = {}
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            while entry.get("msg") != "ready":
                entry = json.loads(await process.stderr.readline())
        reading = asyncio.create_task(process.stderr.read())
        yield entry
        process.terminate()
        await reading
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _settle(environment: dict[str, str], nodes: int) -> None:
    """Wait until the pool-manager knows all nodes."""
    async with asyncio.timeout(SETTLED_SECONDS_MAX):
        known = 0
        while known != nodes:
            known = len(json.loads((await _run(environment, "-o", "json"))[0]))


async def _list(environment: dict[str, str]) -> dict[str, float]:
    first = (await _run(environment))[1]
    runs = [await _run(environment) for _ in range(RUNS)]
    return {
        "first_seconds": round(first, 3),
        "seconds": round(median(wall for _, wall, _ in runs), 3),
        "cpu_seconds": round(median(used for _, _, used in runs), 3),
    }


async def _run(environment: dict[str, str], *options: str) -> tuple[bytes, float, float]:
    """What it prints, and the seconds and processor seconds that it takes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "list", *options),
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise RuntimeError(out.decode())
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return out, wall, used
