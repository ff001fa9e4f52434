"""Every server gives the same messages, in the same order, and counts alike what is unsettled."""

import asyncio
from contextlib import aclosing, suppress

import pytest

from schemas.stream_specs import SECOND_NS, DurableSpec
from schemas.topology import DEAD
from tests.bus.test_server_rules import make, state


async def durable(bus, *filters: str, give_up_after: int = 30, **options: object) -> DurableSpec:
    """A durable on `S`; without filters it takes everything."""
    spec = DurableSpec(
        stream="S",
        name="d",
        description="a test's",
        filters=filters or ("s.>",),
        deliveries_max=give_up_after,
        **{"ack_wait_seconds": 30.0, **options},
    )
    await bus.admin("CONSUMER.DURABLE.CREATE.S.d", {"stream_name": "S", "config": spec.config(1)})
    return spec


async def fill(bus, *subjects: str) -> None:
    for number, subject in enumerate(subjects):
        await bus.publish(subject, b"%d" % number)


async def some(deliveries, count: int) -> list:
    """Return the next deliveries."""
    async with asyncio.timeout(60):
        return [await anext(deliveries) for _ in range(count)]


async def consumer(bus) -> dict:
    return await bus.admin("CONSUMER.INFO.S.d", {})


async def until(bus, **wanted: int) -> dict:
    """Wait until the consumer's account says so."""
    async with asyncio.timeout(60):
        while True:
            info = await consumer(bus)
            if all(info[name] == value for name, value in wanted.items()):
                return info
            await asyncio.sleep(0.01)


def received(deliveries: list) -> list[tuple[bytes, int]]:
    return [(each.stored.data, each.deliveries) for each in deliveries]


async def test_what_is_handed_back_at_once_comes_back_in_the_order_of_storing(any_bus):
    """Not in that of handing back; with different delays it is the delays' order."""
    await make(any_bus)
    await fill(any_bus, *4 * ["s.1"])
    deliveries = any_bus.consume(await durable(any_bus))
    async with aclosing(deliveries):
        one = await some(deliveries, 4)
        for each in (3, 0, 2, 1):
            await one[each].nak(0)
        two = await some(deliveries, 4)
        for each in (3, 0, 2, 1):
            await two[each].nak(0.1)
        three = await some(deliveries, 4)
        for each, delay in ((3, 0.15), (0, 0.45), (2, 0.3), (1, 0)):
            await three[each].nak(delay)
        four = await some(deliveries, 4)
    assert received(two) == [(b"0", 2), (b"1", 2), (b"2", 2), (b"3", 2)]
    assert received(three) == [(b"0", 3), (b"1", 3), (b"2", 3), (b"3", 3)]
    assert received(four) == [(b"1", 4), (b"3", 4), (b"2", 4), (b"0", 4)]


async def test_what_was_given_before_goes_ahead_of_what_was_not(any_bus):
    """Redeliveries go first also where no more messages may be unsettled.

    A new message waits until something is settled.
    """
    await make(any_bus)
    await fill(any_bus, *4 * ["s.1"])
    deliveries = any_bus.consume(await durable(any_bus, ack_pending_max=2))
    async with aclosing(deliveries):
        one = await some(deliveries, 2)
        await one[1].nak(0)
        two = await some(deliveries, 1)
        assert (await consumer(any_bus))["num_pending"] == 2
        await one[0].ack()
        three = await some(deliveries, 1)
        await two[0].nak(0)
        four = await some(deliveries, 1)
        await three[0].term()
        five = await some(deliveries, 1)
        info = await until(any_bus, num_ack_pending=2)
    assert received([*two, *three, *four, *five]) == [(b"1", 2), (b"2", 1), (b"1", 3), (b"3", 1)]
    assert (info["num_pending"], info["num_redelivered"]) == (0, 1)


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "purged"])
async def test_what_is_gone_is_owed_no_more(any_bus, replaced):
    """Messages that were removed while held make room for others."""
    await make(any_bus, max_msgs_per_subject=1)
    await fill(any_bus, "s.0", "s.1", "s.2", "s.3")
    deliveries = any_bus.consume(await durable(any_bus, ack_pending_max=2))
    async with aclosing(deliveries):
        await some(deliveries, 2)
        for subject in ("s.0", "s.1"):
            if replaced:
                await any_bus.publish(subject, b"new")
            else:
                await any_bus.purge("S", subject)
        rest = await some(deliveries, 2)
        info = await until(any_bus, num_ack_pending=2)
    assert received(rest) == [(b"2", 1), (b"3", 1)]
    assert info["num_pending"] == (2 if replaced else 0)


async def test_an_overdue_message_may_still_be_settled_by_its_holder(any_bus):
    """Late is not too late: an acknowledgement is the message's, not the delivery's."""
    await make(any_bus)
    await fill(any_bus, "s.1", "s.1")
    deliveries = any_bus.consume(await durable(any_bus, ack_wait_seconds=0.2))
    async with aclosing(deliveries):
        first = await some(deliveries, 2)
        again = await some(deliveries, 2)
        await first[0].ack()
        await first[1].nak(0)
        third = await some(deliveries, 1)
        await again[1].ack()
        info = await until(any_bus, num_ack_pending=0)
    assert received([*again, *third]) == [(b"0", 2), (b"1", 2), (b"1", 3)]
    assert info["ack_floor"]["stream_seq"] == 2


async def test_what_was_given_up_stays_until_it_is_settled(any_bus):
    """A late acknowledgement removes it from a work queue; handing it back does nothing."""
    await make(any_bus, retention="workqueue")
    await fill(any_bus, "s.1", "s.1", "s.1")
    spec = await durable(any_bus, ack_wait_seconds=0.1, give_up_after=1)
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries):
        held = await some(deliveries, 3)
        await until(any_bus, num_ack_pending=0)
        assert (await state(any_bus))[0] == 3
        await held[0].ack()
        await held[1].term()
        await held[2].nak(0)
        async with asyncio.timeout(60):
            while (await state(any_bus))[0] > 1:
                await asyncio.sleep(0.01)
        await any_bus.publish("s.1", b"next")
        following = await some(deliveries, 1)
    assert received(following) == [(b"next", 1)]


@pytest.mark.parametrize("delay", [0, 0.05])
async def test_handing_back_counts_as_a_delivery_that_failed(any_bus, delay):
    """A last nak gives the message up and reports it, as if the holder had died."""
    await make(any_bus)
    await fill(any_bus, "s.1", "s.2")
    deliveries = any_bus.consume(await durable(any_bus, give_up_after=2))
    advised = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.S.d"
    following = any_bus.follow(DEAD.name, [advised], "all")
    async with aclosing(deliveries), aclosing(following):
        for one in await some(deliveries, 2):
            await (one.nak(delay) if one.stored.subject == "s.1" else one.ack())
        (again,) = await some(deliveries, 1)
        await again.nak(delay)
        async with asyncio.timeout(60):
            await anext(following)
        await until(any_bus, num_ack_pending=0)
        await any_bus.publish("s.1", b"next")
        assert received(await some(deliveries, 1)) == [(b"next", 1)]
    assert len(await any_bus.read(DEAD.name, advised)) == 1


async def test_two_who_take_are_given_in_turn(any_bus):
    """Neither starves, and neither holds more than its room; the rest goes to one that has some."""
    await make(any_bus)
    spec = await durable(any_bus, in_flight_max=2)
    one, other = any_bus.consume(spec), any_bus.consume(spec)
    async with aclosing(one), aclosing(other):
        waiting = [asyncio.create_task(some(each, 2)) for each in (one, other)]
        await until(any_bus, num_waiting=2)
        await fill(any_bus, *6 * ["s.1"])
        found = await asyncio.gather(*waiting)
        assert (await consumer(any_bus))["num_pending"] == 2
        for each in found[0]:
            await each.ack()
        rest = await some(one, 2)
    assert sorted([received(each) for each in found]) == [
        [(b"0", 1), (b"2", 1)],
        [(b"1", 1), (b"3", 1)],
    ]
    assert received(rest) == [(b"4", 1), (b"5", 1)]


async def test_what_was_not_taken_is_handed_back(any_bus):
    """A puller that stops hands back what had arrived: another gets it at once."""
    await make(any_bus)
    await fill(any_bus, *5 * ["s.1"])
    spec = await durable(any_bus)
    leaving, staying = any_bus.consume(spec), any_bus.consume(spec)
    async with aclosing(leaving):
        held = await some(leaving, 2)
    async with aclosing(staying):
        rest = await some(staying, 3)
    assert received(held) == [(b"0", 1), (b"1", 1)]
    assert received(rest) == [(b"2", 2), (b"3", 2), (b"4", 2)]


async def test_what_is_on_its_way_as_a_puller_stops_is_handed_back(cuttable_nats):
    """A message has left the server, and has not arrived.

    Another puller gets it at once all the same.
    """
    here, there = cuttable_nats.bus, cuttable_nats.onlooker
    await make(there)
    spec = await durable(there)
    leaving = asyncio.create_task(anext(here.consume(spec)))
    await until(there, num_waiting=1)
    await cuttable_nats.line.hold()
    await fill(there, *3 * ["s.1"])
    await until(there, num_ack_pending=3)
    leaving.cancel()
    await asyncio.sleep(0)
    cuttable_nats.line.pass_on()
    staying = there.consume(spec)
    async with aclosing(staying), asyncio.timeout(15):
        rest = await some(staying, 3)
    assert received(rest) == [(b"0", 2), (b"1", 2), (b"2", 2)]
    with suppress(asyncio.CancelledError):
        await leaving


async def test_a_durable_that_is_made_again_is_taken_from_again(any_bus):
    """The pullers wait until the durable is there, before its creation and after its removal."""
    await make(any_bus)
    await fill(any_bus, "s.1")
    spec = DurableSpec(stream="S", name="d", description="", filters=("s.>",), ack_wait_seconds=30)
    deliveries = any_bus.consume(spec)
    waiting = asyncio.create_task(some(deliveries, 1))
    await asyncio.sleep(0)
    await durable(any_bus)
    one = await waiting
    await one[0].ack()
    await any_bus.admin("CONSUMER.DELETE.S.d", {})
    await durable(any_bus)
    two = await some(deliveries, 1)
    await deliveries.aclose()
    assert received([*one, *two]) == [(b"0", 1), (b"0", 1)]


async def test_other_filters_count_for_what_comes_next(any_bus):
    """A message that was passed over stays passed over.

    A message that does not match any more is not given.
    """
    await make(any_bus)
    await fill(any_bus, "s.a", "s.b", "s.a", "s.b")
    spec = await durable(any_bus, "s.a", in_flight_max=1)
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries):
        one = await some(deliveries, 1)
        await durable(any_bus, "s.b", "s.c")
        await any_bus.publish("s.c", b"4")
        await any_bus.publish("s.a", b"5")
        await one[0].ack()
        two = await some(deliveries, 1)
        await two[0].ack()
        three = await some(deliveries, 1)
        await three[0].ack()
        four = await some(deliveries, 1)
        assert (await consumer(any_bus))["num_pending"] == 0
    assert received([*one, *two, *three, *four]) == [(b"0", 1), (b"1", 1), (b"3", 1), (b"4", 1)]


async def test_other_bounds_count_at_once(any_bus):
    """More may be owed now; and what is owed already is overdue sooner."""
    await make(any_bus)
    await fill(any_bus, "s.1", "s.1")
    deliveries = any_bus.consume(await durable(any_bus, ack_pending_max=1))
    async with aclosing(deliveries):
        one = await some(deliveries, 1)
        await durable(any_bus, ack_pending_max=5)
        two = await some(deliveries, 1)
        await two[0].ack()
        await durable(any_bus, ack_pending_max=5, ack_wait_seconds=0.2)
        three = await some(deliveries, 1)
    assert received([*one, *two, *three]) == [(b"0", 1), (b"1", 1), (b"0", 2)]


async def test_a_follower_waits_for_a_stream_that_is_not_there(any_bus):
    """A follower waits as a consumer does for its durable, so a late start ends nothing."""
    following = any_bus.follow("S", ["s.>"], "all")
    async with aclosing(following), asyncio.timeout(60):
        waiting = asyncio.create_task(anext(following))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await make(any_bus, duplicate_window=SECOND_NS)
        await any_bus.publish("s.1", b"1")
        assert (await waiting).data == b"1"


@pytest.mark.parametrize("start", ["all", "new", "last_per_subject"])
async def test_a_follower_sees_what_is_stored_under_sequences_that_were_lost(any_bus, start):
    """A stream that was removed and created again counts from one."""
    await make(any_bus, duplicate_window=SECOND_NS)
    following = any_bus.follow("S", ["s.>"], start, after=0 if start == "new" else None)
    async with aclosing(following), asyncio.timeout(60):
        for number in range(3):
            await any_bus.publish(f"s.{number}", b"before")
        assert [(await anext(following)).data for _ in range(3)] == [b"before"] * 3
        await any_bus.admin("STREAM.DELETE.S", {})
        await make(any_bus, duplicate_window=SECOND_NS)
        await any_bus.publish("s.1", b"after")
        assert (await anext(following)).data == b"after"


async def test_nothing_is_acknowledged_over_a_bus_that_is_closed(any_bus, another_bus):
    """A message that a process holds when it leaves is delivered again."""
    await make(any_bus)
    await fill(any_bus, "s.1", "s.1")
    spec = await durable(any_bus)
    leaving = await another_bus()
    held = await some(leaving.consume(spec), 2)
    await held[0].ack()
    await leaving.close()
    await held[1].ack()
    assert (await until(any_bus, num_ack_pending=1))["ack_floor"]["stream_seq"] == 1
