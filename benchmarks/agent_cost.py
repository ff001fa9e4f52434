"""Memory and CPU of real agent processes with eight GPUs each.

Three run side by side: one samples every second, one every fifteen as shipped, and one has a kernel
log that grows by 1,600 lines a second. The GPUs are simulated below NVML's C interface, so all of
the agent's own work is measured; what the real driver would add is not.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.machine import cpu_seconds, resident_bytes
from schemas import subjects
from schemas.settings import NatsSettings
from schemas.topology import EVENTS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.primitives.clock import SystemClock
from services.provisioner.providers.local_gpus import (
    build_library,
    kmsg_record,
    simulated_gpus,
    write_state,
)

POOL = "bench"
GPUS = 8
START_SECONDS_MAX = 30.0
SETTLE_SECONDS = 5.0
LINES_PER_SECOND = 1_600
STORM_WAKES_PER_SECOND = 200
FAULT_EVERY_LINES = 400
"""One line in so many is from the GPU driver; other drivers write the rest."""
MIB = 1 << 20
BOOT = "3f1c0a52-6f0b-4b9e-9a55-1d7f4c1f2a10"


class Host:
    """A simulated host: its files, and the agent that runs on it."""

    def __init__(self, directory: Path, url: str, library: Path, node: str) -> None:
        """Create its files."""
        self.node = node
        self.kmsg = directory / node / "kmsg"
        state = directory / node / "nvml-state"
        write_state(state, simulated_gpus(node, GPUS))
        self.kmsg.touch()
        self._environment = {
            k: v for k, v in os.environ.items() if not k.startswith("NAVARCH_")
        } | {
            "NAVARCH_NATS_URL": url,
            "NAVARCH_POOL": POOL,
            "NAVARCH_NODE": node,
            "NAVARCH_KMSG": str(self.kmsg),
            "NAVARCH_NVML_LIBRARY": str(library),
            "NAVARCH_NVML_STATE": str(state),
            "NAVARCH_STATE_DIR": str(directory / node / "state"),
            "NAVARCH_BOOT_ID": BOOT,
            "NAVARCH_GPU_COUNT": str(GPUS),
        }
        self._process: asyncio.subprocess.Process | None = None
        self.lines = 0

    @property
    def pid(self) -> int:
        """Process ID of the agent."""
        assert self._process is not None
        return self._process.pid

    async def start(self, sample_seconds: int) -> None:
        """Start the agent."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent"),
            env=self._environment | {"NAVARCH_SAMPLE_INTERVAL": f"{sample_seconds}s"},
            stderr=asyncio.subprocess.DEVNULL,
        )

    async def stop(self) -> None:
        """Stop it."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()

    async def storm(self) -> None:
        """Write kernel log lines at an even rate, forever."""
        start = time.monotonic()
        burst = LINES_PER_SECOND // STORM_WAKES_PER_SECOND
        with self.kmsg.open("ab", buffering=0) as log:
            while True:
                log.write(b"".join(self._line() for _ in range(burst)))
                due = start + self.lines / LINES_PER_SECOND
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    def _line(self) -> bytes:
        self.lines += 1
        text = f"mlx5_core 0000:a1:00.0 eth2: TX timeout on queue {self.lines % 64}, SQ: 0x1a3"
        if self.lines % FAULT_EVERY_LINES == 0:
            text = "NVRM: Xid (PCI:0000:61:00): 31, pid=91, name=python, Ch 00000008, MMU Fault"
        return kmsg_record(self.lines, self.lines * 625, text, priority=4)


@asynccontextmanager
async def _hosts(place: Path) -> AsyncIterator[tuple[NatsBus, list[Host]]]:
    server = EmbeddedServer(place / "nats")
    await server.start()
    bus = await NatsBus.connect(
        ConnectOptions(settings=NatsSettings(url=server.url), name="agent-cost")
    )
    await set_up(bus, SystemClock(), replicas=1)
    library = build_library(place / "library")
    hosts = [Host(place, server.url, library, name) for name in ("each-1s", "each-15s", "storm")]
    try:
        for host, seconds in zip(hosts, (1, 15, 15), strict=True):
            await host.start(seconds)
        checked: set[str] = set()
        checks = [subjects.node_event_wildcard("boot-checked")]
        following = bus.follow(EVENTS.name, checks, "all")
        async with asyncio.timeout(START_SECONDS_MAX), aclosing(following):  # type: ignore[type-var]
            async for stored in following:
                checked.add(stored.subject)
                if len(checked) == len(hosts):
                    break
        yield bus, hosts
    finally:
        for host in hosts:
            await host.stop()
        await bus.close()
        await server.stop()


async def measure(seconds: float) -> dict[str, Any]:
    """Measure for so long, after the agents have settled."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        async with _hosts(Path(place)) as (bus, hosts):
            storming = asyncio.create_task(hosts[2].storm())
            await asyncio.sleep(SETTLE_SECONDS)
            lines, start = hosts[2].lines, time.monotonic()
            before = [cpu_seconds(host.pid) for host in hosts]
            await asyncio.sleep(seconds)
            used = [cpu_seconds(h.pid) - b for h, b in zip(hosts, before, strict=True)]
            lasted = time.monotonic() - start
            lines = hosts[2].lines - lines
            resident = [resident_bytes(host.pid) for host in hosts]
            storming.cancel()
            faults = await bus.read(EVENTS.name, subjects.node_event(POOL, "storm", "fault"))
    cores = [each / lasted for each in used]
    return {
        "agent_resident_mib": round(max(resident[:2]) / MIB, 1),
        "agent_cores_1s": round(cores[0], 4),
        "agent_cores_15s": round(cores[1], 4),
        "agent_cores_storm": round(cores[2], 4),
        "agent_storm_lines_per_second": round(lines / lasted),
        "agent_storm_resident_mib": round(resident[2] / MIB, 1),
        "agent_storm_faults_published": len(faults),
        "agent_seconds": round(lasted),
    }
