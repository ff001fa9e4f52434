"""A bare agent sends an agent's messages and reads its kernel log, with no logic between.

`python -m benchmarks.bare_agent SECONDS SAMPLE_BYTES HEARTBEAT_BYTES` reads the environment of an
agent. It is a module of its own because its memory is measured: it loads the agent's client alone.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import services.runtime.import_trim  # noqa: F401 - as the agent does, before the bus's client
from agent.sources.kernel_log_reader import BUSY_PAUSE_SECONDS
from schemas import subjects
from schemas.node_records import node_key
from schemas.settings import NatsSettings
from schemas.topology import HEARTBEATS
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.nats_bus import NatsBus
from services.primitives.inotify import Inotify

HEARTBEAT_SECONDS: Final = 10.0
HEARTBEAT_TTL_SECONDS: Final = 30


async def run(sample_seconds: float, sample_bytes: int, heartbeat_bytes: int) -> None:
    """Send heartbeats and samples, and read the kernel log's bytes, for ever."""
    pool, node = os.environ["NAVARCH_POOL"], f"{os.environ['NAVARCH_NODE']}-floor"
    settings = NatsSettings(url=os.environ["NAVARCH_NATS_URL"])
    bus = await NatsBus.connect(ConnectOptions(settings=settings, name=node))
    kernel_log, loop = Path(os.environ["NAVARCH_KMSG"]), asyncio.get_running_loop()
    changes = Inotify(kernel_log.parent)
    log = os.open(kernel_log, os.O_RDONLY)

    def read() -> None:
        changes.drain()
        os.read(log, 1 << 20)
        # An agent pauses in the same way where lines come thick.
        loop.remove_reader(changes.fd)
        loop.call_later(BUSY_PAUSE_SECONDS, loop.add_reader, changes.fd, read)

    async def beat() -> None:
        key, record = node_key(pool, node), b"x" * heartbeat_bytes
        while True:
            await bus.put(HEARTBEATS, key, record, ttl_seconds=HEARTBEAT_TTL_SECONDS)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def sample() -> None:
        while True:
            await bus.publish(subjects.telemetry(pool, node), b"x" * sample_bytes)
            await asyncio.sleep(sample_seconds)

    loop.add_reader(changes.fd, read)
    await asyncio.gather(beat(), sample())


if __name__ == "__main__":
    asyncio.run(run(float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
