"""A durable that is deleted while its service runs is created again, where it had come to."""

import asyncio
from datetime import UTC, datetime

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Lost
from schemas.topology import EVENTS
from services.bus.topology_setup import DurablePosition, restore_durable
from services.primitives.clock import SystemClock
from services.runtime.durable_watch import DurableWatch
from tests.support.settling import settled

NOW = datetime(2099, 1, 1, tzinfo=UTC)
DURABLE = "test-durable"
SUBJECT = subjects.node_event("training", "n", "lost")


def lost(number: int) -> bytes:
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return encode(Lost(id=f"lost-{number}", time=time, pool="training", node="n"))


async def test_it_begins_where_it_had_come_to(any_bus, durable, handler, looping):
    """Settled messages do not come again, and those that came meanwhile are not passed over."""
    spec = await durable(SUBJECT)
    failures = handler.instruments.failures
    watch = DurableWatch(any_bus, SystemClock(), spec, failures, 1)
    async with looping(any_bus, spec, handler), asyncio.timeout(60):
        for number in (1, 2):
            await any_bus.publish(SUBJECT, lost(number))
        await handler.wait_for(lambda: len(handler.done) == 2)
        await settled(any_bus, EVENTS.name, DURABLE)
        assert await watch.look() == []
        await any_bus.admin(f"CONSUMER.DELETE.{EVENTS.name}.{DURABLE}", {})
        await any_bus.publish(SUBJECT, lost(3))
        [reported] = await watch.look()
        assert reported.failure == "consumer-missing"
        assert "it was created again, from message" in reported.reason
        await handler.wait_for(lambda: len(handler.done) == 3)
        await settled(any_bus, EVENTS.name, DURABLE)
        assert await watch.look() == []
    assert handler.ids() == ["lost-1", "lost-2", "lost-3"]


async def test_a_durable_that_another_replica_created_again_is_taken_as_it_is(any_bus, durable):
    """Replicas remember different positions; set-up finds it in order afterwards."""
    spec = await durable(SUBJECT)
    for number in range(3):
        await any_bus.publish(SUBJECT, lost(number))
    await any_bus.admin(f"CONSUMER.DELETE.{EVENTS.name}.{DURABLE}", {})
    await restore_durable(any_bus, spec, DurablePosition(2, NOW), 1)
    await restore_durable(any_bus, spec, DurablePosition(1, NOW), 1)
    await restore_durable(any_bus, spec, None, 1)
    info = await any_bus.admin(f"CONSUMER.INFO.{EVENTS.name}.{DURABLE}", {})
    assert info["config"]["opt_start_seq"] == 3


async def test_what_was_rolled_back_is_delivered_from_the_beginning(any_bus, durable):
    """A position beyond the stream's end would pass over what is stored from now on."""
    spec = await durable(SUBJECT)
    await any_bus.admin(f"CONSUMER.DELETE.{EVENTS.name}.{DURABLE}", {})
    assert await restore_durable(any_bus, spec, DurablePosition(1_000_000, NOW), 1) == 1


async def test_nothing_of_a_stream_that_was_created_again_is_passed_over(
    any_bus, durable, handler, looping
):
    """A new stream counts from one, and may soon be beyond what was settled in the lost one."""
    spec = await durable(SUBJECT)
    watch = DurableWatch(any_bus, SystemClock(), spec, handler.instruments.failures, 1)
    async with looping(any_bus, spec, handler), asyncio.timeout(60):
        await any_bus.publish(SUBJECT, lost(1))
        await handler.wait_for(lambda: len(handler.done) == 1)
        await settled(any_bus, EVENTS.name, DURABLE)
        assert await watch.look() == []
        await any_bus.admin(f"STREAM.DELETE.{EVENTS.name}", {})
        await any_bus.admin(f"STREAM.CREATE.{EVENTS.name}", EVENTS.config(1))
        for number in (2, 3):
            await any_bus.publish(SUBJECT, lost(number))
        assert await watch.look() == []
        await handler.wait_for(lambda: len(handler.done) == 3)


async def test_a_durable_that_went_with_its_stream_is_created_again_and_not_reported(
    any_bus, durable, handler, caplog
):
    """The stream's loss is reported by itself; a durable deleted alone is reported afterwards."""
    spec = await durable(SUBJECT)
    consumer = f"{EVENTS.name}.{DURABLE}"
    watch = DurableWatch(any_bus, SystemClock(), spec, handler.instruments.failures, 1)
    assert await watch.look() == []
    await any_bus.admin(f"STREAM.DELETE.{EVENTS.name}", {})
    assert await watch.look() == []
    assert f"{EVENTS.name}/{DURABLE} was lost with its stream and created again" in caplog.text
    assert (await any_bus.admin(f"CONSUMER.INFO.{consumer}", {}))["name"] == DURABLE
    assert await watch.look() == []
    await any_bus.admin(f"CONSUMER.DELETE.{consumer}", {})
    [reported] = await watch.look()
    assert reported.failure == "consumer-missing"
