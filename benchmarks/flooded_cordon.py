"""Time from a kernel log line to the cordon while others flood nats-server or the gateway.

The fleet is that of `cordon_latency`, with a gateway. Each round breaks as many nodes without a
flood as under each of three: 1,000 connections to nats-server that are opened again every two
seconds; 4,300 requests to the gateway that never end; and as many for its metrics, one after the
other. The floor of a figure is the same fleet without a flood, in the same round.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.comparison import beside_floor, worst
from benchmarks.cordon_latency import (
    WARM_UP,
    FaultWriter,
    fleet,
    follow_replaced,
    receiving,
)
from benchmarks.machine import percentile
from benchmarks.served import Effort

FLOODS: Final = {"bus": 1_000, "unfinished": 4_300, "metrics": 4_300}
"""How many connections each kind of flood keeps open."""
BEGINNING_SECONDS: Final = 3.0
"""A flood has opened its connections then."""
DEVIATIONS: Final = {
    "credentials": (
        "none: the bus is open, so that no account's limit ends the flood of connections before it "
        "reaches its size; with credentials it has at most those that agents may have"
    ),
}


@asynccontextmanager
async def flooding(kind: str, port: int, counts: dict[str, Any]) -> AsyncIterator[None]:
    """Flood a port from another process; note what it did."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.flooder", kind, str(port), str(FLOODS[kind])),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        await asyncio.sleep(BEGINNING_SECONDS)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
        counts[kind] = json.loads(out)


async def measure(effort: Effort, faults: int) -> dict[str, Any]:
    """Measure so many faults a round without a flood, and under each."""
    count = WARM_UP + effort.rounds * faults * (len(FLOODS) + 1)
    times: dict[str, list[list[float]]] = {kind: [] for kind in ("", *FLOODS)}
    counts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        async with (
            receiving() as receiver,
            fleet(Path(place), receiver.url, count, gateway=True) as (serving, bus),
        ):
            ports = dict.fromkeys(FLOODS, urlsplit(serving.dashboard).port or 0)
            ports["bus"] = urlsplit(serving.supervisor.url).port or 0
            writer = FaultWriter(serving, bus, receiver)
            replaced: asyncio.Queue[str] = asyncio.Queue()
            tasks = [
                asyncio.create_task(writer.watch()),
                asyncio.create_task(follow_replaced(bus, replaced)),
            ]

            async def break_some(kind: str, number: int) -> None:
                found = [await writer.break_one(replaced) for _ in range(number)]
                if kind in times:
                    times[kind].append([cordoned - written for _, written, cordoned in found])

            try:
                await break_some("not counted", WARM_UP)
                for _ in effort.numbers():
                    await break_some("", faults)
                    for kind, port in ports.items():
                        async with flooding(kind, port, counts):
                            await break_some(kind, faults)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
    figures = {k: v for kind in FLOODS for k, v in _figures(kind, times).items()}
    return {**figures, "floods": counts, "faults_each": sum(map(len, times[""]))}


def _figures(kind: str, times: dict[str, list[list[float]]]) -> dict[str, float]:
    """Return the median under a flood, beside that without it."""

    def at(found: list[float]) -> float:
        return round(1000 * percentile(found, 50), 2)

    name = f"flood_{kind}_cordon_ms_p50"
    pairs = [(at(each), at(quiet)) for each, quiet in zip(times[kind], times[""], strict=True)]
    every, quiet = ([each for found in times[which] for each in found] for which in (kind, ""))
    return beside_floor(name, at(every), at(quiet)) | worst(name, pairs)
