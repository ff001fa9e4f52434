"""How many samples a second the health-monitor compares with the policy's levels, on one core.

The whole service runs in this process against a real server: leases, consumers, the watch of
levels. Another process publishes a round of samples, each acknowledged, while this one stands
still; then it takes all of them as fast as it can. So nothing but the server runs beside it, and
its own counters say whether any sample is lost.
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

from benchmarks.samples import Senders
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
EACH: Final = 5_000
"""Samples a round: published in less time than a lease lives, which nobody renews meanwhile."""
AT_ONCE: Final = 256
WARM: Final = 1_000
LOOK_SECONDS: Final = 0.002
WAIT_SECONDS: Final = 30.0
COUNTER: Final = "navarch_samples_judged_total"


async def publish(url: str) -> None:
    """Publish as many samples as each line of standard input says, and say when it is done."""
    bus = await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name="rounds"))
    senders, number = Senders(bus), 0
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        room = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, room: asyncio.Semaphore = room) -> None:
            async with room:
                await senders.send(f"node-{number % NODES}", number)

        await asyncio.gather(*(one(number + each) for each in range(int(line))))
        number += int(line)
        print(senders.failed, flush=True)
    await bus.close()


async def measure() -> dict[str, Any]:
    """Measure; `lost` counts what was published and never judged."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats")
        await server.start()
        try:
            bus = await NatsBus.connect(
                ConnectOptions(settings=NatsSettings(url=server.url), name="judging")
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
        await _judged(instruments, WARM)
        wanted, seconds, used = WARM, 0.0, 0.0
        for _ in range(ROUNDS):
            _publish(publisher, EACH)
            wanted += EACH
            begun, cpu = time.perf_counter(), time.process_time()
            await _judged(instruments, wanted)
            seconds += time.perf_counter() - begun
            used += time.process_time() - cpu
        judged = _count(instruments)
        assert publisher.stdin is not None
        publisher.stdin.close()
    return {
        "judging_ingest_samples_per_second": round((judged - WARM) / seconds),
        "judging_ingest_cores": round(used / seconds, 2),
        "judging_samples": judged - WARM,
        "judging_lost": wanted - judged,
    }


def _publisher(url: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.judging", url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _publish(publisher: "subprocess.Popen[str]", count: int) -> None:
    """Have a round published; the loop of this process stands still meanwhile."""
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    publisher.stdin.write(f"{count}\n")
    publisher.stdin.flush()
    if int(publisher.stdout.readline() or -1):
        raise RuntimeError("samples could not be published")


async def _judged(instruments: Instruments, wanted: int) -> None:
    """Wait until so many samples are judged, or until no more can be expected."""
    until = time.perf_counter() + WAIT_SECONDS
    # A counter says nothing when it rises, so it is looked at.
    while _count(instruments) < wanted and time.perf_counter() < until:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)


def _count(instruments: Instruments) -> int:
    return int(instruments.registry.get_sample_value(COUNTER, {"outcome": "judged"}) or 0)


if __name__ == "__main__":
    uvloop.run(publish(sys.argv[1]))
