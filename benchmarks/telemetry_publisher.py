"""Publishes telemetry as agents do: real messages of eight GPUs each, from one process.

`python -m benchmarks.telemetry_publisher URL NODES` publishes each node's sample once a second,
spread evenly over the second, until SIGTERM; then it prints how many it sent.
"""

import asyncio
import json
import signal
import sys
from datetime import UTC, datetime

import uvloop

from schemas import subjects
from schemas.gpu_samples import GpuSample
from schemas.held_conditions import ConditionList
from schemas.messages import encode
from schemas.node_events import Telemetry
from schemas.settings import NatsSettings
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.errors import BusError

POOL = "simulated"
GPUS = 8
GIB = 1 << 30


def sample(node: str, number: int, gpus: int = GPUS) -> Telemetry:
    """Return one sample of a node, with every reading of an H100."""
    now = datetime.now(UTC)
    return Telemetry(
        id=f"{POOL}.{node}.telemetry.{number}",
        time=now,
        pool=POOL,
        node=node,
        gpus=tuple(
            GpuSample(
                index=index,
                uuid=f"GPU-{number:08x}-0000-4000-8000-{index:012x}",
                utilization_percent=(number + index) % 101,
                memory_used_bytes=61 * GIB + number % GIB,
                memory_total_bytes=80 * GIB,
                power_watts=612.5 + index,
                temperature_celsius=61 + index,
                memory_temperature_celsius=78,
                temperature_margin_celsius=24,
                sm_clock_mhz=1980,
                throttle_reasons=0,
                ecc_dbe_volatile=0,
                ecc_sbe_volatile=0,
                ecc_dbe_aggregate=0,
                ecc_sbe_aggregate=3,
                remapped_correctable=0,
                remapped_uncorrectable=0,
                remap_pending=False,
                remap_failed=False,
                nvlink_errors=0,
                nvlinks_up=18,
                pcie_replays=0,
                pcie_width=16,
            )
            for index in range(gpus)
        ),
        cpu_percent=37.5,
        memory_used_bytes=312 * GIB,
        memory_total_bytes=2048 * GIB,
        sequence=number,
        sampled_at=now,
        conditions=ConditionList(boot_id=f"boot-of-{node}", counter=1),
    )


class TelemetryPublisher:
    """Publishes the telemetry of many agents, over one connection."""

    def __init__(self, bus: NatsBus) -> None:
        """Publish on `bus`."""
        self._bus = bus
        self.sent = 0
        self.failed = 0

    async def send(self, node: str, number: int) -> None:
        """Publish one sample and wait for the server's acknowledgement, as an agent does."""
        telemetry = sample(node, number)
        try:
            subject = subjects.telemetry(POOL, node)
            await self._bus.publish(subject, encode(telemetry), msg_id=telemetry.id)
        except BusError:
            self.failed += 1
        else:
            self.sent += 1

    async def run(self, nodes: int, stopping: asyncio.Event) -> None:
        """Send one sample of each node a second until `stopping` is set."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        number = 0
        pending: set[asyncio.Task[None]] = set()
        while not stopping.is_set():
            task = loop.create_task(self.send(f"node-{number % nodes}", number))
            pending.add(task)
            task.add_done_callback(pending.discard)
            number += 1
            await asyncio.sleep(max(0.0, start + number / nodes - loop.time()))
        if pending:
            await asyncio.wait(pending)


async def _main(url: str, nodes: int) -> None:
    stopping = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stopping.set)
    bus = await NatsBus.connect(
        ConnectOptions(settings=NatsSettings(url=url), name="telemetry-publisher")
    )
    publisher = TelemetryPublisher(bus)
    await publisher.run(nodes, stopping)
    await bus.close()
    print(json.dumps({"sent": publisher.sent, "failed": publisher.failed}))


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1], int(sys.argv[2])))
