"""Every bus fires timers, delivers, follows and answers requests in the same way."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from schemas import subjects
from schemas.topology import EVENTS, POOL_TIMERS
from services.primitives.errors import Unavailable
from tests.bus.conftest import collect
from tests.support.busyness import watched
from tests.support.settling import arriving

FAULT = subjects.node_event("training", "training-1", "uncordoned")
OTHER = subjects.node_event("training", "training-2", "uncordoned")


CLOCKS_APART = timedelta(milliseconds=2)
"""The server counts from its own reading of the clock, and may be some microseconds early."""


async def test_a_timer_fires_once_and_not_before_its_time(any_bus):
    """A scheduled message arrives under the owner's due subject, with its headers."""
    at = datetime.now(UTC) + timedelta(seconds=0.4)
    trace = {"traceparent": "00-a-b-01"}
    await any_bus.schedule("pool-manager", "replace-1", at, b"due", headers=trace)
    (delivery,) = await collect(any_bus.consume(POOL_TIMERS), 1)
    assert delivery.stored.subject == subjects.timer_due("pool-manager", "replace-1")
    assert delivery.stored.data == b"due"
    assert delivery.stored.headers["traceparent"] == "00-a-b-01"
    assert datetime.now(UTC) >= at - CLOCKS_APART
    await delivery.ack()


async def test_a_timer_of_the_same_key_takes_the_earlier_ones_place(any_bus):
    """One deadline per key: the first never fires."""
    now = datetime.now(UTC)
    await any_bus.schedule("pool-manager", "k", now + timedelta(seconds=1.0), b"first")
    await any_bus.schedule("pool-manager", "k", now + timedelta(seconds=1.3), b"second")
    await any_bus.schedule("pool-manager", "l", now + timedelta(seconds=1.6), b"last")
    due = await collect(any_bus.consume(POOL_TIMERS), 2)
    assert [each.stored.data for each in due] == [b"second", b"last"]


async def test_what_is_not_acknowledged_comes_again(any_bus, durable):
    """A message comes again after the acknowledgement wait, with its deliveries counted.

    A message that is acknowledged does not.
    """
    spec = await durable(FAULT, ack_wait_seconds=0.3)
    await any_bus.publish(FAULT, b"1")
    await any_bus.publish(FAULT, b"2")
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries), asyncio.timeout(60):
        first, second = await anext(deliveries), await anext(deliveries)
        await first.ack()
        again = await anext(deliveries)
        await again.ack()
    assert (first.deliveries, second.deliveries) == (1, 1)
    assert (again.stored.data, again.deliveries) == (b"2", 2)
    assert again.stored.sequence == second.stored.sequence


async def test_progress_keeps_a_message_from_coming_again(any_bus, durable):
    """A progress report restarts the wait."""
    spec = await durable(FAULT, ack_wait_seconds=0.8)
    await any_bus.publish(FAULT, b"slow")
    deliveries = any_bus.consume(spec)
    async with watched() as still, aclosing(deliveries), asyncio.timeout(60):
        slow = await anext(deliveries)
        after = datetime.now(UTC) + timedelta(seconds=1.2)
        following = asyncio.ensure_future(anext(deliveries))
        while datetime.now(UTC) < after:
            await slow.progress()
            await asyncio.wait([following], timeout=0.1)
        await slow.ack()
        await any_bus.publish(FAULT, b"next")
        came = (await following).stored.data
    # A stalled machine cannot report progress.
    assert still() > spec.ack_wait_seconds / 4 or came == b"next"


async def test_a_nak_brings_a_message_back_after_its_delay(any_bus, durable):
    """The message does not come before its delay; zero brings it back at once."""
    spec = await durable(FAULT, ack_wait_seconds=30)
    await any_bus.publish(FAULT, b"1")
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries), asyncio.timeout(60):
        first = await anext(deliveries)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        await first.nak(0.4)
        second = await anext(deliveries)
        waited = loop.time() - asked
        await second.nak(0)
        third = await anext(deliveries)
        await third.ack()
    assert 0.35 < waited < spec.ack_wait_seconds / 2
    assert [each.deliveries for each in (first, second, third)] == [1, 2, 3]


async def test_a_terminated_message_never_comes_again(any_bus, durable):
    """Neither now nor to the next consumer; settling twice changes nothing."""
    spec = await durable(FAULT)
    await any_bus.publish(FAULT, b"poison")
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries), asyncio.timeout(60):
        poison = await anext(deliveries)
        await poison.term()
        await poison.nak(0)
        await any_bus.publish(FAULT, b"good")
        following = await anext(deliveries)
        await following.ack()
    assert following.stored.data == b"good"


async def test_no_more_is_held_than_the_durable_allows(any_bus, durable):
    """A slow process leaves the rest to others; settling one makes room for one."""
    spec = await durable(FAULT, ack_wait_seconds=30, in_flight_max=4)
    for number in range(10):
        await any_bus.publish(FAULT, b"%d" % number)
    await arriving(any_bus)
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries), asyncio.timeout(60):
        held = [await anext(deliveries) for _ in range(4)]
        following = asyncio.ensure_future(anext(deliveries))
        await asyncio.wait([following], timeout=0.2)
        assert not following.done()
        for each in held:
            await each.ack()
        rest = [await following]
        while len(rest) < 6:
            await rest[-1].ack()
            rest.append(await anext(deliveries))
        await rest[-1].ack()
    assert [int(each.stored.data) for each in (*held, *rest)] == list(range(10))
    assert (held[0].pending, rest[-1].pending) == (9, 0)


async def test_following_begins_at_the_given_position(any_bus):
    """A follower begins at the beginning, now, or after a sequence.

    A filter leaves out the rest.
    """
    first = await any_bus.publish(FAULT, b"1")
    await any_bus.publish(OTHER, b"other")
    await any_bus.publish(FAULT, b"2")
    everything = await collect(any_bus.follow(EVENTS.name, [FAULT], "all"), 2)
    later = await collect(any_bus.follow(EVENTS.name, [FAULT], "all", after=first), 1)
    new = any_bus.follow(EVENTS.name, [FAULT, OTHER], "new")
    waiting = asyncio.create_task(collect(new, 2))
    while not any(
        each["name"].startswith("follow-")
        for each in (await any_bus.admin(f"CONSUMER.LIST.{EVENTS.name}", {}))["consumers"]
        if each["config"].get("filter_subjects") == [FAULT, OTHER]
    ):
        await asyncio.sleep(0)
    await any_bus.publish(FAULT, b"3")
    await any_bus.publish(OTHER, b"4")
    assert [each.data for each in everything] == [b"1", b"2"]
    assert [each.data for each in later] == [b"2"]
    assert [each.data for each in await waiting] == [b"3", b"4"]


async def test_requests_are_answered_or_fail_in_words(any_bus):
    """Plain subscribers and services answer.

    Where nothing answers, that is Unavailable, at once.
    """

    async def echo(data: bytes, headers: object) -> bytes:
        del headers
        if data == b"bad":
            raise ValueError("that is no question")
        return data

    await any_bus.answer("test.plain", echo)
    await any_bus.serve("echo", "says it again", {"test.service": echo})
    plain = await any_bus.request("test.plain", b"1", timeout_seconds=30)
    service = await any_bus.request("test.service", b"2", timeout_seconds=30)
    failed = await any_bus.request("test.service", b"bad", timeout_seconds=30)
    assert (plain.data, service.data) == (b"1", b"2")
    assert failed.data == b'{"error":"invalid-request","reason":"that is no question"}'
    with pytest.raises(Unavailable, match="no responders"):
        await any_bus.request("test.unserved", b"", timeout_seconds=30)


async def test_a_plain_answer_that_fails_is_reported_too(any_bus):
    """An endpoint that raises does not leave its asker to the time-out."""

    async def broken(*_: object) -> bytes:
        raise ValueError("broken")

    await any_bus.answer("test.plain", broken)
    reply = await any_bus.request("test.plain", b"1", timeout_seconds=30)
    assert reply.data == b'{"error":"invalid-request","reason":"broken"}'
