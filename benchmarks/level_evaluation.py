"""Samples per second that the health-monitor compares with the policy's levels on one core.

The whole service runs in this process against a real server, with shipped settings: leases,
consumers, levels. Another process publishes a round of samples while this process is blocked; then
the service processes all of them. So only nats-server runs beside it. The service's own counter
shows whether a sample is lost. The floor is measured in turns with it: a follower of the same
stream in this process, by the same client, that counts what comes.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, Final

import uvloop

from benchmarks.comparison import medians
from benchmarks.served import Effort, connect, serving
from benchmarks.telemetry_publisher import TelemetryPublisher
from schemas import subjects
from schemas.settings import Settings
from schemas.topology import TELEMETRY
from services.bus.nats.nats_bus import NatsBus
from services.health_monitor.service import build
from services.primitives.clock import SystemClock
from services.runtime.consumer_loop import ConsumerLoop
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing

NODES: Final = 1_000
EFFORT: Final = Effort(3, 120.0)
BATCHES: Final = 6
"""Of each round."""
BATCH_SAMPLES: Final = 2_500
"""Published in less time than a lease lasts, because no lease is renewed meanwhile."""
AT_ONCE: Final = 256
WARM: Final = NODES
POLL_SECONDS: Final = 0.002
WAIT_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 1.0
RATE: Final = "level_evaluation_samples_per_second"
COUNTER: Final = "navarch_samples_judged_total"


async def publish(url: str) -> None:
    """Publish as many samples as each line of standard input asks for; print the failures."""
    bus = await connect(url, "rounds")
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
    """Measure in rounds; `lost` counts published samples that were not evaluated."""
    async with serving() as (server, bus, _):
        with _publisher(server.url) as publisher:
            rounds = []
            for _ in EFFORT.numbers():
                async with _service(bus) as instruments:
                    figures = await _batches(publisher, partial(_count, instruments))
                async with _follower(bus) as came:
                    floors = await _batches(publisher, came)
                rounds.append((figures, {RATE: floors[RATE]}))
            assert publisher.stdin is not None
            publisher.stdin.close()
    lost = sum(figures["level_evaluation_lost"] for figures, _ in rounds)
    return medians(rounds) | {"level_evaluation_lost": lost}


@asynccontextmanager
async def _follower(bus: NatsBus) -> AsyncIterator[Callable[[], int]]:
    """Yield what counts the samples that come."""
    came = 0

    async def follow() -> None:
        nonlocal came
        following = bus.follow(TELEMETRY.name, [subjects.TELEMETRY], "last_per_subject")
        async with aclosing(following):  # type: ignore[type-var]
            async for _ in following:
                came += 1

    task = asyncio.ensure_future(follow())
    try:
        yield lambda: came
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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


async def _batches(
    publisher: "subprocess.Popen[str]", count: Callable[[], int]
) -> dict[str, float]:
    """Publish batch after batch; `count` says how many samples have been dealt with."""
    # Who follows begins with each node's newest sample, a service once it has the lease.
    _publish(publisher, WARM)
    await _wait_for(count, WARM)
    await asyncio.sleep(SETTLE_SECONDS)
    expected = begun = count()
    seconds = used = 0.0
    for _ in range(BATCHES):
        _publish(publisher, BATCH_SAMPLES)
        expected += BATCH_SAMPLES
        start, cpu = time.perf_counter(), time.process_time()
        await _wait_for(count, expected)
        seconds += time.perf_counter() - start
        used += time.process_time() - cpu
    return {
        RATE: round((count() - begun) / seconds),
        "level_evaluation_cores": round(used / seconds, 2),
        "level_evaluation_lost": expected - count(),
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


async def _wait_for(count: Callable[[], int], expected: int) -> None:
    """Wait until so many samples are evaluated, for at most `WAIT_SECONDS`."""
    until = time.perf_counter() + WAIT_SECONDS
    while count() < expected and time.perf_counter() < until:  # noqa: ASYNC110 - counters are polled
        await asyncio.sleep(POLL_SECONDS)


def _count(instruments: Instruments) -> int:
    return int(instruments.registry.get_sample_value(COUNTER, {"outcome": "judged"}) or 0)


if __name__ == "__main__":
    uvloop.run(publish(sys.argv[1]))
