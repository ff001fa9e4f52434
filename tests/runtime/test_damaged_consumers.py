"""A durable whose files on the server's disk are damaged: recreated, or its remedy is named."""

import asyncio
import shutil
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from schemas import subjects
from schemas.topology import EVENTS, POOL_NODE_EVENTS
from services.bus.nats.embedded_server import (
    OPEN_ACCOUNT,
    STORE_FOLDER,
    STREAMS,
    EmbeddedServer,
)
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.fleet_client.fleet_client import as_generator
from services.primitives.clock import SystemClock
from services.runtime.durable_watch import DurableWatch
from services.runtime.failure_register import FailureRegister
from tests.support.clients import connected
from tests.support.settling import settled

SUBJECT = subjects.node_event("training", "n", "registered")
GARBAGE = b"\xff" * 40
META, STATE = "meta.inf", "o.dat"


async def taken(bus: NatsBus, last: bytes) -> list[bytes]:
    """The durable's messages up to this one; the rest of what was pulled is handed back."""
    found: list[bytes] = []
    async with (
        asyncio.timeout(20),
        aclosing(as_generator(bus.consume(POOL_NODE_EVENTS))) as deliveries,
    ):
        async for delivery in deliveries:
            found.append(delivery.stored.data)
            await delivery.ack()
            if delivery.stored.data == last:
                break
    return found


def watch(bus: NatsBus) -> DurableWatch:
    """Return the watch with which a service looks at its durable."""
    failures = FailureRegister(CollectorRegistry())
    return DurableWatch(bus, SystemClock(), POOL_NODE_EVENTS, failures, 1)


async def begun(server: EmbeddedServer) -> None:
    """Three of five messages are settled; then the server stops."""
    await server.start()
    bus = await connected(server)
    await set_up(bus, SystemClock(), replicas=1)
    for number in range(3):
        await bus.publish(SUBJECT, b"%d" % number)
    assert await taken(bus, b"2") == [b"0", b"1", b"2"]
    await settled(bus, EVENTS.name, POOL_NODE_EVENTS.name)
    for number in (3, 4):
        await bus.publish(SUBJECT, b"%d" % number)
    await bus.close()
    await server.stop()


def files(directory: Path) -> Path:
    """Return the folder of the durable's files."""
    streams = directory / STORE_FOLDER / "jetstream" / OPEN_ACCOUNT / STREAMS
    return streams / EVENTS.name / "obs" / POOL_NODE_EVENTS.name


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        pytest.param(lambda at: (at / META).write_bytes(GARBAGE), True, id="settings garbled"),
        pytest.param(lambda at: (at / META).write_bytes(b""), True, id="settings emptied"),
        pytest.param(lambda at: (at / META).unlink(), True, id="settings gone"),
        pytest.param(lambda at: (at / STATE).write_bytes(b""), False, id="position emptied"),
        pytest.param(lambda at: (at / STATE).unlink(), False, id="position gone"),
        pytest.param(shutil.rmtree, True, id="all gone"),
    ],
)
async def test_what_was_not_settled_is_delivered_and_a_lost_durable_is_reported(
    tmp_path: Path, damage: Callable[[Path], object], *, missing: bool
) -> None:
    """Some messages may come again, which handlers bear; none is passed over."""
    server = EmbeddedServer(tmp_path, sync=False)
    await begun(server)
    damage(files(tmp_path))
    await server.start()
    bus = await connected(server)
    reported = await watch(bus).look()
    assert [each.failure for each in reported] == (["consumer-missing"] if missing else [])
    assert {b"3", b"4"} <= set(await taken(bus, b"4"))
    await bus.close()
    await server.stop()


async def test_a_garbled_position_is_reported_with_a_remedy_that_works(tmp_path: Path) -> None:
    """The server refuses that durable for as long as the file is there."""
    server = EmbeddedServer(tmp_path, sync=False)
    await begun(server)
    (files(tmp_path) / STATE).write_bytes(GARBAGE)
    await server.start()
    bus = await connected(server)
    [reported] = await watch(bus).look()
    assert reported.failure == "consumer-damaged"
    remedy = f"Stop nats-server, remove the folder obs/{POOL_NODE_EVENTS.name} of that stream"
    assert remedy in reported.reason
    await bus.close()
    await server.stop()
    shutil.rmtree(files(tmp_path))
    await server.start()
    bus = await connected(server)
    [reported] = await watch(bus).look()
    assert reported.failure == "consumer-missing"
    assert "it was created again" in reported.reason
    assert {b"3", b"4"} <= set(await taken(bus, b"4"))
    await bus.close()
    await server.stop()
