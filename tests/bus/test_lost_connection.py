"""A lost connection costs the same with every server that it leads to."""

import asyncio
from contextlib import aclosing, suppress

import pytest

from schemas import subjects
from schemas.stream_specs import DurableSpec
from schemas.topology import EVENTS, NODES
from services.primitives.errors import Unavailable

FAULT = subjects.node_event("training", "training-1", "verdict")
AT_ONCE_SECONDS = 4.0
"""Less than any call waits for an answer."""


async def make_durable(bus, **options: object) -> DurableSpec:
    spec = DurableSpec(
        stream=EVENTS.name,
        name="d",
        description="a test's",
        filters=(FAULT,),
        **{"ack_wait_seconds": 30.0, **options},
    )
    place = f"{EVENTS.name}.d"
    asked = {"stream_name": EVENTS.name, "config": spec.config(1)}
    await bus.admin(f"CONSUMER.DURABLE.CREATE.{place}", asked)
    return spec


async def some(stream, count: int) -> list:
    """The next of what an endless stream yields."""
    async with asyncio.timeout(60):
        return [await anext(stream) for _ in range(count)]


async def until(bus, name: str, value: int) -> None:
    """Wait until the durable's account says so."""
    async with asyncio.timeout(60):
        while (await bus.admin(f"CONSUMER.INFO.{EVENTS.name}.d", {}))[name] != value:
            await asyncio.sleep(0.01)


async def test_calls_fail_at_once_and_nothing_is_sent_later(cuttable):
    """A caller that got an error can try again without doubling anything."""
    await cuttable.cut()
    bus = cuttable.bus
    for call in (
        bus.publish(FAULT, b"1"),
        bus.append(FAULT, b"1", tree=FAULT, expected=0),
        bus.put(NODES, "a", b"1"),
        bus.get(NODES, "a"),
        bus.read(EVENTS.name, FAULT),
        bus.last_sequence(EVENTS.name),
        bus.admin(f"STREAM.INFO.{EVENTS.name}", {}),
        bus.request("x", b"", timeout_seconds=60),
    ):
        async with asyncio.timeout(AT_ONCE_SECONDS):
            with pytest.raises(Unavailable):
                await call
    await cuttable.restore()
    assert await bus.publish(FAULT, b"2") == 1
    assert await bus.entries(NODES) == []


async def test_what_was_settled_meanwhile_is_settled_when_it_is_back(cuttable):
    """Acknowledged, handed back or given up: each as it was said, and nothing comes twice."""
    spec = await make_durable(cuttable.onlooker)
    for number in range(3):
        await cuttable.onlooker.publish(FAULT, b"%d" % number)
    deliveries = cuttable.bus.consume(spec)
    async with aclosing(deliveries):
        done, back, given_up = await some(deliveries, 3)
        await cuttable.cut()
        await done.progress()
        await done.ack()
        await back.nak(0)
        await given_up.term()
        await cuttable.restore()
        (again,) = await some(deliveries, 1)
        await again.ack()
        await until(cuttable.onlooker, "num_ack_pending", 0)
        await cuttable.onlooker.publish(FAULT, b"next")
        (following,) = await some(deliveries, 1)
    assert (again.stored.data, again.deliveries) == (b"1", 2)
    assert (following.stored.data, following.deliveries) == (b"next", 1)


async def test_what_a_process_leaves_with_is_handed_back_when_it_can(cuttable):
    """Messages are handed back also where the process stopped while the connection was lost."""
    spec = await make_durable(cuttable.onlooker)
    for number in range(3):
        await cuttable.onlooker.publish(FAULT, b"%d" % number)
    deliveries = cuttable.bus.consume(spec)
    (held,) = await some(deliveries, 1)
    await until(cuttable.onlooker, "num_ack_pending", 3)
    await cuttable.cut()
    await held.nak(0)
    await deliveries.aclose()
    await cuttable.restore()
    successor = cuttable.onlooker.consume(spec)
    async with aclosing(successor):
        rest = await some(successor, 3)
    found = sorted((each.stored.data, each.deliveries) for each in rest)
    assert found == [(b"0", 2), (b"1", 2), (b"2", 2)]


def assert_two_were_lost(found: dict[bytes, int]) -> None:
    """All four came, the first two again: a loaded machine lets any one's wait pass once more."""
    assert set(found) == {b"0", b"1", b"2", b"3"}
    assert min(found[b"0"], found[b"1"]) >= 2


async def test_what_was_lost_on_its_way_takes_up_no_room(cuttable):
    """The message comes again after its acknowledgement wait, however little a process may hold."""
    spec = await make_durable(cuttable.onlooker, ack_wait_seconds=1.5, in_flight_max=2)
    deliveries = cuttable.bus.consume(spec)
    async with aclosing(deliveries):
        waiting = asyncio.create_task(some(deliveries, 4))
        await until(cuttable.onlooker, "num_waiting", 1)
        await cuttable.line.hold()
        for number in range(4):
            await cuttable.onlooker.publish(FAULT, b"%d" % number)
        await until(cuttable.onlooker, "num_ack_pending", 2)
        await cuttable.cut()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
    deliveries = cuttable.bus.consume(spec)
    found = {}
    async with aclosing(deliveries), asyncio.timeout(60):
        await cuttable.restore()
        while len(found) < 4:
            each = await anext(deliveries)
            found[each.stored.data] = each.deliveries
            await each.ack()
    assert_two_were_lost(found)


async def test_a_consumer_goes_on_with_the_room_it_had(cuttable):
    """The loss of what was on its way to it is not the end of its taking."""
    spec = await make_durable(cuttable.onlooker, ack_wait_seconds=1.5, in_flight_max=2)
    deliveries = cuttable.bus.consume(spec)
    found = {}

    async def take() -> None:
        async for each in deliveries:
            found[each.stored.data] = each.deliveries
            await each.ack()
            if len(found) == 4:
                return

    taking = asyncio.create_task(take())
    await until(cuttable.onlooker, "num_waiting", 1)
    await cuttable.line.hold()
    for number in range(4):
        await cuttable.onlooker.publish(FAULT, b"%d" % number)
    await until(cuttable.onlooker, "num_ack_pending", 2)
    await cuttable.cut()
    await cuttable.restore()
    async with asyncio.timeout(60):
        await taking
    await deliveries.aclose()
    assert_two_were_lost(found)


@pytest.mark.parametrize("begun", [True, False], ids=["after a first one", "before any"])
async def test_a_follower_misses_nothing_and_repeats_nothing(cuttable, begun):
    """A message stored meanwhile, or on its way, comes once and in order."""
    following = cuttable.bus.follow(EVENTS.name, [FAULT], "all")
    found = []
    moved = asyncio.Condition()

    async def follow() -> None:
        async for each in following:
            async with moved:
                found.append(int(each.data))
                moved.notify_all()

    async def seen(count: int) -> None:
        async with asyncio.timeout(60), moved:
            await moved.wait_for(lambda: len(found) >= count)

    task = asyncio.create_task(follow())
    await cuttable.onlooker.publish(FAULT, b"0")
    if begun:
        await seen(1)
        await cuttable.line.hold()
    await cuttable.onlooker.publish(FAULT, b"1")
    await cuttable.cut()
    await cuttable.onlooker.publish(FAULT, b"2")
    await cuttable.restore()
    await cuttable.onlooker.publish(FAULT, b"3")
    await seen(4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert found == [0, 1, 2, 3]


async def test_a_watcher_learns_what_became_of_each_key(cuttable):
    """Not every value that a key had meanwhile, but its last."""
    bus, other = cuttable.bus, cuttable.onlooker
    await other.put(NODES, "a", b"1")
    await other.put(NODES, "b", b"1")
    watching = bus.watch(NODES)
    async with aclosing(watching):
        first = await some(watching, 2)
        await cuttable.cut()
        for number in (b"2", b"3"):
            await other.put(NODES, "a", number)
        await other.delete(NODES, "b")
        await cuttable.restore()
        rest = await some(watching, 2)
    assert [(each.key, each.value) for each in first] == [("a", b"1"), ("b", b"1")]
    assert [(each.key, each.value, each.removed) for each in rest] == [
        ("a", b"3", ""),
        ("b", b"", "DEL"),
    ]


async def test_who_cannot_be_reached_is_not_asked_until_it_is_back(cuttable):
    """The endpoints of a service that is back need not be announced again."""

    async def echo(data: bytes, headers: object) -> bytes:
        del headers
        return data

    await cuttable.bus.serve("echo", "says it again", {"test.service": echo})
    await cuttable.bus.answer("test.plain", echo)
    await cuttable.bus.request("test.plain", b"", timeout_seconds=30)
    await cuttable.cut()
    for subject in ("test.service", "test.plain"):
        with pytest.raises(Unavailable, match="no responders"):
            await cuttable.onlooker.request(subject, b"", timeout_seconds=30)
    await cuttable.restore()
    # Its subscriptions go ahead of what it asks itself.
    await cuttable.bus.request("test.plain", b"", timeout_seconds=30)
    for subject in ("test.service", "test.plain"):
        reply = await cuttable.onlooker.request(subject, b"1", timeout_seconds=30)
        assert reply.data == b"1"


async def test_an_answer_that_cannot_be_sent_is_lost_and_the_requester_times_out(cuttable):
    """The request is carried out all the same; the requester learns nothing of it."""
    asked, hold, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> bytes:
        asked.set()
        await hold.wait()
        done.set()
        return b"done"

    await cuttable.bus.answer("test.slow", slow)
    await cuttable.bus.publish(FAULT, b"")
    asking = asyncio.create_task(cuttable.onlooker.request("test.slow", b"", timeout_seconds=0.5))
    await asked.wait()
    await cuttable.cut()
    hold.set()
    with pytest.raises(Unavailable, match="no answer"):
        await asking
    assert done.is_set()
