"""Measures what accounts, TLS and limits cost: latency, messages per second, processor time.

The same work against two servers with shipped settings, in turns: one is open, one has the files
that `navarch nats-config write` makes. An agent stores facts and heartbeats; a user asks what a
service answers. With accounts the agent, the user and the service are in different ones. The open
server is the floor of the other.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.comparison import medians
from schemas import permissions, subjects
from schemas.messages import encode
from schemas.node_events import Fault
from schemas.node_records import HeartbeatRecord, node_key
from schemas.settings import NatsSettings
from schemas.topology import HEARTBEATS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Headers
from services.bus.topology_setup import set_up
from services.cli.bus_client import user_options
from services.cli.nats_config_files import ACCOUNTS, add_user, write, write_agent
from services.primitives.clock import SystemClock

ROUNDS = 3
ONE_BY_ONE = 300
MESSAGES = 4_000
AT_ONCE = 100
POOL, NODE = "training", "n1"
QUERY = subjects.query("nodes")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

Call = Callable[[int], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Server:
    """A server, and who works with it."""

    pid: int
    agent: NatsBus
    service: NatsBus
    user: NatsBus

    def calls(self) -> dict[str, Call]:
        """Return what is measured: one call of each kind."""
        beat = encode(HeartbeatRecord(pool=POOL, node=NODE, time=datetime.now(UTC)))
        fault_subject = subjects.node_event(POOL, NODE, "fault")

        async def fact(number: int) -> None:
            fault = Fault(
                id=f"fault-{number}-{time.monotonic_ns()}",
                time=datetime.now(UTC),
                pool=POOL,
                node=NODE,
                kind="xid",
                code=79,
                message="NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
            )
            await self.agent.publish(fault_subject, encode(fault), msg_id=fault.id)

        async def heartbeat(_: int) -> None:
            await self.agent.put(HEARTBEATS, node_key(POOL, NODE), beat, ttl_seconds=30)

        async def query(_: int) -> None:
            await self.user.request(QUERY, b"{}", timeout_seconds=30)

        return {"fact": fact, "heartbeat": heartbeat, "query": query}

    def busy_seconds(self) -> float:
        """Return the processor time of the server so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


async def _answer(_: bytes, __: Headers) -> bytes:
    return b"[]"


@asynccontextmanager
async def _serving(directory: Path, *, secured: bool) -> AsyncIterator[Server]:
    """A server, with or without accounts and TLS; everything else is the same."""
    config = _configure(directory) if secured else None
    server = EmbeddedServer(directory / "nats", config=config)
    url = await server.start()
    connect = _credentials(directory, url) if secured else _open(url)
    buses = {who: await NatsBus.connect(each, seconds_max=20) for who, each in connect.items()}
    admin = buses["admin"]
    await set_up(admin, SystemClock(), replicas=1)
    await buses["service"].serve("bench", "answers queries", {QUERY: _answer})
    try:
        yield Server(server.pid, buses["agent"], buses["service"], buses["user"])
    finally:
        for each in buses.values():
            await each.close()
        await server.kill()


def _open(url: str) -> dict[str, ConnectOptions]:
    settings = NatsSettings(url=url)
    return {
        who: ConnectOptions(settings=settings, name=who)
        for who in ("agent", "service", "user", "admin")
    }


def _configure(directory: Path) -> Path:
    """Write what `navarch nats-config write` writes, and the server's TLS; return its file."""
    now = datetime.now(UTC)
    write(
        *(directory, "bench", now),
        hosts=["127.0.0.1", "localhost"],
        store=str(directory),
        listen="127.0.0.1:4222",
        http="127.0.0.1:8222",
    )
    for role in (permissions.OPERATOR, permissions.ADMIN):
        add_user(directory, role, role, now, timedelta(days=1))
    write_agent(directory, POOL, NODE, now, timedelta(days=1))
    config = directory / "bench.conf"
    tls = directory / "tls"
    config.write_text(
        f'tls {{ cert_file: "{tls}/server.pem", key_file: "{tls}/server.pem" }}\n'
        # Not included: the embedded server looks here for an operator, and adds its resolver.
        + (directory / ACCOUNTS).read_text()
    )
    return config


def _credentials(directory: Path, url: str) -> dict[str, ConnectOptions]:
    def settings(file: str) -> NatsSettings:
        return NatsSettings(
            url=url.replace("nats://", "tls://"),
            creds_file=str(directory / "creds" / f"{file}.creds"),
            tls_ca_file=str(directory / "tls" / "ca.pem"),
        )

    box = permissions.node_inbox(POOL, NODE)
    return {
        "agent": ConnectOptions(
            settings=settings(f"agent-{POOL}-{NODE}"), name="agent", inbox_prefix=box
        ),
        "service": ConnectOptions(
            settings=settings("pool-manager"),
            name="service",
            inbox_prefix=permissions.inbox("pool-manager"),
        ),
        "user": user_options(settings(permissions.OPERATOR)),
        "admin": ConnectOptions(
            settings=settings(permissions.ADMIN),
            name="admin",
            inbox_prefix=permissions.inbox("admin"),
        ),
    }


async def _round(server: Server, call: Call) -> dict[str, float]:
    """One kind of call: one after another, then many at once."""
    took = []
    for number in range(ONE_BY_ONE):
        began = time.perf_counter()
        await call(number)
        took.append((time.perf_counter() - began) * 1000)
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with slots:
            await call(number)

    busy, began = server.busy_seconds(), time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(MESSAGES)))
    seconds = time.perf_counter() - began
    return {
        "ms_p50": statistics.median(took),
        "ms_p99": statistics.quantiles(took, n=100)[98],
        "per_second": MESSAGES / seconds,
        "server_us": (server.busy_seconds() - busy) / MESSAGES * 1e6,
    }


async def measure() -> dict[str, Any]:
    """Return the median of the rounds, for each kind of call with and without protection."""
    found: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for which in ("open", "secured"):
            (Path(directory) / which).mkdir()
        async with (
            _serving(Path(directory, "open"), secured=False) as plain,
            _serving(Path(directory, "secured"), secured=True) as secured,
        ):
            for _ in range(ROUNDS):
                for name in plain.calls():
                    floor = await _round(plain, plain.calls()[name])
                    figures = await _round(secured, secured.calls()[name])
                    # It is counted in hundredths of a second, too coarse for a ratio.
                    figures["server_us_open"] = floor.pop("server_us")
                    found.setdefault(name, []).append((figures, floor))
    return {
        f"secured_{name}_{figure}": value
        for name, rounds in found.items()
        for figure, value in medians(rounds).items()
    }
