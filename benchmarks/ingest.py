"""How many samples a second the metrics service takes in, on one core, and whether any is lost.

A stream is filled by another process as fast as it goes; then the service's own follower and
decoder take all of it, in this process, as they do after a restart. Nothing else runs meanwhile but
the server.
"""

import asyncio
import sys
import tempfile
import time
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import uvloop
from prometheus_client import Counter

from benchmarks.samples import Senders, sample
from schemas import subjects
from schemas.messages import encode
from schemas.settings import NatsSettings
from schemas.topology import TELEMETRY
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.metrics.fleet.prometheus_collector import Fleet
from services.metrics.service import Samples
from services.primitives.clock import SystemClock

NODES = 1_000
ROUNDS = 40
"""Samples of each node: fewer than the stream keeps."""
AT_ONCE = 256
DECODED = 20_000
WAIT_SECONDS = 30.0
INVALID = "bench_invalid"


async def _connect(url: str, name: str) -> NatsBus:
    return await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name=name))


async def fill(url: str) -> None:
    """Publish every sample, each acknowledged by the server."""
    bus = await _connect(url, "fill")
    senders = Senders(bus)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            await senders.send(f"node-{number % NODES}", number)

    await asyncio.gather(*(one(number) for number in range(NODES * ROUNDS)))
    await bus.close()
    if senders.failed:
        sys.exit(f"{senders.failed} samples could not be published")


def _samples(bus: NatsBus) -> tuple[Samples, Fleet]:
    fleet = Fleet(SystemClock().now)
    return Samples(bus, fleet, Counter(INVALID, "unreadable", registry=None)), fleet


async def measure() -> dict[str, Any]:
    """Measure; `lost` counts what was stored and never came."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats")
        await server.start()
        try:
            bus = await _connect(server.url, "ingest")
            await set_up(bus, SystemClock(), replicas=1)
            filling = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.ingest", server.url
            )
            if await filling.wait():
                raise RuntimeError("the stream could not be filled")
            result = await _take(bus)
            await bus.close()
        finally:
            await server.stop()
    return result | {"telemetry_decode_samples_per_second": _decode()}


async def _take(bus: NatsBus) -> dict[str, Any]:
    samples, fleet = _samples(bus)
    wanted, taken = NODES * ROUNDS, 0
    used, begun = time.process_time(), time.perf_counter()
    following = bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "all")
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_SECONDS), aclosing(following):  # type: ignore[type-var]
            async for stored in following:
                samples.take(stored)
                taken += 1
                if taken == wanted:
                    break
    seconds = time.perf_counter() - begun
    return {
        "telemetry_ingest_samples_per_second": round(taken / seconds),
        "telemetry_ingest_cores": round((time.process_time() - used) / seconds, 2),
        "telemetry_samples": taken,
        "telemetry_lost": wanted - taken,
        "telemetry_nodes": len(fleet.samples),
        "telemetry_bytes_each": len(encode(sample("node-1", 1))),
    }


def _decode() -> int:
    """Samples a second of decoding and keeping alone, without the bus."""
    samples, _ = _samples(None)  # type: ignore[arg-type]
    now = SystemClock().now()
    stored = [
        Stored(subjects.telemetry("simulated", f"node-{n % NODES}"), data, n + 1, now)
        for n in range(DECODED)
        for data in [encode(sample(f"node-{n % NODES}", n))]
    ]
    begun = time.perf_counter()
    for each in stored:
        samples.take(each)
    return round(DECODED / (time.perf_counter() - begun))


if __name__ == "__main__":
    uvloop.run(fill(sys.argv[1]))
