"""Samples per second that the metrics service ingests on one core, and how many it loses.

Another process fills the stream first. Then the service's own follower and decoder read all of it
in this process, as they do after a restart. Only nats-server runs beside it.
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

from benchmarks.telemetry_publisher import TelemetryPublisher, sample
from schemas import subjects
from schemas.messages import encode
from schemas.settings import NatsSettings
from schemas.topology import TELEMETRY
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Stored
from services.bus.topology_setup import set_up
from services.metrics.fleet.prometheus_collector import FleetCollector
from services.metrics.service import Samples
from services.primitives.clock import SystemClock

NODES = 1_000
ROUNDS = 40
"""Samples per node; the stream keeps more."""
AT_ONCE = 256
DECODED = 20_000
WAIT_SECONDS = 30.0
INVALID = "bench_invalid"


async def _connect(url: str, name: str) -> NatsBus:
    return await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name=name))


async def fill(url: str) -> None:
    """Publish every sample and wait for the acknowledgements."""
    bus = await _connect(url, "fill")
    publisher = TelemetryPublisher(bus)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with slots:
            await publisher.send(f"node-{number % NODES}", number)

    await asyncio.gather(*(one(number) for number in range(NODES * ROUNDS)))
    await bus.close()
    if publisher.failed:
        sys.exit(f"{publisher.failed} samples could not be published")


def _samples(bus: NatsBus) -> tuple[Samples, FleetCollector]:
    fleet = FleetCollector(SystemClock().now)
    return Samples(bus, fleet, Counter(INVALID, "unreadable", registry=None)), fleet


async def measure() -> dict[str, Any]:
    """Measure; `lost` counts stored samples that were not delivered."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats")
        await server.start()
        try:
            bus = await _connect(server.url, "ingest")
            await set_up(bus, SystemClock(), replicas=1)
            filling = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.telemetry_ingest", server.url
            )
            if await filling.wait():
                raise RuntimeError("the stream could not be filled")
            result = await _ingest(bus)
            await bus.close()
        finally:
            await server.stop()
    return result | {"telemetry_decode_samples_per_second": _decode()}


async def _ingest(bus: NatsBus) -> dict[str, Any]:
    samples, fleet = _samples(bus)
    expected, ingested = NODES * ROUNDS, 0
    used, start = time.process_time(), time.perf_counter()
    following = bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "all")
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_SECONDS), aclosing(following):  # type: ignore[type-var]
            async for stored in following:
                samples.record(stored)
                ingested += 1
                if ingested == expected:
                    break
    seconds = time.perf_counter() - start
    return {
        "telemetry_ingest_samples_per_second": round(ingested / seconds),
        "telemetry_ingest_cores": round((time.process_time() - used) / seconds, 2),
        "telemetry_samples": ingested,
        "telemetry_lost": expected - ingested,
        "telemetry_nodes": len(fleet.samples),
        "telemetry_bytes_each": len(encode(sample("node-1", 1))),
    }


def _decode() -> int:
    """Samples per second of decoding and storing alone, without the bus."""
    samples, _ = _samples(None)  # type: ignore[arg-type]
    now = SystemClock().now()
    stored = [
        Stored(subjects.telemetry("simulated", f"node-{n % NODES}"), data, n + 1, now)
        for n in range(DECODED)
        for data in [encode(sample(f"node-{n % NODES}", n))]
    ]
    start = time.perf_counter()
    for each in stored:
        samples.record(each)
    return round(DECODED / (time.perf_counter() - start))


if __name__ == "__main__":
    uvloop.run(fill(sys.argv[1]))
