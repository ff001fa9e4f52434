"""Three nats-servers that are one: a real JetStream cluster on free ports of this machine.

A store of three replicas goes on while two servers live. What a test must allow for: a server that
is killed takes the leadership of its streams with it, and the others elect again only after they
have heard nothing of it for four to nine seconds, which is nats-server's own bound and no setting.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from schemas.settings import NatsSettings
from schemas.topology import BUCKETS, DURABLES, STREAMS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.errors import BusError, Unavailable
from services.primitives.free_ports import LOOPBACK, free_ports
from tests.support.network import Network

SERVERS: Final = 3
LED_SECONDS_MAX: Final = 60.0
ASK_SECONDS: Final = 0.5
"""A cluster without a leader does not answer at all, so each question is a short one."""
LOOK_SECONDS: Final = 0.05


class Cluster:
    """Enter it and it has a leader; leave it and nothing is left."""

    def __init__(
        self, directory: Path, servers: int = SERVERS, network: Network | None = None
    ) -> None:
        """Keep a folder for each server under `directory`; `network`: where each of them is."""
        names = [f"n{number + 1}" for number in range(servers)]
        hosts = [network.address_of(name) if network else LOOPBACK for name in names]
        ports = free_ports(servers)
        routes = [f"nats://{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
        self.servers = [
            EmbeddedServer(
                directory / name,
                name=name,
                through=network.through(name) if network else (),
                arguments=(
                    *("--addr", host),
                    *("--cluster_name", "navarch"),
                    *("--cluster", route, "--routes", ",".join(routes)),
                ),
                sync=False,
            )
            for name, host, route in zip(names, hosts, routes, strict=True)
        ]

    @property
    def url(self) -> str:
        """All servers, as `nats.url` takes them."""
        return ",".join(each.url for each in self.servers)

    async def __aenter__(self) -> Self:
        """Start every server, and wait until they are one."""
        await asyncio.gather(*(each.start() for each in self.servers))
        async with connected(self.url) as bus:
            await led(bus)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every server; their stores go with the test."""
        for each in self.servers:
            if each.pid:
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGCONT)
        await asyncio.gather(*(each.kill() for each in self.servers))

    async def led(self, bus: NatsBus) -> None:
        """Wait until every stream that has replicas, and every durable, has a leader."""
        streams = [*STREAMS, *(bucket.stream() for bucket in BUCKETS)]
        calls = [f"STREAM.INFO.{each.name}" for each in streams if not each.replicas_one]
        calls += [f"CONSUMER.INFO.{each.stream}.{each.name}" for each in DURABLES]
        await asyncio.gather(*(_answered(bus, call) for call in calls))

    async def leader(self, bus: NatsBus, stream: str) -> EmbeddedServer:
        """The server that leads a stream."""
        name = await leader_of(bus, stream)
        return next(each for each in self.servers if each.name == name)


@asynccontextmanager
async def connected(url: str, name: str = "test") -> AsyncIterator[NatsBus]:
    """A connection, as a service on three replicas has it."""
    settings = NatsSettings(url=url, replicas=SERVERS)
    bus = await NatsBus.connect(ConnectOptions(settings=settings, name=name, ping_seconds=2))
    try:
        yield bus
    finally:
        await bus.close()


async def leader_of(bus: NatsBus, stream: str, *, besides: EmbeddedServer | None = None) -> str:
    """The name of the server that leads a stream, as soon as there is one, another than that."""
    while True:
        with suppress(BusError):
            body = await bus.request(
                f"$JS.API.STREAM.INFO.{stream}", b"", timeout_seconds=ASK_SECONDS
            )
            name = str(msgspec.json.decode(body.data).get("cluster", {}).get("leader", ""))
            if name and (besides is None or name != besides.name):
                return name
        await asyncio.sleep(LOOK_SECONDS)


async def led(bus: NatsBus) -> None:
    """Wait until the cluster has a leader of its own, so that streams can be made."""
    await _answered(bus, "STREAM.NAMES")


async def _answered(bus: NatsBus, call: str) -> None:
    """Wait until the leader that a call needs answers it."""
    async with asyncio.timeout(LED_SECONDS_MAX):
        while True:
            with suppress(BusError, TimeoutError):
                async with asyncio.timeout(ASK_SECONDS):
                    await bus.admin(call, {})
                return
            await asyncio.sleep(LOOK_SECONDS)


async def replicas_current(bus: NatsBus, stream: str) -> bool:
    """Return whether every replica of a stream is current; False without a leader."""
    try:
        info: dict[str, Any] = await bus.admin(f"STREAM.INFO.{stream}", {})
    except Unavailable:
        return False
    replicas = info.get("cluster", {}).get("replicas", [])
    return bool(replicas) and all(each.get("current") for each in replicas)
