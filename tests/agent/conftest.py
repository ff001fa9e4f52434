"""Starts an agent as a real process, on the test's bus, with simulated GPUs and a kernel log."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from schemas.subjects import node_events_of
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Stored
from services.provisioner.providers.local_gpus import (
    build_library,
    compiler,
    kmsg_record,
    simulated_gpus,
    write_state,
)
from tests.agent.bed import Bed
from tests.agent.metadata_servers import Serve, Server

WAIT_SECONDS = 60.0
BOOT = "0777c57c-3f80-41cb-b20a-c82dae692d80"
XID_79 = "NVRM: Xid (PCI:{pci}): 79, pid=7, name=python, GPU has fallen off the bus."


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the stand-in for libnvidia-ml.so.1."""
    if compiler() is None:
        pytest.skip("no C compiler, so no simulated GPUs")
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts metadata services, which are stopped at the end."""
    started: list[Server] = []

    async def start(kind: type[Server]) -> Server:
        started.append(kind())
        await started[-1].start()
        return started[-1]

    yield start
    for each in started:
        await each.stop()


class AgentHost:
    """A simulated GPU host: its files, and the agent that runs on it."""

    def __init__(self, directory: Path, url: str, library: Path, node: str) -> None:
        self.node = node
        self.kmsg = directory / "kmsg"
        self.nvml = directory / "nvml.state"
        self.state = directory / "state"
        self.gpus = simulated_gpus(node, 4)
        self.order()
        self.environment = dict(os.environ) | {
            "NAVARCH_NATS_URL": url,
            "NAVARCH_POOL": "training",
            "NAVARCH_NODE": node,
            "NAVARCH_KMSG": str(self.kmsg),
            "NAVARCH_NVML_LIBRARY": str(library),
            "NAVARCH_NVML_STATE": str(self.nvml),
            "NAVARCH_STATE_DIR": str(self.state),
            "NAVARCH_BOOT_ID": BOOT,
            "NAVARCH_GPU_COUNT": "4",
            "NAVARCH_SAMPLE_INTERVAL": "200ms",
            "NAVARCH_PROBE_DEADLINE": "750ms",
        }
        self.process: Process | None = None
        self._sequence = 0

    def order(self, *orders: str) -> None:
        """Script the simulated GPUs."""
        write_state(self.nvml, self.gpus, orders)

    def write(self, *texts: str, skip: int = 0) -> None:
        """Write kernel log records; `skip` loses that many before the first."""
        self._sequence += skip
        with self.kmsg.open("ab") as log:
            for text in texts:
                log.write(kmsg_record(self._sequence, self._sequence, text))
                self._sequence += 1

    async def start(self, **environment: str) -> None:
        """Start the agent."""
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent"),
            env=self.environment | environment,
            stderr=PIPE,
            limit=1 << 20,
        )

    async def logged(self, message: str, times: int = 1) -> None:
        """Wait until the agent has logged a message so many times."""
        assert self.process is not None
        assert self.process.stderr is not None
        async with asyncio.timeout(WAIT_SECONDS):
            while times:
                line = await self.process.stderr.readline()
                assert line, "the agent ended"
                times -= json.loads(line)["msg"].startswith(message)

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """End the agent; return its exit status."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode


@pytest.fixture
async def host(
    tmp_path: Path, server: EmbeddedServer, bus: NatsBus, nvml_library: Path
) -> AsyncIterator[AgentHost]:
    """A host on the bus, with the agent still to be started."""
    _ = bus
    made = AgentHost(tmp_path, server.url, nvml_library, "training-1")
    yield made
    if made.process is not None and made.process.returncode is None:
        await made.stop(signal.SIGKILL)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    """Make a host without tools."""
    directory = tmp_path / "bin"
    directory.mkdir()
    return Bed(directory)


async def events(bus: NatsBus, node: str, count: int) -> list[Stored]:
    """Wait until `count` facts about a node are stored, and give them in order."""
    found: list[Stored] = []
    async with asyncio.timeout(WAIT_SECONDS):
        async for stored in bus.follow("EVENTS", [node_events_of("training", node)], "all"):
            found.append(stored)
            if len(found) == count:
                break
    return found


def contents(stored: Sequence[Stored]) -> list[dict[str, Any]]:
    """Decode messages plainly, as `nats sub` shows them."""
    return [json.loads(each.data) for each in stored]
