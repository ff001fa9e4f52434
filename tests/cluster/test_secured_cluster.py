"""Three servers with the files of `navarch nats-config write --server …`, and who may join them."""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from schemas import subjects
from schemas.permissions import USER_ROLES
from schemas.topology import EVENTS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.cli import certificates
from services.cli.bus_certificates import ROUTES, TLS, BusCertificates
from services.cli.cluster_servers import ClusterServer, cluster_servers
from services.cli.nats_config_files import ACCOUNTS, CLIENTS_FILE, add_user, write
from services.primitives.clock import SystemClock
from services.primitives.free_ports import LOOPBACK, free_ports
from tests.support.cluster import led, replicas_current
from tests.support.secured import WHERE, Secured

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NOW = datetime.now(UTC)
LOOK_SECONDS = 0.02
WAIT_SECONDS_MAX = 30.0


class Server(EmbeddedServer):
    """A server with a configuration that is complete."""

    def __init__(self, directory: Path, conf: str, name: str, through: Sequence[str] = ()) -> None:
        self.pid_file = directory / "nats.pid"
        arguments = ("--pid", str(self.pid_file))
        super().__init__(directory, name=name, through=through, arguments=arguments)
        self.folder, self._text = directory, conf

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def _written_config(self) -> Path:
        written = self.folder / "server.conf"
        written.write_text(self._text.replace(WHERE["store"], str(self.folder / "js")))
        return written

    @property
    def log(self) -> str:
        """Return what the server logged."""
        return (self.folder / "nats-server.log").read_text()

    async def peers(self) -> set[str]:
        """The names of the servers that are connected to it."""
        (ports,) = (self.folder / "ports").glob("*.ports")
        url = json.loads(ports.read_text())["monitoring"][0]
        async with httpx.AsyncClient() as client:
            routes = (await client.get(f"{url}/routez")).json()["routes"]
        return {each["remote_name"] for each in routes or ()}


@dataclass
class SecuredCluster:
    """Three servers, and the directory that configures them."""

    directory: Path
    known: tuple[ClusterServer, ...]
    servers: list[Server] = field(default_factory=list)

    @property
    def secured(self) -> list[Secured]:
        """Return each server, with the credentials of everybody."""
        return [Secured(each, self.directory) for each in self.servers]


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(LOOK_SECONDS)


def conf_of(directory: Path, server: ClusterServer) -> str:
    """Return a server's configuration, on this machine's own address."""
    text = (directory / server.conf).read_text()
    return text.replace("0.0.0.0", LOOPBACK).replace(WHERE["http"], f"{LOOPBACK}:-1")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredCluster]:
    """Three servers that are one, with the whole topology."""
    path = tmp_path_factory.mktemp("secured-cluster")
    stated = [f"n{at}={LOOPBACK}:{port}" for at, port in enumerate(free_ports(3), 1)]
    found = SecuredCluster(path / "bus", cluster_servers(stated))
    write(found.directory, "tests", NOW, **WHERE, servers=found.known)
    for role in USER_ROLES:
        add_user(found.directory, role, role, NOW, timedelta(days=1))
    for each in found.known:
        server = Server(path / each.name, conf_of(found.directory, each), each.name)
        server.folder.mkdir()
        shutil.copy(found.directory / ACCOUNTS, server.folder)
        found.servers.append(server)
    try:
        await asyncio.gather(*(each.start() for each in found.servers))
        bus = await NatsBus.connect(found.secured[0].options("admin"), seconds_max=20)
        await led(bus)
        await set_up(bus, SystemClock(), replicas=3)
        await bus.close()
        yield found
    finally:
        await asyncio.gather(*(each.kill() for each in found.servers))


async def test_the_files_make_one_cluster_in_which_the_accounts_hold(
    cluster: SecuredCluster,
) -> None:
    """An agent's report to any server is stored once; each server refuses the roles alike."""
    for each in cluster.servers:
        assert await each.peers() == {other.name for other in cluster.servers} - {each.name}
    found = []
    for number, server in enumerate(cluster.secured):
        node = f"n{number}"
        subject = subjects.node_event("training", node, "fault")
        agent = await NatsBus.connect(server.options(f"agent:training/{node}"), seconds_max=20)
        await agent.publish(subject, b"{}")
        await agent.close()
        found.append(subject)
        other = subjects.node_event("training", "another", "fault")
        refused = await server.refused(f"agent:training/{node}", [("publish", other)])
        assert refused == {("publish", other)}
        saga = subjects.saga_entry("s", "drain", "started")
        assert await server.refused("viewer", [("publish", saga)]) == {("publish", saga)}
    bus = await NatsBus.connect(cluster.secured[2].options("admin"), seconds_max=20)
    stored = await bus.read(EVENTS.name, subjects.node_event_wildcard("fault"))
    info = await bus.admin(f"STREAM.INFO.{SAGAS.name}", {})
    await bus.close()
    assert sorted(found) == sorted(each.subject for each in stored)
    assert len(info["cluster"]["replicas"]) == 2
    clients = (cluster.directory / CLIENTS_FILE).read_text()
    assert "replicas: 3" in clients


def joining(cluster: SecuredCluster, tls: str) -> str:
    """The configuration of a fourth server that wants to join."""
    urls = ", ".join(f"nats-route://{each.host}:{each.port}" for each in cluster.known)
    return f"""
http: "{LOOPBACK}:-1"
cluster {{
  name: "navarch-tests"
  listen: "{LOOPBACK}:-1"
  {tls}
  routes: [{urls}]
}}
"""


def certificate_of(cluster: SecuredCluster, kind: str) -> str:
    """The tls section of a server with a certificate that the cluster has not given it."""
    directory, authority = cluster.directory, cluster.directory / ROUTES / "ca.pem"
    hosts = [LOOPBACK]
    match kind:
        case "none":
            return ""
        case "the cluster's":
            BusCertificates(directory, ROUTES).write("tests routes", {"n4": hosts}, NOW)
            file = directory / ROUTES / "n4.pem"
        case "a client's" | "the servers' own":
            clients = BusCertificates(directory)
            clients.write("tests", {"server": hosts}, NOW)
            is_client = kind == "a client's"
            file = (
                clients.write_client("alice", NOW) if is_client else directory / TLS / "server.pem"
            )
        case _:
            key = certificates.new_key()
            other = certificates.new_authority("tests routes", key, NOW)
            file = directory / "other.pem"
            file.write_text(certificates.new_certificate(other, key, "n4", hosts, NOW))
    return (
        f'tls {{ cert_file: "{file}", key_file: "{file}", ca_file: "{authority}", verify: true }}'
    )


@pytest.mark.parametrize(
    ("kind", "joins"),
    [
        ("none", False),
        ("a client's", False),
        ("the servers' own", False),
        ("another authority's", False),
        ("the cluster's", True),
    ],
)
async def test_only_a_certificate_of_the_routes_own_authority_joins(
    cluster: SecuredCluster, tmp_path: Path, kind: str, *, joins: bool
) -> None:
    """A server that joins is past all accounts; the last row shows that the others could."""
    await joins_or_not(cluster, tmp_path, certificate_of(cluster, kind), joins=joins)


async def joins_or_not(cluster: SecuredCluster, path: Path, tls: str, *, joins: bool) -> None:
    """Start a fourth server, and see whether it becomes one of the cluster."""
    server = Server(path, joining(cluster, tls), "n4")
    await server.start()
    try:
        if joins:
            await until(lambda: _has_peers(server, 3))
        else:
            # It has tried each of them, and been sent away.
            await until(lambda: len(cluster.known) <= server.log.count("Router connection closed"))
            assert await server.peers() == set()
        for each in cluster.servers:
            assert ("n4" in await each.peers()) == joins
    finally:
        await server.kill()


async def _has_peers(server: Server, count: int) -> bool:
    return len(await server.peers()) == count


async def test_the_route_port_takes_nothing_without_tls(cluster: SecuredCluster) -> None:
    """A program that speaks the protocol of servers in plain text is cut off unheard."""
    one = cluster.known[0]
    reader, writer = await asyncio.open_connection(one.host, one.port)
    hello = {"server_id": "X" * 56, "server_name": "x", "cluster": "navarch-tests", "proto": 2}
    forged = subjects.saga_entry("s", "drain", "started").encode()
    heard = b""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        writer.write(b"INFO " + json.dumps(hello).encode() + b"\r\n")
        writer.write(b"RMSG $G " + forged + b" 2\r\n{}\r\n")
        # The server closes with input unread, which the kernel may report as a reset.
        with contextlib.suppress(ConnectionResetError):
            while part := await reader.read(4096):
                heard += part
    writer.close()
    assert b"PONG" not in heard
    bus = await NatsBus.connect(cluster.secured[0].options("admin"), seconds_max=20)
    assert await bus.last_sequence(SAGAS.name) == 0
    await bus.close()


async def test_a_stolen_certificate_is_refused_after_the_authority_was_replaced(
    cluster: SecuredCluster, tmp_path: Path
) -> None:
    """The remedy is that of docs/credentials.md: new files, and each server is restarted."""
    directory = cluster.directory
    stolen = tmp_path / "stolen.pem"
    shutil.copy(directory / ROUTES / "n1.pem", stolen)
    shutil.rmtree(directory / ROUTES)
    (directory / "keys/routes-ca.key").unlink()
    write(directory, "tests", NOW, **WHERE, servers=cluster.known)
    for each in cluster.servers:
        await each.restart()
    for each in cluster.servers:
        await until(lambda each=each: _has_peers(each, 2))
    bus = await NatsBus.connect(cluster.secured[0].options("admin"), seconds_max=20)
    await until(lambda: replicas_current(bus, EVENTS.name))
    assert await bus.last_sequence(EVENTS.name) == len(cluster.servers)
    await bus.close()
    tls = f'cert_file: "{stolen}", key_file: "{stolen}", ca_file: "{directory / ROUTES}/ca.pem"'
    await joins_or_not(cluster, tmp_path, f"tls {{ {tls}, verify: true }}", joins=False)
