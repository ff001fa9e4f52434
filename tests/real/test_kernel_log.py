"""The kernel's own log: a line written to /dev/kmsg is one fault, also over restarts."""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.observations import KernelLogLine
from agent.sources.kernel_log_reader import KernelLogReader
from schemas.subjects import node_events_of
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.provisioner.providers.local_gpus import build_library, compiler
from tests.agent.conftest import WAIT_SECONDS, AgentHost

KMSG = Path("/dev/kmsg")
CODES = (13, 31, 32, 38, 43, 45, 48, 56, 61, 62, 63, 64, 69, 74, 79, 92, 94, 95, 119, 120)


def missing() -> str:
    """Return why the kernel log is not available here, or nothing if it is."""
    try:
        os.close(os.open(KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError as error:
        return f"{error}: run as root, or with CAP_SYSLOG, on a host that shares its kernel log"
    return "" if compiler() else "no C compiler, so no simulated GPUs"


pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(missing()), reason=missing() or "here")]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Build the stand-in for libnvidia-ml.so.1 and return its path."""
    return build_library(tmp_path / "nvml")


async def inject(host: AgentHost, code: int, gpu: int, text: str) -> None:
    """Write a drill's line as an operator does."""
    about = ("inject", "xid", str(code), "--gpu", str(gpu), "--text", text)
    command = ("-m", "agent", *about)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, env=host.environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert text in out.decode()


async def faults(bus: NatsBus, host: AgentHost, text: str) -> AsyncIterator[dict[str, Any]]:
    """The faults whose line contains a text, as they arrive."""
    async with asyncio.timeout(WAIT_SECONDS):
        async for stored in bus.follow("EVENTS", [node_events_of("training", host.node)], "all"):
            fault = json.loads(stored.data)
            if text in fault.get("message", ""):
                yield fault


async def test_kernel_log_is_followed_and_resumed(
    tmp_path: Path, server: EmbeddedServer, bus: NatsBus, library: Path
) -> None:
    """Two drills, the second while the agent is down: each is one fault of the named GPU."""
    mark = secrets.token_hex(8)
    # The log has drills of earlier runs, and of many equal ones only the first is published.
    host = AgentHost(tmp_path, server.url, library, "training-1")
    code, gpu = secrets.choice(CODES), secrets.randbelow(len(host.gpus))
    host.environment |= {"NAVARCH_KMSG": str(KMSG), "NAVARCH_KMSG_ANY_FACILITY": "1"}
    await host.start()
    await inject(host, code, gpu, f"drill {mark} first")
    first = await anext(faults(bus, host, mark))
    assert ("xid", code, gpu, host.gpus[gpu].uuid) == tuple(
        first[key] for key in ("kind", "code", "gpu_index", "gpu_uuid")
    )
    assert await host.stop() == 0
    await inject(host, code, gpu, f"drill {mark} second")
    await host.start()
    found = faults(bus, host, mark)
    received = [await anext(found) for _ in range(2)]
    assert [f"drill {mark} first", f"drill {mark} second"] == [
        each["message"].rsplit("name=drill, ", 1)[1] for each in received
    ]
    assert received[0]["sequence"] < received[1]["sequence"]
    assert await host.stop() == 0


async def test_lines_of_processes_are_distinguished_from_kernel_lines() -> None:
    """The facility of a line written to /dev/kmsg is not the kernel's."""
    mark, found = secrets.token_hex(8), asyncio.Queue[KernelLogLine]()
    log = KernelLogReader(
        KMSG,
        after=-1,
        on_line=lambda line: found.put_nowait(line) if mark in line.text else None,
        on_gap=lambda *_: None,
    )
    log.start()
    handle = os.open(KMSG, os.O_WRONLY)
    os.write(handle, f"<3>NVRM: Xid (PCI:0000:3b:00): 79, {mark}\n".encode())
    os.close(handle)
    async with asyncio.timeout(WAIT_SECONDS):
        line = await found.get()
    log.stop()
    assert (3, False) == (line.priority, line.facility == 0)
    assert 0 == log.malformed
