"""Memory and CPU of real agent processes with eight GPUs each.

Three run side by side: one samples every second, one every fifteen as shipped, and one has a kernel
log that grows by 1,600 lines a second. The GPUs are simulated below NVML's C interface, so all of
the agent's own work is measured; what the real driver would add is not. Beside each runs its floor:
a process with the same client that reads the bytes of the same kernel log, and sends heartbeats and
samples of the same size at the same intervals.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.comparison import medians
from benchmarks.machine import cpu_seconds, resident_bytes
from benchmarks.served import serving
from benchmarks.telemetry_publisher import sample
from schemas import subjects
from schemas.messages import encode
from schemas.node_records import HeartbeatRecord
from schemas.topology import EVENTS
from services.bus.nats.nats_bus import NatsBus
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
        self._processes: list[asyncio.subprocess.Process] = []
        self.lines = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Process IDs of the agent and of its floor."""
        return tuple(each.pid for each in self._processes)

    async def start(self, sample_seconds: int) -> None:
        """Start the agent, and its floor."""
        sizes = (len(encode(sample(self.node, 1))), len(encode(_beat(self.node))))
        floor = ("benchmarks.bare_agent", str(sample_seconds), *map(str, sizes))
        for command in (("agent",), floor):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *command),
                env=self._environment | {"NAVARCH_SAMPLE_INTERVAL": f"{sample_seconds}s"},
                stderr=asyncio.subprocess.DEVNULL,
            )
            self._processes.append(process)

    async def stop(self) -> None:
        """Stop the agent and its server."""
        for process in self._processes:
            if process.returncode is None:
                process.terminate()
            await process.wait()

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


def _beat(node: str) -> HeartbeatRecord:
    return HeartbeatRecord(
        pool=POOL, node=node, instance=node, boot_id=BOOT, time=datetime.now(UTC)
    )


@asynccontextmanager
async def _hosts(place: Path, url: str, bus: NatsBus) -> AsyncIterator[list[Host]]:
    library = build_library(place / "library")
    hosts = [Host(place, url, library, name) for name in ("each-1s", "each-15s", "storm")]
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
        yield hosts
    finally:
        for host in hosts:
            await host.stop()


async def measure(seconds: float) -> dict[str, Any]:
    """Measure for so long, after the agents have settled."""
    async with serving() as (server, bus, place), _hosts(place, server.url, bus) as hosts:
        storming = asyncio.create_task(hosts[2].storm())
        await asyncio.sleep(SETTLE_SECONDS)
        lines, start = hosts[2].lines, time.monotonic()
        before = {pid: cpu_seconds(pid) for host in hosts for pid in host.pids}
        await asyncio.sleep(seconds)
        cores = {pid: cpu_seconds(pid) - used for pid, used in before.items()}
        lasted = time.monotonic() - start
        cores = {pid: used / lasted for pid, used in cores.items()}
        lines = hosts[2].lines - lines
        resident = {pid: resident_bytes(pid) / MIB for pid in before}
        storming.cancel()
        faults = await bus.read(EVENTS.name, subjects.node_event(POOL, "storm", "fault"))
    agents, floors = (
        {
            "agent_resident_mib": max(resident[host.pids[which]] for host in hosts[:2]),
            "agent_cores_1s": cores[hosts[0].pids[which]],
            "agent_cores_15s": cores[hosts[1].pids[which]],
            "agent_cores_storm": cores[hosts[2].pids[which]],
            "agent_storm_resident_mib": resident[hosts[2].pids[which]],
        }
        for which in (0, 1)
    )
    return medians([(agents, floors)]) | {
        "agent_storm_lines_per_second": round(lines / lasted),
        "agent_storm_faults_published": len(faults),
        "agent_seconds": round(lasted),
    }
