"""Events per second that `navarch events --since` prints, by the processor time that it uses."""

import asyncio
import os
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Fault
from schemas.settings import NatsSettings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock

EVENTS = 50_000
NODES = 200
AT_ONCE = 500


async def measure() -> dict[str, Any]:
    """Store faults, then print all of them into a file."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats", sync=False)
        await server.start()
        try:
            await _fill(server.url)
            return await _print(server.url, Path(place) / "printed")
        finally:
            await server.stop()


async def _fill(url: str) -> None:
    bus = await NatsBus.connect(ConnectOptions(settings=NatsSettings(url=url), name="fill"))
    await set_up(bus, SystemClock(), replicas=1)
    for first in range(0, EVENTS, AT_ONCE):
        faults = [
            Fault(
                id=f"fault-{number}",
                time=datetime.now(UTC),
                pool="training",
                node=f"node-{number % NODES}",
                kind="xid",
                code=13,
                message="NVRM: Xid (PCI:0000:3b:00): 13, pid=123, name=python, Graphics Exception",
            )
            for number in range(first, first + AT_ONCE)
        ]
        await asyncio.gather(
            *(bus.publish(event_subject(each), encode(each), msg_id=each.id) for each in faults)
        )
    await bus.close()


async def _print(url: str, file: Path) -> dict[str, Any]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with file.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "events"),
            *("--since", "1h", "--count", str(EVENTS)),
            env=os.environ | {"NAVARCH_NATS_URL": url},
            stdout=output,
        )
        if await process.wait():
            raise RuntimeError("`navarch events` failed")
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "events_printed_per_second": round(EVENTS / seconds),
        "events_printed_per_cpu_second": round(EVENTS / used),
    }
