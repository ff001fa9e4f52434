"""A gateway with 1,000 open event streams: its memory, its processor time, and delays of events.

The clients and the publisher are one process on the same machine, whose processor time is measured
for itself: where it nears a core, the delays are its own. The floor is the same with a bare relay
in the gateway's place: a process that follows the same events with the same client, and writes the
bytes of each to every connection.
"""

import asyncio
import json
import os
import re
import sys
import time
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from typing import Any, Final, cast

import uvloop

from benchmarks.comparison import medians
from benchmarks.machine import KIB, cpu_seconds, percentile, resident_bytes
from benchmarks.served import READY_SECONDS_MAX, connect, service, serving
from schemas import subjects
from schemas.event_subjects import event_subject
from schemas.messages import encode
from schemas.node_events import Lost
from schemas.topology import EVENTS as STREAM
from services.bus.nats.nats_bus import NatsBus
from services.gateway.access_tokens import digest

STREAMS: Final = 1_000
OPENED_AT_ONCE: Final = 50
EVENTS: Final = 50
PER_SECOND: Final = 10
IDLE_SECONDS: Final = 20.0
HEADER: Final = b"HTTP/1.1 200 OK\r\n\r\n:connected\r\n"
FLOORS: Final = ("gateway_mib", "event_cpu_ms", "delay_ms_p50", "delay_ms_p99")
NODE: Final = re.compile(rb'"id":"(node-\w+-\d+)"')
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
    """Measure a gateway, then the relay in its place."""
    async with serving(sync=False) as (server, bus, place):
        file = place / "navarch.yaml"
        file.write_text(CONFIG)
        async with service("services.gateway", server.url, file) as (pid, ready):
            host, _, port = ready["http"].removeprefix("http://").rpartition(":")
            found = await _streams(bus, pid, Clients(host, port), "gateway")
        async with service("benchmarks.event_streams", server.url, file) as (pid, ready):
            host, _, port = ready["http"].rpartition(":")
            floor = await _streams(bus, pid, Clients(host, port), "floor")
    missing = found["events_missing"]
    figures = medians([(found, {each: floor[each] for each in FLOORS})])
    return {f"streams_{name}": value for name, value in figures.items()} | {
        "events_missing": missing
    }


async def _streams(bus: NatsBus, pid: int, clients: Clients, prefix: str) -> dict[str, float]:
    before, start = resident_bytes(pid), cpu_seconds(pid)
    await asyncio.gather(*(clients.open(TOKENS[each % len(TOKENS)]) for each in range(STREAMS)))
    opened = cpu_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    idle = cpu_seconds(pid)
    own = time.process_time()
    sent: dict[bytes, float] = {}
    for number in range(EVENTS):
        node = f"node-{prefix}-{number}"
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
        "gateway_mib_before": round(before / KIB / KIB, 1),
        "gateway_mib": round(memory / KIB / KIB, 1),
        "open_cpu_ms_each": round(1e3 * (opened - start) / STREAMS, 2),
        "idle_cores": round((idle - opened) / IDLE_SECONDS, 3),
        "event_cpu_ms": round(1e3 * used / EVENTS, 1),
        "clients_cpu_ms": round(1e3 * own / EVENTS, 1),
        "delay_ms_p50": round(percentile(delays, 50)),
        "delay_ms_p99": round(percentile(delays, 99)),
        "events_missing": clients.left,
    }


async def _floor() -> None:
    """Write every event to every connection; no request is read."""
    bus = await connect(os.environ["NAVARCH_NATS_URL"], "floor")
    writers: list[asyncio.StreamWriter] = []

    def opened(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEADER)
        writers.append(writer)

    server = await asyncio.start_server(opened, "127.0.0.1", 0, backlog=STREAMS)
    host, port = server.sockets[0].getsockname()
    sys.stderr.write(json.dumps({"msg": "ready", "http": f"{host}:{port}"}) + "\n")
    sys.stderr.flush()
    following = bus.follow(STREAM.name, [subjects.NODE_EVENTS], "new")
    async with aclosing(following):  # type: ignore[type-var]
        async for stored in following:
            line = b"data: " + stored.data + b"\r\n\r\n"
            for writer in writers:
                writer.write(line)


if __name__ == "__main__":
    uvloop.run(_floor())
