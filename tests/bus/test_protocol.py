"""Every server limits, ages out, fires timers, redelivers and gives up in the same way."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from schemas import headers as h
from schemas import subjects
from schemas.stream_specs import SECOND_NS
from schemas.topology import (
    DEAD,
    EVENTS,
    LEASES,
    NODES,
    POOL_REQUESTS,
    POOL_TIMERS,
    REQUESTS,
    SAGAS,
    TELEMETRY,
    TIMERS,
)
from services.primitives.errors import Conflict, Refused, Unavailable
from tests.bus.test_delivery import collect

FAULT = subjects.node_event("training", "training-1", "verdict")
OTHER = subjects.node_event("training", "training-2", "verdict")
REQUEST = subjects.pool_request("training", "scale")


async def small_stream(bus, **options: object) -> str:
    """A stream of the test's own, named `S`, on `s.>`."""
    config = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "storage": "file"}
    await bus.admin("STREAM.CREATE.S", config | options)
    return "S"


async def until_gone(bus, stream: str, filter_: str) -> None:
    """Wait until nothing is stored under a filter."""
    async with asyncio.timeout(60):
        while await bus.read(stream, filter_):
            await asyncio.sleep(0.02)


async def test_a_repeated_append_is_refused_by_its_guard(any_bus):
    """The guard is looked at before the id: a client that lost the answer reads what is stored."""
    tree, entry = (
        subjects.saga_tree("replace-1"),
        subjects.saga_entry("replace-1", "saga", "started"),
    )
    named = {h.MSG_ID: "replace-1.started@0"}
    await any_bus.append(entry, b"1", tree=tree, expected=0, headers=named)
    with pytest.raises(Conflict):
        await any_bus.append(entry, b"1", tree=tree, expected=0, headers=named)
    assert len(await any_bus.read(SAGAS.name, tree)) == 1


async def test_a_guard_counts_what_is_stored_and_not_what_was(any_bus):
    """A log that was removed begins again from nothing."""
    tree, entry = (
        subjects.saga_tree("replace-1"),
        subjects.saga_entry("replace-1", "saga", "started"),
    )
    await any_bus.append(entry, b"1", tree=tree, expected=0)
    await any_bus.purge(SAGAS.name, tree)
    second = await any_bus.append(entry, b"2", tree=tree, expected=0)
    assert [each.sequence for each in await any_bus.read(SAGAS.name, tree)] == [second]


async def test_a_message_id_is_forgotten_after_the_window(any_bus):
    """A repetition that comes late is a message of its own."""
    await small_stream(any_bus, duplicate_window=int(0.2 * SECOND_NS))
    first = await any_bus.publish("s.1", b"1", msg_id="a")
    assert await any_bus.publish("s.1", b"1", msg_id="a") == first
    async with asyncio.timeout(60):
        while await any_bus.publish("s.1", b"1", msg_id="a") == first:
            await asyncio.sleep(0.05)
    assert len(await any_bus.read("S", "s.1")) == 2


async def test_a_subject_keeps_its_newest_messages(any_bus):
    """A subject keeps as many as the stream says; those of other subjects are not counted."""
    one, other = subjects.telemetry("training", "n-1"), subjects.telemetry("training", "n-2")
    await any_bus.publish(other, b"other")
    for number in range(TELEMETRY.messages_per_subject_max + 5):
        await any_bus.publish(one, b"%d" % number)
    kept = await any_bus.read(TELEMETRY.name, one)
    assert [each.data for each in kept] == [b"%d" % number for number in range(5, 125)]
    assert len(await any_bus.read(TELEMETRY.name, other)) == 1


async def test_messages_age_out(any_bus):
    """A message goes after the stream's age, without any request."""
    await small_stream(any_bus, max_age=int(0.3 * SECOND_NS), duplicate_window=int(0.1 * SECOND_NS))
    await any_bus.publish("s.1", b"1")
    await until_gone(any_bus, "S", "s.>")


@pytest.mark.parametrize(("discard", "refused"), [("new", True), ("old", False)])
async def test_a_full_stream_refuses_or_forgets(any_bus, discard, refused):
    """A stream worth keeping refuses what is new; from others the oldest goes."""
    await small_stream(any_bus, max_bytes=4_000, discard=discard)
    for number in range(3):
        await any_bus.publish("s.1", b"%d" % number * 1_000)
    if refused:
        with pytest.raises(Unavailable, match="maximum bytes exceeded"):
            await any_bus.publish("s.1", b"x" * 1_000)
    else:
        await any_bus.publish("s.1", b"3" * 1_000)
    firsts = [each.data[:1] for each in await any_bus.read("S", "s.1")]
    assert firsts == ([b"0", b"1", b"2"] if refused else [b"1", b"2", b"3"])


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({h.TTL: "1s"}, "per-message TTL is disabled"),
        (
            {h.SCHEDULE: "@at 2030-01-01T00:00:00Z", h.SCHEDULE_TARGET: OTHER},
            "message schedules is disabled",
        ),
    ],
)
async def test_a_stream_takes_only_what_it_allows(any_bus, headers, reason):
    """Times to live and timers are options of a stream."""
    with pytest.raises(Refused, match=reason):
        await any_bus.publish(FAULT, b"", headers=headers)


async def test_a_work_queue_lets_go_of_what_is_done(any_bus):
    """Acknowledged or given up: gone; handed back: kept."""
    for number in range(3):
        await any_bus.publish(REQUEST, b"%d" % number)
    deliveries = any_bus.consume(POOL_REQUESTS)
    async with aclosing(deliveries), asyncio.timeout(60):
        one, two, three = [await anext(deliveries) for _ in range(3)]
        await one.ack()
        await two.term()
        await three.nak(0)
        again = await anext(deliveries)
        assert (again.stored.data, again.deliveries) == (b"2", 2)
        while len(left := await any_bus.read(REQUESTS.name, REQUEST)) > 1:
            await asyncio.sleep(0.01)
    assert [each.data for each in left] == [b"2"]


async def test_what_was_delivered_too_often_is_reported_and_left(any_bus, durable):
    """The server's word names stream, consumer, sequence and count; it is not delivered again."""
    spec = await durable(FAULT, ack_wait_seconds=0.2, deliveries_max=2)
    sequence = await any_bus.publish(FAULT, b"poison")
    following = any_bus.follow(DEAD.name, [subjects.MAX_DELIVERIES], "all")
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries), aclosing(following), asyncio.timeout(60):
        counts = [(await anext(deliveries)).deliveries for _ in range(2)]
        advisory = await anext(following)
        await any_bus.publish(FAULT, b"good")
        good = await anext(deliveries)
        await good.ack()
    about = msgspec.json.decode(advisory.data)
    assert advisory.subject.endswith(".MAX_DELIVERIES.EVENTS.test-durable")
    assert (counts, good.stored.data) == ([1, 2], b"good")
    assert (about["stream"], about["consumer"]) == ("EVENTS", "test-durable")
    assert (about["stream_seq"], about["deliveries"]) == (sequence, 2)


async def test_a_message_handed_back_comes_after_its_delay(any_bus, durable):
    """The other messages come meanwhile."""
    spec = await durable(FAULT, ack_wait_seconds=30)
    await any_bus.publish(FAULT, b"1")
    deliveries = any_bus.consume(spec)
    async with aclosing(deliveries), asyncio.timeout(60):
        first = await anext(deliveries)
        handed_back = datetime.now(UTC)
        await first.nak(0.4)
        await any_bus.publish(FAULT, b"2")
        second, again = await anext(deliveries), await anext(deliveries)
        await second.ack()
        await again.ack()
    assert (second.stored.data, again.stored.data, again.deliveries) == (b"2", b"1", 2)
    assert datetime.now(UTC) - handed_back > timedelta(seconds=0.35)


async def test_what_a_dead_process_held_comes_to_another(any_bus, durable):
    """A durable's position is the server's; what was not acknowledged is delivered again."""
    spec = await durable(FAULT, ack_wait_seconds=0.3)
    for number in range(3):
        await any_bus.publish(FAULT, b"%d" % number)
    dying = any_bus.consume(spec)
    async with asyncio.timeout(60):
        async with aclosing(dying):
            held = [await anext(dying) for _ in range(2)]
            await held[0].ack()
        successor = any_bus.consume(spec)
        async with aclosing(successor):
            got = [await anext(successor) for _ in range(2)]
            for each in got:
                await each.ack()
    assert sorted(each.stored.data for each in got) == [b"1", b"2"]


async def test_every_durable_gets_everything(any_bus, durable):
    """Pullers of one durable share its messages; those of two do not."""
    one = await durable(FAULT, name="one")
    two = await durable(FAULT, name="two")
    await any_bus.publish(FAULT, b"1")
    for spec in (one, two):
        (delivery,) = await collect(any_bus.consume(spec), 1)
        await delivery.ack()
        assert delivery.stored.data == b"1"


async def test_what_was_purged_is_not_delivered(any_bus, durable):
    """The consumer does not wait for a purged message, either."""
    spec = await durable(FAULT)
    await any_bus.publish(FAULT, b"purged")
    await any_bus.purge(EVENTS.name, FAULT)
    await any_bus.publish(FAULT, b"kept")
    (delivery,) = await collect(any_bus.consume(spec), 1)
    await delivery.ack()
    assert delivery.stored.data == b"kept"
    async with asyncio.timeout(60):
        while True:
            info = await any_bus.admin(f"CONSUMER.INFO.EVENTS.{spec.name}", {})
            if info["num_ack_pending"] == 0:
                break
            await asyncio.sleep(0.01)
    assert (info["num_pending"], info["ack_floor"]["stream_seq"]) == (0, 2)


async def test_a_timer_that_is_late_fires_at_once_and_leaves_nothing(any_bus):
    """A moment in the past is now; the timer itself is gone with its firing."""
    past = datetime.now(UTC) - timedelta(hours=1)
    await any_bus.schedule("pool-manager", "k", past, b"due")
    (delivery,) = await collect(any_bus.consume(POOL_TIMERS), 1)
    await delivery.ack()
    assert delivery.stored.data == b"due"
    assert h.SCHEDULE not in delivery.stored.headers
    await until_gone(any_bus, TIMERS.name, subjects.TIMERS)


async def test_following_begins_at_a_moment(any_bus):
    """A follower gets what was stored at the moment or later; what was before is left out."""
    await any_bus.publish(FAULT, b"before")
    (before,) = await any_bus.read(EVENTS.name, FAULT)
    while datetime.now(UTC) <= before.time + timedelta(milliseconds=2):
        await asyncio.sleep(0.001)
    since = datetime.now(UTC)
    await any_bus.publish(FAULT, b"after")
    (found,) = await collect(any_bus.follow(EVENTS.name, [FAULT], "new", after=since), 1)
    assert found.data == b"after"


async def test_following_the_last_of_each_subject(any_bus):
    """The last messages come in the order of storing, then whatever is published."""
    for data in (b"1", b"2"):
        await any_bus.publish(FAULT, data)
    await any_bus.publish(OTHER, b"3")
    await any_bus.publish(FAULT, b"4")
    following = any_bus.follow(EVENTS.name, [subjects.NODE_EVENTS], "last_per_subject")
    async with aclosing(following), asyncio.timeout(60):
        found = [await anext(following) for _ in range(2)]
        await any_bus.publish(OTHER, b"5")
        found.append(await anext(following))
    assert [each.data for each in found] == [b"3", b"4", b"5"]


async def test_an_expired_key_is_created_again_and_its_marker_outlasts_nothing(any_bus):
    """A watcher that begins after the expiry sees the marker, and then the new value."""
    await any_bus.put(LEASES, "training.n", b"1", ttl_seconds=1)
    async with asyncio.timeout(60):
        while await any_bus.get(LEASES, "training.n") is not None:
            await asyncio.sleep(0.02)
    (marker,) = await collect(any_bus.watch(LEASES), 1)
    assert (marker.removed, marker.value) == ("MaxAge", b"")
    revision = await any_bus.create(LEASES, "training.n", b"2")
    assert revision > marker.revision
    assert [each.value for each in await any_bus.entries(LEASES)] == [b"2"]


async def test_a_removed_key_is_shown_to_later_watchers(any_bus):
    """The removal of a key takes its value's place."""
    await any_bus.put(NODES, "a", b"1")
    await any_bus.delete(NODES, "a")
    (entry,) = await collect(any_bus.watch(NODES), 1)
    assert (entry.key, entry.value, entry.removed) == ("a", b"", "DEL")


@pytest.mark.parametrize(
    ("call", "code"), [("STREAM.INFO.NONE", 10059), ("CONSUMER.INFO.EVENTS.none", 10014)]
)
async def test_what_is_not_there_is_refused_with_its_code(any_bus, call, code):
    """The codes are what set-up goes by."""
    with pytest.raises(Refused) as refused:
        await any_bus.admin(call, {})
    assert refused.value.code == code


async def test_an_answer_that_does_not_come_is_waited_for_so_long(any_bus):
    """The asker's own bound ends the wait."""

    async def silent(*_: object) -> bytes:
        await asyncio.Event().wait()
        return b""

    await any_bus.answer("test.silent", silent)
    with pytest.raises(Unavailable, match=r"no answer in 0\.2 s"):
        await any_bus.request("test.silent", b"", timeout_seconds=0.2)
