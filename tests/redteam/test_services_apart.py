"""One service's credentials reach nothing that only others need: generated, on a real server."""

import json
from contextlib import suppress
from typing import Final

import nats
import pytest

from schemas import permissions, subjects
from schemas.account_rules import Account
from schemas.account_shares import shares
from schemas.permissions import SERVICES
from schemas.topology import DURABLES, EVERY_STREAM, STREAMS, sink_durable
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Headers
from tests.redteam.test_account_walls import (
    TARGETS,
    barrier,
    concrete,
    marked_sequences,
    plain,
    stored_in,
)
from tests.redteam.test_headers import covers
from tests.support.secured import Secured

STORES: Final = {
    "pool-manager": {
        *("EVENTS", "SAGAS", "TIMERS", "DEAD"),
        *("KV_POOLS", "KV_NODES", "KV_HARDWARE", "KV_LEASES", "KV_ANSWERS"),
    },
    "health-monitor": {"INTAKE", "EVENTS", "TIMERS", "DEAD", "KV_HEALTH", "KV_LEASES"},
    "provisioner": {
        *("INTAKE", "EVENTS", "SAGAS", "DEAD"),
        *("KV_INSTANCES", "KV_OFFERINGS", "KV_LEASES"),
    },
    "notifier": {"EVENTS", "SAGAS", "DEAD", "SINKS", "KV_ALERTS", "KV_LEASES"},
    "metrics": {"EVENTS", "DEAD", "KV_REPAIRS", "KV_LEASES", "OBJ_EVIDENCE"},
}
"""The streams into which each service may store; none of it is another's bucket."""
QUEUES: Final = [each for each in STREAMS if each.retention == "workqueue"]
VICTIM: Final = "$KV.POOLS.pool.training"
FACT: Final = "navarch.v1.node.training.n1.event.verdict"


@pytest.mark.parametrize("who", SERVICES)
async def test_a_service_stores_into_its_own_streams_alone(secured: Secured, who: str) -> None:
    """Each subject that its permissions name, and each stored subject there is."""
    wanted = [
        *(
            concrete(each)
            for each in permissions.rules()[who].publish
            if not each.startswith("$JS")
        ),
        *(concrete(each) for spec in EVERY_STREAM for each in spec.subjects),
    ]
    admin = await plain(secured, "admin")
    before = await marked_sequences(admin)
    client = await plain(secured, who)
    for each in dict.fromkeys(wanted):
        if not each.startswith("$JS"):
            await client.publish(each, b"{}")
    await barrier(client)
    await client.close()
    changed = await stored_in(admin, before)
    await admin.close()

    assert STORES[who] == changed


@pytest.mark.parametrize("who", SERVICES)
async def test_a_service_takes_nothing_out_of_anothers_work_queue(
    secured: Secured, who: str
) -> None:
    """A consumer that acknowledges nothing removed what it received: timers, and requests."""
    client = await plain(secured, who)
    wanted = []
    for queue in QUEUES:
        others = [
            each
            for each in DURABLES
            if each.stream == queue.name and permissions.owner(each) != who
        ]
        wanted += [
            f"$JS.API.CONSUMER.CREATE.{queue.name}",
            f"$JS.API.CONSUMER.CREATE.{queue.name}.x",
            f"$JS.API.CONSUMER.CREATE.{queue.name}.x.{concrete(queue.subjects[0])}",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{queue.name}.x",
            f"$JS.API.CONSUMER.MSG.NEXT.{queue.name}.x",
            *(f"$JS.API.CONSUMER.MSG.NEXT.{queue.name}.{each.name}" for each in others),
            *(f"$JS.ACK.{queue.name}.{each.name}.1.2.3.4.5" for each in others),
        ]
    await client.close()
    attempts = [("publish", each) for each in wanted]

    assert set(attempts) == await secured.refused(who, attempts)


@pytest.mark.parametrize("who", SERVICES)
async def test_a_service_settles_and_deletes_no_durable_of_another(
    secured: Secured, who: str
) -> None:
    """The notifier may not either, which has durables whose names only the configuration knows."""
    wanted = [
        each
        for durable in DURABLES
        if permissions.owner(durable) != who
        for each in (
            f"$JS.API.CONSUMER.DELETE.{durable.stream}.{durable.name}",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{durable.stream}.{durable.name}",
            f"$JS.ACK.{durable.stream}.{durable.name}.1.2.3.4.5",
            f"$JS.ACK.hub.account.{durable.stream}.{durable.name}.1.2.3.4.5.x",
        )
    ]
    if who != permissions.DELIVERS:
        sink = sink_durable("audit", ())
        wanted += [
            f"$JS.API.CONSUMER.DELETE.{sink.stream}.{sink.name}",
            f"$JS.ACK.{sink.stream}.{sink.name}.1.2.3.4.5",
        ]
    attempts = [("publish", each) for each in wanted]

    assert set(attempts) == await secured.refused(who, attempts)


SHARED_CALLS: Final = {
    *("STREAM.INFO.*", "STREAM.MSG.GET.*", "DIRECT.GET.*", "DIRECT.GET.*.>"),
    *(
        f"CONSUMER.{call}"
        for each in EVERY_STREAM
        if each.retention == "limits"
        for call in (f"CREATE.{each.name}.*", f"CREATE.{each.name}.*.>", f"MSG.NEXT.{each.name}.*")
    ),
}
"""What every service may call: it reads streams, and follows them."""
OWN_CALLS: Final = {
    "pool-manager": {
        *(f"STREAM.{call}.{each.name}" for each in EVERY_STREAM for call in ("CREATE", "UPDATE")),
        "STREAM.PURGE.SAGAS",
    },
    "health-monitor": {
        *("STREAM.CREATE.KV_HEARTBEATS", "STREAM.PURGE.INTAKE", "STREAM.LEADER.STEPDOWN.EVENTS"),
    },
    "provisioner": set(),
    "notifier": {
        *(f"STREAM.CREATE.{each.name}" for each in EVERY_STREAM),
        *("STREAM.PURGE.EVENTS", "CONSUMER.NAMES.EVENTS"),
        *(f"CONSUMER.{call}.EVENTS.*" for call in ("DURABLE.CREATE", "INFO", "DELETE")),
    },
    "metrics": {
        *(f"CONSUMER.INFO.{each.stream}.{each.name}" for each in DURABLES),
        "STREAM.PURGE.OBJ_EVIDENCE",
    },
}


@pytest.mark.parametrize("who", SERVICES)
def test_a_service_may_make_the_calls_that_it_needs_and_no_others(who: str) -> None:
    """The fewer, the less is done with credentials that were taken."""
    prefix = "$JS.API."
    allowed = {
        each.removeprefix(prefix)
        for each in permissions.rules()[who].publish
        if each.startswith(prefix)
    }
    durables = {
        f"CONSUMER.{call}.{each.stream}.{each.name}"
        for each in permissions.durables_of(who)
        for call in ("DURABLE.CREATE", "MSG.NEXT", "INFO")
    }

    assert SHARED_CALLS | OWN_CALLS[who] | durables == allowed


@pytest.mark.parametrize("who", SERVICES)
async def test_what_no_service_needs_is_refused(secured: Secured, who: str) -> None:
    """A service reads neither the server's own state, nor lists, nor the durables of others."""
    wanted = [
        "INFO",
        "STREAM.NAMES",
        "STREAM.LIST",
        "CONSUMER.LIST.EVENTS",
        *(() if who == permissions.DELIVERS else ("CONSUMER.NAMES.EVENTS",)),
    ]
    if who != permissions.WATCHES_DURABLES:
        wanted += [
            f"CONSUMER.INFO.{each.stream}.{each.name}"
            for each in DURABLES
            if permissions.owner(each) != who
        ]
    attempts = [("publish", f"$JS.API.{each}") for each in wanted]

    assert set(attempts) == await secured.refused(who, attempts)


@pytest.mark.parametrize("who", SERVICES)
async def test_no_answer_is_stored_as_a_record(secured: Secured, who: str) -> None:
    """The server checks no reply subjects: whatever a service may call, its own streams included.

    An answer to `DIRECT.GET` was stored word for word as another service's record.
    """
    admin = await NatsBus.connect(secured.options("admin"))
    await admin.publish(FACT, b"{}")
    marker = await plain(secured, "admin")
    before = await marked_sequences(marker)
    client = await plain(secured, who)
    config = {"name": "x", "ack_policy": "none", "mem_storage": True, "num_replicas": 1}
    create = json.dumps({"stream_name": "EVENTS", "config": config}).encode()
    await client.request("$JS.API.CONSUMER.CREATE.EVENTS.x", create, timeout=30)
    calls = [
        *(
            (concrete(each), b"")
            for each in permissions.rules()[who].publish
            if each.startswith("$JS.API.") and "PURGE" not in each
        ),
        (f"$JS.API.DIRECT.GET.EVENTS.{FACT}", b""),
        ("$JS.API.DIRECT.GET.EVENTS", b'{"seq": 1}'),
        ("$JS.API.STREAM.MSG.GET.EVENTS", b'{"seq": 1}'),
        ("$JS.API.STREAM.INFO.EVENTS", b""),
        ("$JS.API.CONSUMER.MSG.NEXT.EVENTS.x", b"1"),
        ("$JS.API.CONSUMER.CREATE.EVENTS.x", create),
    ]
    for call, body in calls:
        for target in (VICTIM, *TARGETS):
            await client.publish(call, body, reply=target)
    with suppress(nats.errors.Error):
        # The server sends its answers in order: the first are on their way when this is here.
        await client.request("$JS.API.STREAM.INFO.EVENTS", b"", timeout=30)
    await client.close()
    changed = await stored_in(marker, before)
    await marker.close()
    await admin.close()

    assert set() == changed


@pytest.mark.parametrize("deliver", [VICTIM, "navarch.v1.saga.s1.saga.started"])
async def test_a_consumer_delivers_into_no_stream(secured: Secured, deliver: str) -> None:
    """A consumer delivers in the streams' account, to subscribers, of which there are none."""
    marker = await plain(secured, "admin")
    before = await marked_sequences(marker)
    client = await plain(secured, "metrics")
    for name, subject in (("x", deliver), ("y", "x.y")):
        config = {"name": name, "ack_policy": "none", "mem_storage": True, "num_replicas": 1}
        config |= {"deliver_policy": "all", "deliver_subject": subject}
        if subject == "x.y":
            heard = await marker.subscribe(subject)
            await marker.flush()
        body = json.dumps({"stream_name": "EVENTS", "config": config}).encode()
        call = f"$JS.API.CONSUMER.CREATE.EVENTS.{name}"
        answer = json.loads((await client.request(call, body, timeout=30)).data)
        assert subject == answer["config"]["deliver_subject"]
    await heard.next_msg(timeout=30)
    await client.close()
    changed = await stored_in(marker, before)
    await marker.close()

    assert set() == changed


async def test_a_service_is_not_asked_to_store_its_own_answer(secured: Secured) -> None:
    """Asked with a record's subject as the reply subject, it has the permission to store there."""
    pool_manager = await NatsBus.connect(secured.options("pool-manager"))
    marker = await plain(secured, "admin")
    before = await marked_sequences(marker)
    asked: list[bytes] = []

    async def reply(data: bytes, _: Headers) -> bytes:
        asked.append(data)
        return b"forged"

    first, second = subjects.query("nodes"), subjects.query("pools")
    await pool_manager.serve("pool-manager", "", {first: reply})
    await pool_manager.answer(second, reply)
    client = await plain(secured, "metrics")
    for query in (first, second):
        await client.publish(query, b"attack", reply=VICTIM)
        await client.request(query, b"plain", timeout=30)
    changed = await stored_in(marker, before)
    for each in (client, marker):
        await each.close()
    await pool_manager.close()

    assert ([b"plain"] * 2, set()) == (asked, changed)


def test_what_a_service_publishes_reaches_the_streams() -> None:
    """A subject that is stored and not shared would be lost between the accounts."""
    imported = [each.subject for each in shares() if Account.SERVICES in each.importers]
    inside = (subjects.QUERIES, subjects.ORDERS, permissions.REPLIES, "_INBOX.>")
    lost = {
        subject
        for who in SERVICES
        for subject in permissions.rules()[who].publish
        if not any(covers(each, subject) for each in (*imported, *inside))
    }

    assert set() == lost
