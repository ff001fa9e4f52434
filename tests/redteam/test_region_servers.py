"""A region's server: what its agents may there, and what a thief of its credentials may.

The thief has a server without rules, whose only connection is that of the region's credentials.
"""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import nats
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import subjects
from schemas.region_permissions import NAMES
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, HEARTBEATS, NODES, TELEMETRY
from services.bus.nats.account_updates import revoker_options
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.cli.key_rotation import push_to
from services.cli.nats_config_files import revoke_user
from services.cli.region_files import CREDENTIALS, REGIONS
from services.primitives.errors import BusError, LoginRefused
from tests.redteam.test_account_walls import TARGETS, attacks, marked_sequences, plain, stored_in
from tests.support.inprocess import eventually
from tests.support.region_servers import RegionServer, ServedRegion, connected, serving_region
from tests.support.settling import arriving

pytestmark = pytest.mark.asyncio(loop_scope="module")

POOLS = ("eu", "eu-spot")
MARK = "navarch.v1.region.heartbeat.eu.mark"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedRegion]:
    """Both servers; the region has two pools."""
    async with serving_region(tmp_path_factory.mktemp("regions"), POOLS) as found:
        agent = await connected(found.region, "agent:eu/first")

        async def beats() -> bool:
            with suppress(BusError):
                return bool(await agent.put(HEARTBEATS, "eu.first", b"{}", ttl_seconds=60))
            return False

        await eventually(beats, within_seconds=20)
        await agent.close()
        yield found


@asynccontextmanager
async def thief(served: ServedRegion, folder: Path, credentials: Path) -> AsyncIterator[Client]:
    """A client of a server that asks for nothing, connected to the fleet's with these."""
    config = folder / "thief.conf"
    remote = {
        "urls": [f"nats-leaf://127.0.0.1:{served.leaf_port}"],
        "credentials": str(credentials),
    }
    config.write_text(f"http: 127.0.0.1:-1\nleafnodes {{ remotes: [{json.dumps(remote)}] }}\n")
    server = RegionServer(folder / "thief", config=config, name="thief")
    await server.start()
    client = await nats.connect(server.url, inbox_prefix="_INBOX.node.eu.thief")
    try:
        yield client
    finally:
        await client.close()
        await server.kill()


async def answered(bus: NatsBus, subject: str) -> bytes:
    """The answer to a request; a subscription takes a moment to reach the other server."""

    async def asks() -> bytes:
        with suppress(BusError):
            return (await bus.request(subject, b"", timeout_seconds=5)).data
        return b""

    found: bytes = await eventually(asks, within_seconds=20)
    return found


async def hears(client: Client) -> bool:
    """Return whether the thief's server is connected: a heartbeat of its pool is stored."""
    with suppress(nats.errors.Error):
        return b'"seq"' in (await client.request(MARK, b"{}", timeout=1)).data
    return False


@pytest_asyncio.fixture(loop_scope="module")
async def stolen(served: ServedRegion, tmp_path: Path) -> AsyncIterator[Client]:
    """Yield the connection of a thief who has the region's credentials."""
    file = served.hub.directory / REGIONS / "eu" / CREDENTIALS
    async with thief(served, tmp_path, file) as client:
        await eventually(lambda: hears(client), within_seconds=20)
        yield client


@pytest.mark.parametrize("pool", POOLS)
async def test_agents_do_there_what_they_do_at_the_fleets_servers(
    served: ServedRegion, pool: str
) -> None:
    """Heartbeats with their time to live, facts once, samples, their record, commands, logins."""
    admin = await connected(served.hub, "admin")
    service = await connected(served.hub, "provisioner")
    agent = await connected(served.region, f"agent:{pool}/n1")
    await agent.put(HEARTBEATS, f"{pool}.n1", b"{}", ttl_seconds=1)
    fact = subjects.node_event(pool, "n1", "fault")
    for _ in range(2):
        sequence = await agent.publish(fact, b"{}", msg_id=f"{pool}-1")
    await agent.publish(f"{subjects.ROOT}.node.{pool}.n1.telemetry", b"{}")
    await admin.put(NODES, f"{pool}.n1", b"record")
    record = await agent.get(NODES, f"{pool}.n1")

    async def answer(data: bytes, headers: Headers) -> bytes:  # noqa: ARG001
        return b"answer"

    await agent.answer(subjects.node_command(pool, "n1", "ping"), answer)
    await service.answer(subjects.ENROLL, answer)
    await service.answer(subjects.ENROLL_POD, answer)
    new = await connected(served.region, f"bootstrap:{pool}/n2")
    replies = [
        await answered(asked, subject)
        for asked, subject in (
            (service, subjects.node_command(pool, "n1", "ping")),
            (new, subjects.enroll(pool, "n2")),
            (agent, subjects.enroll(pool, "n1")),
        )
    ]
    await arriving(admin)
    stored = [each for each in await admin.read(EVENTS.name, fact) if each.subject == fact]
    sampled = await admin.last(TELEMETRY.name, f"{subjects.ROOT}.node.{pool}.n1.telemetry")

    async def silent() -> bool:
        return await admin.get(HEARTBEATS, f"{pool}.n1") is None

    await eventually(silent, within_seconds=10)
    for each in (admin, service, agent, new):
        await each.close()

    assert record is not None
    assert record.value == b"record"
    assert replies == [b"answer"] * 3
    assert [each.sequence for each in stored] == [sequence]
    assert sampled is not None


async def test_an_operator_reads_the_log_of_an_agent_there(served: ServedRegion) -> None:
    """The lines cross both servers, also once the subscription at the region's was used up."""
    agent = await connected(served.region, "agent:eu/n1")
    operator = await connected(served.hub, "operator")
    subject = subjects.node_command("eu", "n1", "logs")

    async def answer(data: bytes, headers: Headers) -> bytes:  # noqa: ARG001
        return b"lines"

    await agent.answer_some(subject, answer, most=2, seconds=0)
    replies = [await answered(operator, subject) for _ in range(5)]
    for each in (agent, operator):
        await each.close()

    assert replies == [b"lines"] * 5


async def test_an_agent_there_is_its_own_node_alone(served: ServedRegion) -> None:
    """An agent speaks for no other node, also under names that only the way to the fleet has."""
    others = [
        ("publish", subject.replace("*.*", "eu.n2"))
        for pair in NAMES.items()
        for subject in (*pair, "navarch.v1.node.*.*.event.fault", "navarch.v1.enroll.*.*")
    ]
    wanted = [*others, ("subscribe", "navarch.v1.node.eu.n2.command.ping"), ("subscribe", ">")]

    refused = await served.region.refused("agent:eu/n1", wanted)

    # A refusal names a subject as the server passes it on.
    named = {("publish", each.replace("*.*", "eu.n2")) for each in NAMES}
    assert set(wanted) - refused <= named


async def test_the_credentials_change_nothing_of_other_pools_and_services(
    served: ServedRegion, stolen: Client
) -> None:
    """Every stored subject, every call of the server, and every name of the way, is tried."""
    marker = await plain(served.hub, "admin")
    before = await marked_sequences(marker)
    answers: list[Msg] = []

    async def answered(message: Msg) -> None:
        answers.append(message)

    box = "_INBOX.node.eu.thief.1"
    await stolen.subscribe(box, cb=answered)
    tried = [
        *attacks(),
        *(each.replace("*.*", "training.n2") for each in NAMES.values()),
        *TARGETS,
        *(f"navarch.v1.node.training.n2.event.{fact}" for fact in ("fault", "registered")),
        "navarch.v1.query.nodes",
        "navarch.v1.order.sweep-now.alice",
        "navarch.v1.node.training.n2.telemetry",
        "navarch.v1.enroll-pod.training.n2",
    ]
    for subject in dict.fromkeys(tried):
        await stolen.publish(subject, b"{}")
        await stolen.publish(subject, b"{}", reply=box)
    # What is permitted, with answers to where something would be stored.
    for target in TARGETS:
        await stolen.publish("navarch.v1.region.record.eu.n1", b"{}", reply=target)
        await stolen.publish(MARK, b"{}", reply=target)
    # The connection keeps the order.
    await eventually(lambda: hears(stolen), within_seconds=20)
    changed = await stored_in(marker, before)
    await marker.close()

    assert changed == {"KV_HEARTBEATS"}
    assert [
        each.data for each in answers if each.headers is None or "Status" not in each.headers
    ] == []


async def test_the_credentials_hear_nothing_of_other_pools_and_services(
    served: ServedRegion, stolen: Client
) -> None:
    """Neither commands nor answers nor facts."""
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    for subject in (
        *(">", "navarch.v1.>", "navarch.v1.node.*.*.command.>", "_INBOX.>", "_R_.>", "$KV.>"),
        *("navarch.v1.node.training.n1.command.ping", "_INBOX.node.training.>"),
        *("navarch.v1.enroll.training.*", "navarch.v1.query.>", "_INBOX.provisioner.>"),
        "navarch.v1.node.eu.n7.command.ping",
    ):
        await stolen.subscribe(subject, cb=hear)
    await eventually(lambda: hears(stolen), within_seconds=20)
    heard.clear()
    service = await connected(served.hub, "provisioner")
    agent = await connected(served.hub, "agent:training/n1")
    new = await connected(served.hub, "bootstrap:training/n2")
    await agent.publish("navarch.v1.node.training.n1.event.fault", b"{}", msg_id="heard-1")
    for asked, subject in (
        (service, "navarch.v1.node.training.n1.command.ping"),
        (new, subjects.enroll("training", "n2")),
        (service, "navarch.v1.node.eu.n7.command.ping"),
    ):
        with suppress(BusError):
            await asked.request(subject, b"", timeout_seconds=1)
    for each in (service, agent, new):
        await each.close()
    await eventually(lambda: hears(stolen), within_seconds=20)

    own = {"navarch.v1.node.eu.n7.command.ping", MARK}
    assert "navarch.v1.node.eu.n7.command.ping" in heard
    assert {each for each in heard if not each.startswith("_INBOX.")} <= own


async def test_the_credentials_are_no_clients_and_clients_are_no_servers(
    served: ServedRegion, tmp_path: Path
) -> None:
    """Each role's credentials are for one kind of connection."""
    hub = served.hub
    settings = hub.options("agent:eu/n1", hub.directory / REGIONS / "eu" / CREDENTIALS)
    with pytest.raises(LoginRefused):
        await NatsBus.connect(settings, seconds_max=2)
    for who in ("agent:eu/n1", "pool-manager", "admin"):
        folder = tmp_path / who.partition(":")[0]
        folder.mkdir()
        async with thief(served, folder, hub.file(who)):
            log = folder / "thief" / "nats-server.log"

            async def refused(log: Path = log) -> bool:
                return "Authorization Violation" in log.read_text()

            await eventually(refused, within_seconds=20)


async def test_a_revoked_region_is_disconnected(tmp_path: Path) -> None:
    """The connection ends within seconds of the push; then no one answers the region's agents."""
    async with serving_region(tmp_path, ["eu"]) as served:
        agent = await connected(served.region, "agent:eu/n1")

        async def beats() -> bool:
            with suppress(BusError):
                return bool(await agent.put(HEARTBEATS, "eu.n1", b"{}", ttl_seconds=60))
            return False

        await eventually(beats, within_seconds=20)
        now = datetime.now(UTC)
        revoke_user(served.hub.directory, "region-eu", now)
        options = revoker_options(NatsSettings(url=served.hub.url), served.hub.directory)
        revoker = await NatsBus.connect(options, seconds_max=5)
        assert await push_to(revoker, served.hub.directory, now) == ["tests-agents"]
        await revoker.close()

        async def away() -> bool:
            return not await beats()

        await eventually(away, within_seconds=20)
        await agent.close()


async def test_a_lost_server_is_replaced_by_its_files(tmp_path: Path) -> None:
    """The new server starts on an empty disk; agents find it, and their reports are stored once."""
    async with serving_region(tmp_path, ["eu"]) as served:
        agent = await connected(served.region, "agent:eu/n1")
        admin = await connected(served.hub, "admin")
        fact = subjects.node_event("eu", "n1", "fault")

        async def stored() -> bool:
            with suppress(BusError):
                return bool(await agent.publish(fact, b"{}", msg_id="once"))
            return False

        await eventually(stored, within_seconds=20)
        await served.server.kill()
        shutil.rmtree(served.server.directory)
        await served.server.start()
        await eventually(stored, within_seconds=20)
        found = await admin.read(EVENTS.name, fact)
        await agent.close()
        await admin.close()

    assert len(found) == 1
