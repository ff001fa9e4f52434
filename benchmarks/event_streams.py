"""A gateway with 1,000 open event streams: its memory, its processor time, and delays of events.

The clients and the publisher are one process on the same machine, whose processor time is measured
for itself: where it nears a core, the delays are its own.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

from benchmarks.machine import KIB, cpu_seconds, percentile, resident_bytes
from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Lost
from schemas.settings import NatsSettings
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.gateway.access_tokens import digest
from services.primitives.clock import SystemClock

STREAMS: Final = 1_000
OPENED_AT_ONCE: Final = 50
EVENTS: Final = 50
PER_SECOND: Final = 10
IDLE_SECONDS: Final = 20.0
READY_SECONDS_MAX: Final = 60.0
NODE: Final = re.compile(rb'"id":"(node-\d+)"')
TOKENS: Final = [f"token-of-reader-{number}" for number in range(10)]
"""One caller may have a quarter of the streams."""
CONFIG: Final = "\n".join(
    [
        "gateway:",
        "  requests_per_minute: 100000",
        "  tokens:",
        *(
            f"    reader-{number}: {{sha256: {digest(token)}, role: viewer}}"
            for number, token in enumerate(TOKENS)
        ),
    ]
)


class Clients:
    """The open streams, and when each event came on each."""

    def __init__(self, host: str, port: int) -> None:
        """Nothing is open yet."""
        self._place = host, port
        self._open: list[Stream] = []
        self._few = asyncio.Semaphore(OPENED_AT_ONCE)
        self.came: dict[bytes, list[float]] = {}
        self.left = STREAMS * EVENTS
        """Events that have not come, on all streams together."""
        self.complete = asyncio.Event()

    async def open(self, token: str) -> None:
        """Open one more stream."""
        async with self._few:
            loop = asyncio.get_running_loop()
            transport, stream = await loop.create_connection(lambda: Stream(self), *self._place)
            head = f"GET /api/v1/events/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}"
            transport.write(f"{head}\r\n\r\n".encode())
            await stream.opened
        self._open.append(stream)

    def count(self, nodes: list[bytes]) -> None:
        """Note that events about these nodes came on a stream."""
        now = time.perf_counter()
        for each in nodes:
            self.came.setdefault(each, []).append(now)
        self.left -= len(nodes)
        if self.left == 0:
            self.complete.set()

    def close(self) -> None:
        """Close every stream."""
        for each in self._open:
            each.transport.close()


class Stream(asyncio.Protocol):
    """One open stream: reads no more of each event than its node."""

    transport: asyncio.Transport

    def __init__(self, clients: Clients) -> None:
        """Nothing has come yet."""
        self._clients = clients
        self._rest = b""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it, to write the request."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Find the whole lines of events."""
        lines, end, self._rest = (self._rest + data).rpartition(b"\r\n")
        if not self.opened.done():
            if end and not lines.startswith(b"HTTP/1.1 200 "):
                self.opened.set_exception(RuntimeError(f"no stream: {lines.decode()}"))
            elif b"connected" in lines:
                self.opened.set_result(None)
            else:
                self._rest = lines + end + self._rest
        elif nodes := NODE.findall(lines):
            self._clients.count(nodes)


async def measure() -> dict[str, Any]:
    """Open the streams, wait, then publish."""
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        server = EmbeddedServer(Path(place) / "nats", sync=False)
        await server.start()
        try:
            bus = await NatsBus.connect(
                ConnectOptions(settings=NatsSettings(url=server.url), name="b")
            )
            await set_up(bus, SystemClock(), replicas=1)
            async with _gateway(server.url, Path(place)) as (pid, host, port):
                found = await _streams(bus, pid, Clients(host, port))
            await bus.close()
            return found
        finally:
            await server.stop()


async def _streams(bus: NatsBus, pid: int, clients: Clients) -> dict[str, Any]:
    before, start = resident_bytes(pid), cpu_seconds(pid)
    await asyncio.gather(*(clients.open(TOKENS[each % len(TOKENS)]) for each in range(STREAMS)))
    opened = cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    idle = cpu_seconds(pid)
    own = time.process_time()
    sent: dict[bytes, float] = {}
    for number in range(EVENTS):
        node = f"node-{number}"
        event = Lost(id=node, time=datetime.now(UTC), pool="training", node=node)
        sent[node.encode()] = time.perf_counter()
        await bus.publish(event_subject(event), encode(event))
        await asyncio.sleep(1 / PER_SECOND)
    with suppress(TimeoutError):
        await asyncio.wait_for(clients.complete.wait(), READY_SECONDS_MAX)
    used = cpu_seconds(pid) - idle
    own = time.process_time() - own
    delays = [1e3 * (at - sent[node]) for node, times in clients.came.items() for at in times]
    memory = resident_bytes(pid)
    clients.close()
    return {
        "streams_gateway_mib_before": round(before / KIB / KIB, 1),
        "streams_gateway_mib": round(memory / KIB / KIB, 1),
        "streams_open_cpu_ms_each": round(1e3 * (opened - start) / STREAMS, 2),
        "streams_idle_cores": round((idle - opened) / IDLE_SECONDS, 3),
        "streams_event_cpu_ms": round(1e3 * used / EVENTS, 1),
        "streams_clients_cpu_ms": round(1e3 * own / EVENTS, 1),
        "streams_delay_ms_p50": round(percentile(delays, 50)),
        "streams_delay_ms_p99": round(percentile(delays, 99)),
        "streams_events_missing": clients.left,
    }


@asynccontextmanager
async def _gateway(url: str, place: Path) -> AsyncIterator[tuple[int, str, int]]:
    """Its process and address."""
    file = place / "navarch.yaml"
    file.write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.gateway", "--config", str(file)),
        env=os.environ | {"NAVARCH_NATS_URL": url},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(READY_SECONDS_MAX):
            entry: dict[str, Any] = {}
            while entry.get("msg") != "ready":
                entry = json.loads(await process.stderr.readline())
        host, _, port = entry["http"].removeprefix("http://").rpartition(":")
        yield process.pid, host, int(port)
    finally:
        process.terminate()
        await process.communicate()
