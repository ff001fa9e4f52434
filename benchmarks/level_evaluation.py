"""Samples per second that the health-monitor compares with the policy's levels on one core.

The whole service runs in this process against a real server, with shipped settings: leases,
consumers, levels. Another process publishes a round of samples while this process is blocked; then
the service processes all of them. So only nats-server runs beside it. The service's own counter
shows whether a sample is lost.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.telemetry_publisher import TelemetryPublisher
from schemas.settings import NatsSettings, Settings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.health_monitor.service import build
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing

NODES: Final = 1_000
ROUNDS: Final = 8
ROUND_SAMPLES: Final = 5_000
"""Published in less time than a lease lasts, because no lease is renewed meanwhile."""
AT_ONCE: Final = 256
WARM: Final = 1_000
POLL_SECONDS: Final = 0.002
WAIT_SECONDS: Final = 30.0
COUNTER: Final = "navarch_samples_judged_total"


async def publish(url: str) -> None:
    """Publish as many samples as each line of standard input asks for; print the failures."""
    bus = await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name="rounds"))
    publisher, number = TelemetryPublisher(bus), 0
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, slots: asyncio.Semaphore = slots) -> None:
            async with slots:
                await publisher.send(f"node-{number % NODES}", number)

        await asyncio.gather(*(one(number + each) for each in range(int(line))))
        number += int(line)
        print(publisher.failed, flush=True)
    await bus.close()


async def measure() -> dict[str, Any]:
    """Measure; `lost` counts published samples that were not evaluated."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats")
        await server.start()
        try:
            bus = await NatsBus.connect(
                ConnectOptions(settings=NatsSettings(url=server.url), name="level-evaluation")
            )
            await set_up(bus, SystemClock(), replicas=1)
            async with _service(bus) as instruments:
                result = await _rounds(server.url, instruments)
            await bus.close()
        finally:
            await server.stop()
    return result


@asynccontextmanager
async def _service(bus: NatsBus) -> AsyncIterator[Instruments]:
    """The health-monitor, running."""
    context = Context(
        name="health-monitor",
        replica="bench",
        bus=bus,
        clock=SystemClock(),
        settings=Settings(),
        settings_file=None,
        instruments=Instruments(),
        tracing=Tracing("health-monitor"),
    )
    service = await build(context)
    loops = [
        ConsumerLoop(bus, each, context.clock, context.instruments, context.tracing).run
        for each in service.consumers
    ]
    tasks = [asyncio.ensure_future(each()) for each in (*service.tasks, *loops)]
    try:
        yield context.instruments
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _rounds(url: str, instruments: Instruments) -> dict[str, Any]:
    with _publisher(url) as publisher:
        _publish(publisher, WARM)
        await _wait_for(instruments, WARM)
        expected, seconds, used = WARM, 0.0, 0.0
        for _ in range(ROUNDS):
            _publish(publisher, ROUND_SAMPLES)
            expected += ROUND_SAMPLES
            start, cpu = time.perf_counter(), time.process_time()
            await _wait_for(instruments, expected)
            seconds += time.perf_counter() - start
            used += time.process_time() - cpu
        evaluated = _count(instruments)
        assert publisher.stdin is not None
        publisher.stdin.close()
    return {
        "level_evaluation_samples_per_second": round((evaluated - WARM) / seconds),
        "level_evaluation_cores": round(used / seconds, 2),
        "level_evaluation_samples": evaluated - WARM,
        "level_evaluation_lost": expected - evaluated,
    }


def _publisher(url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.level_evaluation", url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _publish(publisher: "subprocess.Popen[str]", count: int) -> None:
    """Let the other process publish a round; this process is blocked meanwhile."""
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    publisher.stdin.write(f"{count}\n")
    publisher.stdin.flush()
    if int(publisher.stdout.readline() or -1):
        raise RuntimeError("samples could not be published")


async def _wait_for(instruments: Instruments, expected: int) -> None:
    """Wait until so many samples are evaluated, for at most `WAIT_SECONDS`."""
    until = time.perf_counter() + WAIT_SECONDS
    while _count(instruments) < expected and time.perf_counter() < until:  # noqa: ASYNC110 - counters are polled
        await asyncio.sleep(POLL_SECONDS)


def _count(instruments: Instruments) -> int:
    return int(instruments.registry.get_sample_value(COUNTER, {"outcome": "judged"}) or 0)


if __name__ == "__main__":
    uvloop.run(publish(sys.argv[1]))
