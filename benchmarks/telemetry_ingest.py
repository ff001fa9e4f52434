"""Samples per second that the metrics service ingests on one core, and how many it loses.

Another process fills the stream first. Then the service's own follower and decoder read all of it
in this process, as they do after a restart. Only nats-server runs beside it. The floor of each
round is the same follower, which reads all of it once more and decodes nothing.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any, Final

import uvloop
from prometheus_client import Counter

from benchmarks.comparison import medians
from benchmarks.served import Effort, connect, serving
from benchmarks.telemetry_publisher import TelemetryPublisher, sample
from schemas import subjects
from schemas.messages import encode
from schemas.topology import TELEMETRY
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.metrics.fleet.prometheus_collector import FleetCollector
from services.metrics.service import Samples
from services.primitives.clock import SystemClock

NODES = 1_000
EACH = 40
"""Samples per node; the stream keeps more."""
AT_ONCE = 256
DECODED = 20_000
WAIT_SECONDS = 30.0
INVALID = "bench_invalid"
RATES: Final = ("telemetry_ingest_samples_per_second", "telemetry_ingest_samples_per_cpu_second")
EFFORT: Final = Effort(5, 120.0)


async def fill(url: str) -> None:
    """Publish every sample and wait for the acknowledgements."""
    bus = await connect(url, "fill")
    publisher = TelemetryPublisher(bus)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with slots:
            await publisher.send(f"node-{number % NODES}", number)

    await asyncio.gather(*(one(number) for number in range(NODES * EACH)))
    await bus.close()
    if publisher.failed:
        sys.exit(f"{publisher.failed} samples could not be published")


def _samples(bus: NatsBus) -> tuple[Samples, FleetCollector]:
    fleet = FleetCollector(SystemClock().now)
    return Samples(bus, fleet, Counter(INVALID, "unreadable", registry=None)), fleet


async def measure(effort: Effort = EFFORT) -> dict[str, Any]:
    """Measure in rounds; `lost` counts stored samples that were not delivered."""
    async with serving() as (server, bus, _):
        filling = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.telemetry_ingest", server.url
        )
        if await filling.wait():
            raise RuntimeError("the stream could not be filled")
        rounds = []
        for _ in effort.numbers():
            samples, fleet = _samples(bus)
            rates, lost = await _follow(bus, samples.record)
            floors, floor_lost = await _follow(bus, lambda _: None)
            figures = {
                **rates,
                "telemetry_lost": lost + floor_lost,
                "telemetry_nodes": len(fleet.samples),
                "telemetry_decode_samples_per_second": _decode(),
            }
            rounds.append((figures, floors))
    return medians(rounds) | {
        "telemetry_lost": sum(figures["telemetry_lost"] for figures, _ in rounds),
        "telemetry_samples": NODES * EACH,
        "telemetry_bytes_each": len(encode(sample("node-1", 1))),
    }


async def _follow(bus: NatsBus, take: Callable[[Stored], None]) -> tuple[dict[str, float], int]:
    """Read the stream to its end; return both rates, and how many samples are missing."""
    expected, ingested = NODES * EACH, 0
    used, start = time.process_time(), time.perf_counter()
    following = bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "all")
    with suppress(TimeoutError):
        async with asyncio.timeout(WAIT_SECONDS), aclosing(following):  # type: ignore[type-var]
            async for stored in following:
                take(stored)
                ingested += 1
                if ingested == expected:
                    break
    taken = time.perf_counter() - start, time.process_time() - used
    return {
        name: round(ingested / each) for name, each in zip(RATES, taken, strict=True)
    }, expected - ingested


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
