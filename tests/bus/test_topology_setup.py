"""Set-up makes the server match the topology, and names what it cannot make match."""

import asyncio

import pytest

from schemas.topology import (
    DURABLES,
    EVENTS,
    EVERY_STREAM,
    HEALTH_EVENTS,
)
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import differences, set_up
from services.primitives.clock import SystemClock
from services.primitives.errors import Refused, SetupError

CLOCK = SystemClock()


async def test_everything_reads_back_as_it_is_spelt_out(any_bus):
    """The server's account of each stream and durable is ours after set-up, also a second one."""
    await set_up(any_bus, CLOCK, replicas=1)
    for spec in EVERY_STREAM:
        info = await any_bus.admin(f"STREAM.INFO.{spec.name}", {})
        assert differences(spec.config(1), info["config"]) == {}
    for durable in DURABLES:
        info = await any_bus.admin(f"CONSUMER.INFO.{durable.stream}.{durable.name}", {})
        assert differences(durable.config(1), info["config"]) == {}


async def test_set_up_keeps_what_is_stored(any_bus):
    """A service that starts changes nothing that others have written or not yet read."""
    sequence = await any_bus.publish("navarch.v1.node.p.n.event.uncordoned", b"1")
    await set_up(any_bus, CLOCK, replicas=1)
    (stored,) = await any_bus.read(EVENTS.name, "navarch.v1.node.>")
    info = await any_bus.admin(f"CONSUMER.INFO.{EVENTS.name}.{HEALTH_EVENTS.name}", {})
    assert (stored.sequence, info["num_pending"]) == (sequence, 1)


async def test_a_server_that_is_not_there_yet_is_waited_for(memory_bus, monkeypatch):
    """A cluster in which one is starting refuses to place anything on it; then it does."""
    answering, refused = memory_bus.admin, []

    async def admin(call, payload):
        if ".CREATE." in call and len(refused) < 3:
            refused.append(call)
            raise Refused("no suitable peers for placement, peer offline (10005)", 10005)
        return await answering(call, payload)

    monkeypatch.setattr(memory_bus, "admin", admin)
    await set_up(memory_bus, CLOCK, replicas=1)
    assert len(refused) == 3


async def test_a_replica_that_writes_what_it_read_before_this_one_does_no_harm(
    memory_bus, monkeypatch
):
    """Both give the facts of agents to INTAKE; the slower one's update had EVENTS copy nothing."""
    before = EVENTS.config(1) | {"sources": []}
    await memory_bus.admin(f"STREAM.UPDATE.{EVENTS.name}", before)
    answering, updated = memory_bus.admin, []

    async def admin(call, payload):
        answer = await answering(call, payload)
        if call == f"STREAM.UPDATE.{EVENTS.name}" and not updated:
            updated.append(call)
            answer = await answering(call, before)
        return answer

    monkeypatch.setattr(memory_bus, "admin", admin)
    await set_up(memory_bus, CLOCK, replicas=1)
    info = await memory_bus.admin(f"STREAM.INFO.{EVENTS.name}", {})
    assert (updated, info["config"]["sources"]) == (
        [f"STREAM.UPDATE.{EVENTS.name}"],
        [{"name": "INTAKE"}],
    )


async def test_a_drift_that_can_be_corrected_is_corrected(any_bus):
    """An operator's change of an age or a wait is taken back."""
    drifted = EVENTS.config(1) | {"max_age": 3600_000_000_000}
    await any_bus.admin(f"STREAM.UPDATE.{EVENTS.name}", drifted)
    consumer = HEALTH_EVENTS.config(1) | {"ack_wait": 60_000_000_000}
    await any_bus.admin(
        f"CONSUMER.DURABLE.CREATE.{EVENTS.name}.{HEALTH_EVENTS.name}",
        {"stream_name": EVENTS.name, "config": consumer},
    )
    await set_up(any_bus, CLOCK, replicas=1)
    stream = await any_bus.admin(f"STREAM.INFO.{EVENTS.name}", {})
    durable = await any_bus.admin(f"CONSUMER.INFO.{EVENTS.name}.{HEALTH_EVENTS.name}", {})
    assert stream["config"]["max_age"] == EVENTS.config(1)["max_age"]
    assert durable["config"]["ack_wait"] == HEALTH_EVENTS.config(1)["ack_wait"]


async def test_a_durable_of_an_earlier_release_is_changed_after_a_restart_of_the_server(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """The first answer then has the options of before, although it has taken the new ones."""
    place = f"CONSUMER.DURABLE.CREATE.{EVENTS.name}.{HEALTH_EVENTS.name}"
    earlier = HEALTH_EVENTS.config(1) | {"filter_subjects": [HEALTH_EVENTS.filters[0]]}
    await bus.admin(place, {"stream_name": EVENTS.name, "config": earlier})
    await server.restart()
    async with asyncio.timeout(20):
        while not bus.connected:
            await asyncio.sleep(0.01)
    await set_up(bus, CLOCK, replicas=1)
    info = await bus.admin(f"CONSUMER.INFO.{EVENTS.name}.{HEALTH_EVENTS.name}", {})
    assert differences(HEALTH_EVENTS.config(1), info["config"]) == {}


@pytest.mark.parametrize(
    ("option", "value"), [("storage", "memory"), ("retention", "interest"), ("deny_delete", True)]
)
async def test_a_stream_that_cannot_be_corrected_is_named(any_bus, option, value):
    """The error has the option, both values, and what to do; nothing is deleted."""
    await any_bus.admin(f"STREAM.DELETE.{EVENTS.name}", {})
    await any_bus.admin(f"STREAM.CREATE.{EVENTS.name}", EVENTS.config(1) | {option: value})
    with pytest.raises(SetupError, match=f"stream EVENTS .*{option} is {value!r}.*navarch restore"):
        await set_up(any_bus, CLOCK, replicas=1)


async def test_a_durable_that_cannot_be_corrected_is_named(any_bus):
    """The error has the same as that about a stream."""
    await any_bus.admin(f"CONSUMER.DELETE.{EVENTS.name}.{HEALTH_EVENTS.name}", {})
    await any_bus.admin(
        f"CONSUMER.DURABLE.CREATE.{EVENTS.name}.{HEALTH_EVENTS.name}",
        {
            "stream_name": EVENTS.name,
            "config": HEALTH_EVENTS.config(1) | {"deliver_policy": "new"},
        },
    )
    remedy = (
        "durable health-events .*deliver_policy is 'new'.*nats consumer rm EVENTS health-events"
    )
    with pytest.raises(SetupError, match=remedy):
        await set_up(any_bus, CLOCK, replicas=1)
