"""A real server, started with what `nats-config` writes, permits each role what it may do."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from schemas import permissions, subjects
from schemas.messages import encode
from schemas.names import InvalidNameError
from schemas.node_records import NodeRecord
from schemas.settings import NatsSettings, Settings
from schemas.topology import DURABLES, HEARTBEATS, NODES, POOL_REQUESTS, SAGAS
from services.bus.nats.connection_options import credentials
from services.bus.nats.credentials_file import claims_of
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.port import Stored
from services.cli.nats_config_files import BusDirectory, write, write_agent
from services.pool_manager.requests.request_replies import read_request
from services.pool_manager.service import PoolManager
from services.primitives.clock import SystemClock
from services.primitives.errors import ConfigurationError, Unavailable
from services.runtime.process import Context
from services.runtime.process_metrics import Instruments
from services.runtime.tracing import Tracing
from tests.support.secured import NOW, WHERE, Secured

SERVICES = permissions.SERVICES


NODE = "navarch.v1.node.training.n1"
OTHER = "navarch.v1.node.training.n2"
NEXT = "$JS.API.CONSUMER.MSG.NEXT"
MAY: dict[str, list[str]] = {
    "pool-manager": [
        "navarch.v1.saga.s1.cordon.started",
        f"{NODE}.event.admitted",
        "$KV.POOLS.pool.training",
        "$KV.NODES.training.n1",
        "navarch.v1.timer.schedule.pool-manager.x",
        "$JS.API.STREAM.PURGE.SAGAS",
        "navarch.v1.query.instances",
    ],
    "notifier": [
        "navarch.v1.saga.s1.cordon.succeeded",
        "navarch.v1.saga.s1.drain.failed",
        "navarch.v1.saga.s1.cordon.undo-succeeded",
        f"{NEXT}.SAGAS.notifier-steps",
        "$JS.ACK.SAGAS.notifier-steps.1.2.3.4.5",
        "navarch.v1.sink.audit",
        "$JS.API.CONSUMER.DELETE.EVENTS.sink-audit",
        "$JS.ACK.EVENTS.sink-audit.1.2.3.4.5",
    ],
    "provisioner": [
        "navarch.v1.saga.s1.provision.succeeded",
        "$KV.INSTANCES.training.n1",
        f"{NODE}.command.diagnose",
        "navarch.v1.pool.training.event.instance-leaked",
    ],
    "health-monitor": [f"{NODE}.event.verdict", f"{NODE}.event.fault", "$KV.HEALTH.training.n1"],
    "metrics": ["navarch.v1.fleet.event.lag"],
    "operator": [
        "navarch.v1.pool.training.request.scale.operator",
        "navarch.v1.order.sweep-now.operator",
        "navarch.v1.query.workload-check",
        f"{NODE}.command.diagnose",
    ],
    "pool-admin": [
        "navarch.v1.pool.training.request.apply.pool-admin",
        "navarch.v1.pool.training.request.remove.pool-admin",
        "navarch.v1.pool.training.request.scale.pool-admin",
        "navarch.v1.order.plugin-switch.pool-admin",
    ],
    "scheduler": ["navarch.v1.order.work-done.scheduler"],
    "sink-reader": [
        "$JS.API.STREAM.INFO.SINKS",
        "$JS.API.DIRECT.GET.SINKS",
        "$JS.API.DIRECT.GET.SINKS.navarch.v1.sink.audit",
    ],
    "gateway": [
        "navarch.v1.pool.training.request.scale.gateway",
        "navarch.v1.order.sweep-now.gateway",
        "navarch.v1.query.job-nodes",
        "navarch.v1.query.workload-check",
        "navarch.v1.query.nodes",
        "$JS.API.DIRECT.GET.KV_POOLS.$KV.POOLS.pool.training",
        "$JS.API.STREAM.INFO.EVENTS",
    ],
    "viewer": ["$SRV.PING", "navarch.v1.query.nodes", "$JS.API.STREAM.LIST"],
    "agent:training/n1": [
        f"{NODE}.telemetry",
        f"{NODE}.event.fault",
        f"{NODE}.event.provider-notice",
        "$KV.HEARTBEATS.training.n1",
    ],
    "admin": ["$JS.API.STREAM.DELETE.NONE", "navarch.v1.saga.s1.cordon.started"],
}
MAY_NOT: dict[str, list[str]] = {
    "pool-manager": [
        "$KV.HEALTH.training.n1",
        "$KV.INSTANCES.training.n1",
        f"{NODE}.event.fault",
        "navarch.v1.pool.training.request.scale",
        "$JS.API.STREAM.DELETE.SAGAS",
        f"{NEXT}.SAGAS.notifier-steps",
    ],
    "notifier": [
        "navarch.v1.saga.s1.cordon.started",
        "navarch.v1.saga.s1.saga.unwinding",
        "navarch.v1.saga.s1.provision.succeeded",
        f"{NODE}.event.verdict",
        "$KV.NODES.training.n1",
        "$JS.API.STREAM.PURGE.SAGAS",
    ],
    "provisioner": [
        "navarch.v1.saga.s1.provision.started",
        "navarch.v1.saga.s1.drain.succeeded",
        f"{NODE}.event.fault",
        "$KV.POOLS.pool.training",
    ],
    "health-monitor": [
        "navarch.v1.saga.s1.saga.started",
        f"{NODE}.event.cordoned",
        "$KV.NODES.training.n1",
        f"{NODE}.command.reboot",
    ],
    "metrics": ["navarch.v1.saga.s1.saga.started", f"{NODE}.event.verdict"],
    "operator": [
        "navarch.v1.pool.training.request.scale",
        "navarch.v1.pool.training.request.scale.ada",
        "navarch.v1.pool.training.request.apply.operator",
        "navarch.v1.pool.training.request.remove.operator",
        "navarch.v1.order.sweep-now.ada",
        "navarch.v1.saga.s1.drain.expired",
        f"{NODE}.event.fault",
        "$KV.POOLS.pool.training",
        f"{NEXT}.REQUESTS.pool-requests",
        "$JS.API.CONSUMER.CREATE.SAGAS.pool-sagas",
        "$JS.API.CONSUMER.DELETE.SAGAS.pool-sagas",
    ],
    "gateway": [
        "navarch.v1.pool.training.request.scale",
        "navarch.v1.pool.training.request.scale.operator",
        "navarch.v1.order.sweep-now.operator",
        "navarch.v1.query.retire-node",
        "navarch.v1.saga.s1.drain.expired",
        f"{NODE}.event.fault",
        f"{NODE}.command.reboot",
        "$KV.POOLS.pool.training",
        "$JS.API.STREAM.INFO.REQUESTS",
        "$JS.API.DIRECT.GET.KV_LEASES.x",
        "$JS.API.CONSUMER.CREATE.EVENTS.x",
    ],
    "pool-admin": [
        "navarch.v1.pool.training.request.apply.ada",
        "navarch.v1.saga.s1.drain.expired",
        "$KV.POOLS.pool.training",
    ],
    "scheduler": [
        "navarch.v1.order.work-done.operator",
        "navarch.v1.order.sweep-now.scheduler",
        "navarch.v1.pool.training.request.drain.scheduler",
        "navarch.v1.query.nodes",
        f"{NODE}.event.work-left",
        "$JS.API.STREAM.LIST",
    ],
    "sink-reader": [
        "navarch.v1.sink.audit",
        "navarch.v1.query.nodes",
        "navarch.v1.order.work-done.sink-reader",
        "$JS.API.STREAM.INFO.EVENTS",
        "$JS.API.DIRECT.GET.EVENTS",
        "$JS.API.DIRECT.GET.KV_NODES.$KV.NODES.training.n1",
        "$JS.API.CONSUMER.CREATE.SINKS.x",
        "$JS.API.STREAM.LIST",
    ],
    "viewer": [
        "navarch.v1.pool.training.request.scale",
        f"{NODE}.command.diagnose",
        "navarch.v1.saga.s1.saga.started",
        "$KV.NODES.training.n1",
        "$JS.ACK.SAGAS.pool-sagas.1.2.3.4.5",
    ],
    "agent:training/n1": [
        f"{OTHER}.event.fault",
        "navarch.v1.node.other.n1.event.fault",
        f"{NODE}.event.verdict",
        "$KV.HEARTBEATS.training.n2",
        "navarch.v1.saga.s1.saga.started",
        "navarch.v1.pool.training.request.scale",
        "$JS.API.DIRECT.GET.KV_NODES.$KV.NODES.training.n2",
        "$JS.API.STREAM.INFO.SAGAS",
    ],
}
LISTENS: dict[str, tuple[list[str], list[str]]] = {
    "viewer": (
        ["navarch.v1.saga.>", "$KV.NODES.>", "navarch.v1.>"],
        ["_INBOX.>", "_INBOX.user.>", "navarch.v1.query.>", "navarch.v1.pool.*.request.>", ">"],
    ),
    "scheduler": ([], ["navarch.v1.>", "$KV.>", "_INBOX.>"]),
    "sink-reader": (
        ["navarch.v1.sink.audit", "navarch.v1.sink.*"],
        ["navarch.v1.>", "navarch.v1.node.>", "$KV.>", "_INBOX.>"],
    ),
    "gateway": (
        ["navarch.v1.pool.*.event.>", "_INBOX.gateway.x"],
        ["navarch.v1.>", "$KV.>", "_INBOX.>", "navarch.v1.query.>", "navarch.v1.pool.*.request.>"],
    ),
    "notifier": (["navarch.v1.query.x", "_INBOX.notifier.x"], ["_INBOX.pool-manager.>", "$KV.>"]),
    "agent:training/n1": (
        [f"{NODE}.command.>", "_INBOX.node.training.n1.x"],
        [f"{OTHER}.command.>", "_INBOX.>", "navarch.v1.>", "_INBOX.node.training.n2.x"],
    ),
}


@pytest.mark.parametrize("who", list(MAY))
async def test_everybody_may_say_what_is_theirs_and_nothing_else(
    secured: Secured, who: str
) -> None:
    """The server refuses each publish that belongs to another service, and none that does not."""
    wanted = [("publish", each) for each in (*MAY[who], *MAY_NOT.get(who, ()))]
    may, may_not = LISTENS.get(who, ([], []))
    wanted += [("subscribe", each) for each in (*may, *may_not)]
    expected = {("publish", each) for each in MAY_NOT.get(who, ())}
    expected |= {("subscribe", each) for each in may_not}

    assert expected == await secured.refused(who, wanted)


async def test_only_the_pool_manager_may_write_any_entry_of_a_sagas_log(secured: Secured) -> None:
    """Everybody else is refused every entry but the results of the steps that they perform."""
    steps = {step for service in SERVICES for step in permissions.steps_of(service)}
    steps |= {"register", "admit", "saga"}
    statuses = ("started", "expired", "undo-started", "unwinding", *permissions.RESULTS)
    wanted = [
        ("publish", subjects.saga_entry("s1", step, status))
        for step in sorted(steps)
        for status in statuses
    ]
    for who in SERVICES:
        own = {
            ("publish", subjects.saga_entry("s1", step, status))
            for step in permissions.steps_of(who)
            for status in permissions.RESULTS
        }
        allowed = set(wanted) if who == "pool-manager" else own
        assert set(wanted) - allowed == await secured.refused(who, wanted), who


async def test_a_node_reads_its_own_record_and_beats(secured: Secured) -> None:
    """The calls of an agent work with its credentials; another node's record is kept from it."""
    bus = await NatsBus.connect(secured.options("pool-manager"))
    record = encode(NodeRecord(pool="training", node="n1", cordoned=True))
    await bus.put(NODES, "training.n1", record)
    agent = await NatsBus.connect(secured.options("agent:training/n1"))
    await agent.put(HEARTBEATS, "training.n1", b"{}", ttl_seconds=5)
    entry = await agent.get(NODES, "training.n1")
    asked = asyncio.Event()

    async def ping(data: bytes, _: Any) -> bytes:
        asked.set()
        return data

    await agent.answer(subjects.node_command("training", "n1", "ping"), ping)
    operator = await NatsBus.connect(secured.options("operator"))
    # The agent's subscription has been taken in once another of its calls has been answered.
    await agent.get(NODES, "training.n1")
    command = subjects.node_command("training", "n1", "ping")
    reply = await operator.request(command, b"hello", timeout_seconds=30)
    for each in (bus, agent, operator):
        await each.close()

    assert entry is not None
    assert record == entry.value
    assert (b"hello", True) == (reply.data, asked.is_set())


async def test_a_refusal_is_reported(secured: Secured) -> None:
    """The server says it beside the request; the error that the caller sees says it too."""
    viewer = await NatsBus.connect(secured.options("viewer"))
    with pytest.raises(Unavailable, match="permissions violation"):
        await viewer.request("navarch.v1.pool.p.request.scale", b"{}", timeout_seconds=0.3)
    await viewer.close()


async def test_without_credentials_no_client_is_let_in(secured: Secured) -> None:
    """A client with the credentials of another fleet is not let in, either."""
    client = Client()
    with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
        await client.connect(secured.url, allow_reconnect=False, max_reconnect_attempts=0)
    await client.close()


async def test_a_refused_login_is_reported_as_one(secured: Secured) -> None:
    """An address where nothing answers is reported as that: the remedies differ."""
    for url, problem in (
        (secured.url, "refuses the login .*Authorization Violation.*NAVARCH_NATS_CREDS_FILE"),
        ("nats://127.0.0.1:1", "no nats-server answers at nats://127.0.0.1:1 .*URL right"),
    ):
        options = ConnectOptions(settings=NatsSettings(url=url), name="navarch-cli")
        with pytest.raises(Unavailable, match=problem):
            await NatsBus.connect(options, seconds_max=2)


def test_writing_again_keeps_every_key_and_credential(tmp_path: Path) -> None:
    """An upgrade changes what roles may do, in the server's configuration alone."""
    first = write(tmp_path, "tests", NOW, **WHERE)
    kept = {file: file.read_bytes() for file in first}
    again = write(tmp_path, "tests", NOW, **WHERE)
    modes = {oct(file.stat().st_mode & 0o777) for file in first if file.suffix in (".nk", ".creds")}

    assert [] == again
    assert kept == {file: file.read_bytes() for file in first}
    assert {"0o600"} == modes


def test_a_nodes_credentials_are_written_by_hand_where_no_provider_makes_them(
    nats_config_directory: Path,
) -> None:
    """The credentials name the node, for their owner's eyes; a name that is none is refused."""
    day = timedelta(days=1)
    file = write_agent(nats_config_directory, "training", "n7", NOW, day)
    first = claims_of(file.read_text())
    write_agent(nats_config_directory, "training", "n7", NOW + day, day)
    claims = claims_of(file.read_text())

    assert ["pool:training", "node:n7"] == claims["nats"]["tags"]
    assert [first["sub"], first["exp"] + 86_400] == [claims["sub"], claims["exp"]]
    assert 0o600 == file.stat().st_mode & 0o777
    listed = [
        each.key for each in BusDirectory(nats_config_directory).users() if each.role == "agent"
    ]
    assert [claims["sub"]] == listed
    for node in ("n7.>", ""):
        with pytest.raises(InvalidNameError):
            write_agent(nats_config_directory, "training", node, NOW, day)


def test_every_durable_belongs_to_a_service() -> None:
    """A durable's description begins with its service; permissions follow from it."""
    assert set() == {permissions.owner(each) for each in DURABLES} - set(SERVICES)
    assert SAGAS.name in {each.stream for each in DURABLES}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"creds_file": "/nowhere/{service}.creds"}, "nats.creds_file: /nowhere/notifier.creds"),
        ({"nkey_file": "/nowhere/x.nk"}, "nats.nkey_file: /nowhere/x.nk"),
        ({"tls_cert_file": "/nowhere/{service}.pem"}, "nats.tls_cert_file: /nowhere/notifier.pem"),
    ],
)
def test_a_file_that_is_not_there_is_named(settings: dict[str, str], problem: str) -> None:
    """The error names the file with its setting, and the service that needs it."""
    with pytest.raises(ConfigurationError, match=problem):
        credentials(ConnectOptions(settings=NatsSettings(**settings), name="notifier"))  # type: ignore[arg-type]


async def test_only_an_open_bus_believes_who_a_request_says_it_is_by(
    secured: Secured, tmp_path: Path
) -> None:
    """A bus with a user and a password once believed it; the server checks names for neither."""
    password = EmbeddedServer(tmp_path / "password", arguments=("--user", "u", "--pass", "secret"))
    is_open = EmbeddedServer(tmp_path / "open")
    found = []
    for options in (
        ConnectOptions(settings=NatsSettings(url=await is_open.start()), name="pool-manager"),
        ConnectOptions(
            settings=NatsSettings(url=await password.start(), user="u", password="secret"),
            name="pool-manager",
        ),
        secured.options("pool-manager"),
    ):
        bus = await NatsBus.connect(options, seconds_max=20)
        context = Context(
            name="pool-manager",
            replica="r",
            bus=bus,
            clock=SystemClock(),
            settings=Settings(nats=options.settings),
            settings_file=None,
            instruments=Instruments(),
            tracing=Tracing("pool-manager"),
        )
        stored = Stored(
            subject=subjects.pool_request("training", "scale"),
            data=b'{"nodes": 1, "by": "alice"}',
            sequence=1,
            time=NOW,
            headers={},
        )
        consumers = PoolManager(context).service().consumers
        requests = next(each for each in consumers if each.durable is POOL_REQUESTS)
        found.append(read_request(requests.decode(stored)).by)
        await bus.close()
    await is_open.kill()
    await password.kill()

    assert ["alice", "", ""] == found
