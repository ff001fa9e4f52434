"""Attacks with one role's credentials on a real server, generated from its own permissions."""

import asyncio
from contextlib import suppress

import nats
import nats.js.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas import permissions, subjects
from schemas.account_rules import NODE_TAG, POOL_TAG, Account
from schemas.headers import STREAM_SOURCE, SUBJECT
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.permissions import SERVICE_QUERIES, SERVICES, durables_of
from schemas.topology import (
    BUCKETS,
    DURABLES,
    EVENTS,
    EVERY_STREAM,
    HEARTBEATS,
    LEASES,
    NODES,
)
from services.bus.nats.connection_options import credentials
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from services.bus.protocol.endpoint_replies import requester
from services.pool_manager.requests.request_replies import read_request, read_stored_request
from services.primitives.errors import TooLarge, Unavailable
from tests.support.secured import Secured

AGENT = "agent:training/n1"
NODE = "navarch.v1.node.training.n1"
NEW_NODE = "bootstrap:training/n9"
OUTSIDERS = (
    *(
        "viewer",
        "scheduler",
        permissions.SINK_READER,
        "operator",
        permissions.POOL_ADMIN,
        permissions.GATEWAY,
    ),
    *(AGENT, NEW_NODE),
)
"""Who is not a service."""
TARGETS = (
    "$KV.POOLS.pool.training",
    "$KV.NODES.training.n2",
    "$KV.HEARTBEATS.training.n2",
    "navarch.v1.saga.s1.saga.started",
    "navarch.v1.pool.training.request.scale",
    "navarch.v1.node.training.n2.event.fault",
    "navarch.v1.node.training.n2.command.reboot",
    "$JS.API.STREAM.DELETE.DEAD",
    "$JS.API.STREAM.PURGE.SAGAS",
)
"""Where an attacker would have an answer of the server stored, or performed."""
API_CALLS = (
    *(f"{verb}.{{stream}}" for verb in ("CREATE", "UPDATE", "DELETE", "PURGE", "RESTORE")),
    *(f"{verb}.{{stream}}" for verb in ("SNAPSHOT", "MSG.DELETE", "LEADER.STEPDOWN")),
)
CONSUMER_CALLS = (
    *(f"CONSUMER.{verb}.{{stream}}.{{name}}" for verb in ("CREATE", "DELETE", "PAUSE", "UNPIN")),
    "CONSUMER.CREATE.{stream}.{name}.>",
    "CONSUMER.CREATE.{stream}",
    "CONSUMER.DURABLE.CREATE.{stream}.{name}",
    "CONSUMER.MSG.NEXT.{stream}.{name}",
    "CONSUMER.LEADER.STEPDOWN.{stream}.{name}",
)
SERVER_CALLS = ("META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.x", "STREAM.TEMPLATE.NAMES")


async def plain(secured: Secured, who: str) -> Client:
    """A client that keeps to no rule of ours, with one role's credentials."""

    async def ignore(_: Exception) -> None:
        return

    options = secured.options(who)
    return await nats.connect(
        secured.url,
        error_cb=ignore,
        inbox_prefix=options.inbox_prefix,
        allow_reconnect=False,
        **credentials(options),
    )


async def barrier(client: Client) -> None:
    """Return when the server has taken in everything before; streams may not have stored it."""
    await client.flush(timeout=30)


async def marked_sequences(client: Client) -> dict[str, int]:
    """Store one message in each stream: its sequence, and so what was published before is stored.

    A stream stores what it receives in order, and after the publisher's connection has moved on:
    an acknowledgement alone proves that the messages before it were stored or refused.
    """
    stores, found = client.jetstream(), dict[str, int]()
    for each in EVERY_STREAM:
        for source in each.sources:
            await copied(client, source, found[source], each.name)
        found[each.name] = (await stores.publish(concrete(each.subjects[0]), b"{}", timeout=30)).seq
    return found


async def copied(client: Client, source: str, sequence: int, target: str) -> None:
    """Wait until the server has copied a message of one stream into another."""
    stores = client.jetstream()
    subject = (await stores.get_msg(source, sequence)).subject
    async with asyncio.timeout(60):
        while True:
            with suppress(nats.js.errors.NotFoundError):
                headers = (await stores.get_last_msg(target, str(subject))).headers or {}
                if headers.get(STREAM_SOURCE, "").split()[1:2] == [str(sequence)]:
                    return
            await asyncio.sleep(0.01)


async def stored_in(client: Client, before: dict[str, int]) -> set[str]:
    """The streams that stored something since `marked_sequences` returned `before`."""
    after = await marked_sequences(client)
    marks = {each.name: 1 + len(each.sources) for each in EVERY_STREAM}
    return {name for name, at in after.items() if at != before[name] + marks[name]}


def concrete(subject: str, user: str = permissions.OPERATOR, node: str = "n1") -> str:
    """A subject under a permission: of this node where the server fills in one."""
    known = subject.replace(POOL_TAG, "training").replace(NODE_TAG, node)
    known = known.replace(permissions.USER_NAME, user)
    return ".".join("x" if each in ("*", ">") else each for each in known.split("."))


def attacks() -> list[str]:
    """Everything stored, every durable and every call that changes one; generated."""
    return [
        *(concrete(each) for spec in EVERY_STREAM for each in spec.subjects),
        *(
            f"$JS.API.STREAM.{call.format(stream=each.name)}"
            for each in EVERY_STREAM
            for call in API_CALLS
        ),
        *(
            f"$JS.API.{call.format(stream=each.stream, name=each.name)}"
            for each in DURABLES
            for call in CONSUMER_CALLS
        ),
        *(f"$JS.ACK.{each.stream}.{each.name}.1.2.3.4.5" for each in DURABLES),
        *(f"$JS.API.CONSUMER.{call}.EVENTS.sink-audit" for call in ("DELETE", "MSG.NEXT")),
        "$JS.ACK.EVENTS.sink-audit.1.2.3.4.5",
        *(f"$JS.API.{each}" for each in SERVER_CALLS),
        "$SYS.REQ.SERVER.PING",
        "$SYS.REQ.CLAIMS.UPDATE",
        subjects.enroll("training", "n2"),
        "_INBOX.user.UABC.x",
        "_INBOX.pool-manager.x",
    ]


@pytest.mark.parametrize("who", OUTSIDERS)
async def test_outsiders_change_nothing_that_is_stored(secured: Secured, who: str) -> None:
    """Every stored subject and every call that changes a stream or a consumer is refused."""
    wanted = [("publish", each) for each in dict.fromkeys(attacks())]

    assert set(wanted) == await secured.refused(who, wanted)


async def test_an_answer_cannot_be_sent_to_a_subject_of_another_account(secured: Secured) -> None:
    """Each request that each outsider may make, with each reply subject of an attacker."""
    admin = await NatsBus.connect(secured.options("admin"))
    marker = await plain(secured, "admin")
    before = await marked_sequences(marker)
    asked = 0
    for who in OUTSIDERS:
        client = await plain(secured, who)
        role, node = who.partition(":")[0], who.rpartition("/")[2]
        for subject in permissions.rules()[role].publish:
            if subject.startswith("_"):
                continue
            for target in TARGETS:
                await client.publish(concrete(subject, role, node), b"{}", reply=target)
                asked += 1
        await barrier(client)
        await client.close()
    changed = await stored_in(marker, before)
    await marker.close()
    # What they may store themselves: an agent its events, samples and heartbeat, an operator
    # requests. None of it under a subject of the attack.
    own = {"INTAKE", "EVENTS", "TELEMETRY", "REQUESTS", "KV_HEARTBEATS"}
    found = {
        target: await admin.last(stream, target)
        for target, stream in (
            ("$KV.POOLS.pool.training", "KV_POOLS"),
            ("$KV.NODES.training.n2", "KV_NODES"),
            ("$KV.HEARTBEATS.training.n2", "KV_HEARTBEATS"),
            ("navarch.v1.saga.s1.saga.started", "SAGAS"),
            ("navarch.v1.node.training.n2.event.fault", "EVENTS"),
            ("navarch.v1.pool.training.request.scale", "REQUESTS"),
        )
    }
    await admin.close()

    assert asked > len(TARGETS) * 20
    assert changed <= own
    assert {} == {target: each for target, each in found.items() if each is not None}


async def test_a_request_to_itself_permits_an_agent_no_reply_elsewhere(secured: Secured) -> None:
    """An agent may publish and answer its own commands, but to no reply subject of its choice."""
    client = await plain(secured, AGENT)
    received: list[str] = []

    async def command(message: Msg) -> None:
        received.append(message.reply)

    await client.subscribe(f"{NODE}.command.>", cb=command)
    for target in TARGETS:
        await client.publish(f"{NODE}.command.ping", b"", reply=target)
    async with asyncio.timeout(30):  # they cross accounts, and a barrier does not
        while len(received) < len(TARGETS):
            await asyncio.sleep(0.01)
    await client.close()
    wanted = [("publish", each) for each in TARGETS]

    assert set(received) == set(TARGETS)
    assert set(wanted) == await secured.refused(AGENT, wanted)


async def test_no_user_hears_or_answers_for_another(secured: Secured) -> None:
    """A viewer neither receives operators' questions nor their answers, in queue groups neither."""
    operator = await NatsBus.connect(secured.options("operator"))
    services = await NatsBus.connect(secured.options("pool-manager"))
    asked = asyncio.Event()

    async def answer(_data: bytes, _: object) -> bytes:
        asked.set()
        return b"true"

    query = subjects.query("nodes")
    await services.answer(query, answer)
    await services.last_sequence(EVENTS.name)
    viewer = await plain(secured, "viewer")
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)
        with suppress(Exception):
            await viewer.publish(message.reply, b"forged")

    for subject in ("navarch.v1.>", query, "_INBOX.>", "_R_.>", ">"):
        await viewer.subscribe(subject, cb=hear)
        await viewer.subscribe(subject, queue="q", cb=hear)
    await barrier(viewer)
    reply = await operator.request(query, b"{}", timeout_seconds=30)
    await barrier(viewer)
    for each in (operator, services, viewer):
        await each.close()

    assert b"true" == reply.data
    assert asked.is_set()
    assert [] == heard


async def test_a_services_credentials_reach_its_own_durables_and_keys_alone(
    secured: Secured,
) -> None:
    """No stream is changed but by the service that sets them up; no lease but a service's own."""
    updates = [f"$JS.API.STREAM.UPDATE.{each.name}" for each in EVERY_STREAM]
    creates = {f"$JS.API.STREAM.CREATE.{each.name}" for each in EVERY_STREAM}
    heartbeats = f"$JS.API.STREAM.CREATE.{HEARTBEATS.stream().name}"
    for who in SERVICES:
        own = durables_of(who)
        own_bucket = {heartbeats} if who == permissions.BEGINS_HEARTBEATS else set()
        create = "$JS.API.CONSUMER.DURABLE.CREATE"
        wanted = {
            *(() if who == permissions.SETS_UP else updates),
            *(() if who in (permissions.SETS_UP, permissions.RECREATES) else creates - own_bucket),
            "$JS.API.STREAM.CREATE.ANOTHER",
            *(f"{create}.{each.stream}.{each.name}" for each in DURABLES if each not in own),
            *(f"$KV.{LEASES.name}.{each}.x" for each in SERVICES if each != who),
            *(f"$KV.{each.name}.x" for each in BUCKETS if each.writer != who and each != LEASES),
            "$JS.API.STREAM.DELETE.SAGAS",
            "navarch.v1.pool.training.request.scale",
        }
        refused = await secured.refused(who, [("publish", each) for each in sorted(wanted)])
        assert {("publish", each) for each in wanted} == refused, who


async def test_a_viewer_may_give_no_orders(secured: Secured) -> None:
    """Queries that change something are refused; the refusal comes at once and says why."""
    viewer = await NatsBus.connect(secured.options("viewer"))
    orders = (subjects.order("hardware-add", "viewer"), *SERVICE_QUERIES)
    for each in (*orders, subjects.node_command("training", "n1", "reboot")):
        with pytest.raises(Unavailable, match=r"(?i)permissions violation"):
            await viewer.request(concrete(each), b"{}", timeout_seconds=60)
    await viewer.close()


async def test_a_user_follows_events_and_buckets_without_a_consumer(secured: Secured) -> None:
    """A viewer gets old and new messages in order and once, also those of the agents' account."""
    agent = await NatsBus.connect(secured.options(AGENT))
    services = await NatsBus.connect(secured.options("pool-manager"))
    viewer = await NatsBus.connect(secured.options("viewer"))
    subject = f"{NODE}.event.fault"
    for number in range(3):
        await agent.publish(subject, b"%d" % number)
    events = viewer.follow(EVENTS.name, [subject], "all")
    nodes = viewer.watch(NODES)
    await services.put(NODES, "training.n1", encode(NodeRecord(pool="training", node="n1")))
    first = await anext(nodes)
    found = [(await anext(events)).data for _ in range(3)]
    for number in range(3, 6):
        await agent.publish(subject, b"%d" % number)
    found += [(await anext(events)).data for _ in range(3)]
    await services.delete(NODES, "training.n1")
    second = await anext(nodes)
    for each in (events, nodes):
        await each.aclose()
    for bus in (agent, services, viewer):
        await bus.close()

    assert [b"%d" % number for number in range(6)] == found
    assert [("training.n1", ""), ("training.n1", "DEL")] == [
        (each.key, each.removed) for each in (first, second)
    ]


async def test_a_guessed_message_id_suppresses_nothing(secured: Secured) -> None:
    """An agent stores events under the ID that a service will use; the service's are stored too."""
    agent = await plain(secured, AGENT)
    bus = await NatsBus.connect(secured.options("health-monitor"))
    stream = EVENTS.name
    await agent.request(
        f"{NODE}.event.fault", b"x", timeout=30, headers={"Nats-Msg-Id": "verdict-n2"}
    )
    before = await bus.last_sequence(stream)
    stored = await bus.publish(
        "navarch.v1.node.training.n2.event.verdict", b"{}", msg_id="verdict-n2"
    )
    again = await bus.publish(
        "navarch.v1.node.training.n2.event.verdict", b"{}", msg_id="verdict-n2"
    )
    await agent.close()
    await bus.close()

    assert (before + 1, before + 1) == (stored, again)


async def test_an_agent_sends_no_large_messages(secured: Secured) -> None:
    """The client refuses them; the server ends the connection of one that does not."""
    bus = await NatsBus.connect(secured.options(AGENT))
    size = permissions.AGENT_BYTES_MAX + 1
    with pytest.raises(TooLarge):
        await bus.publish(f"{NODE}.event.fault", b"x" * size)
    await bus.close()
    client = await plain(secured, AGENT)
    with suppress(nats.errors.Error):
        await client.publish(f"{NODE}.event.fault", b"x" * size)
        await client.flush(timeout=5)
    admin = await NatsBus.connect(secured.options("admin"))
    found = await admin.last_sequence(EVENTS.name)
    await admin.close()
    await client.close()

    assert 0 == found


def test_each_role_is_in_the_account_of_its_kind() -> None:
    """Only the administrator is where the streams are."""
    inside = {
        account: {name for name, rules in permissions.rules().items() if rules.account == account}
        for account in (Account.FLEET, Account.SERVICES)
    }

    assert {Account.FLEET: {permissions.ADMIN}, Account.SERVICES: set(SERVICES)} == inside


async def test_the_name_of_a_requester_is_the_servers(secured: Secured) -> None:
    """Not in the body, a header or another's subject: requests and orders carry the user's own.

    The gateway's alone name another, whom it has authenticated.
    """
    services = await NatsBus.connect(secured.options("pool-manager"))
    given: list[str] = []

    async def perform(_: bytes, headers: Headers) -> bytes:
        given.append(requester(headers))
        return b"true"

    await services.serve("s", "", {subjects.order_wildcard("hardware-add"): perform})
    mallory = await plain(secured, "operator")
    forged = {SUBJECT: subjects.order("hardware-add", "alice"), "Nats-Request-Info": "alice"}
    own = subjects.order("hardware-add", "operator")
    await mallory.request(own, b'{"by": "alice"}', timeout=30, headers=forged)
    scale = subjects.pool_request("training", "scale", "operator")
    await mallory.request(scale, b'{"nodes": 5, "by": "alice"}', timeout=30, headers=forged)
    names = ("alice", "operator2", "*", ">", "operator.alice", "viewer")
    others = [
        f"{subject}.{name}"
        for subject in (
            "navarch.v1.order.hardware-add",
            "navarch.v1.pool.training.request.scale",
        )
        for name in names
    ]
    unnamed = [subjects.pool_request("training", "scale"), "navarch.v1.order.hardware-add"]
    wanted = [("publish", each) for each in (*others, *unnamed)]
    refused = await secured.refused("operator", wanted)
    gateway = await plain(secured, permissions.GATEWAY)
    relayed = subjects.pool_request("training", "scale", permissions.GATEWAY)
    await gateway.request(relayed, b'{"nodes": 5, "by": "alice"}', timeout=30)
    posing = [("publish", relayed)]
    assert set(posing) == await secured.refused("operator", posing)
    admin = await NatsBus.connect(secured.options("admin"))
    stored = await admin.read("REQUESTS", subjects.POOL_REQUESTS)
    for bus in (services, admin):
        await bus.close()
    for client in (mallory, gateway):
        await client.close()
    asked = [read_stored_request(each, is_open=False) for each in stored]

    assert set(wanted) == refused
    assert ["operator"] == given
    assert ["operator", "alice via gateway"] == [read_request(each).by for each in asked]
