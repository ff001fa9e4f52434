"""A broker that restarts loses nothing and repeats nothing that was settled."""

import asyncio
import contextlib
from datetime import UTC, datetime

from schemas import subjects
from schemas.messages import encode
from schemas.node_events import Lost
from schemas.topology import DURABLES, EVENTS, HEALTH_EVENTS, NODES
from services.bus.leases import Lease
from services.bus.nats.pull_consumer import RENEW_SECONDS, SILENCE_MAX_SECONDS
from services.primitives.clock import SystemClock
from services.primitives.errors import Unavailable

FAULT = subjects.node_event("training", "training-1", "uncordoned")


async def publish_through(bus, subject: str, data: bytes, msg_id: str) -> None:
    """Publish until it is stored; the id keeps a repetition from being stored twice."""
    async with asyncio.timeout(60):
        while True:
            try:
                await bus.publish(subject, data, msg_id=msg_id)
            except Unavailable:
                await asyncio.sleep(0.02)
            else:
                return


async def connected(bus, *, is_: bool) -> None:
    """Wait for the connection's state."""
    async with asyncio.timeout(60):
        while bus.connected is not is_:
            await asyncio.sleep(0.01)


async def test_a_consumer_outlives_the_broker(bus, server, handler, looping):
    """Handled before, during and after: each once, in order, without anybody's help."""
    lost = [
        Lost(id=f"l-{n}", time=datetime(2026, 1, 1, tzinfo=UTC), pool="training", node="training-1")
        for n in range(60)
    ]
    # The durable's filter decides what arrives, not the type.
    async with looping(bus, HEALTH_EVENTS, handler):
        for number, event in enumerate(lost):
            if number in (20, 40):
                await handler.wait_for(lambda number=number: len(handler.done) == number)
                await server.restart()
            await publish_through(bus, FAULT, encode(event), event.id)
        await handler.wait_for(lambda: len(handler.done) >= 60)
    assert handler.ids() == [event.id for event in lost]
    assert {each.deliveries for each in handler.done} == {1}


async def test_what_was_held_when_the_broker_died_is_handled_once(bus, server, handler, looping):
    """A message acknowledged while the broker is away is settled when it is back."""
    event = Lost(
        id="held", time=datetime(2026, 1, 1, tzinfo=UTC), pool="training", node="training-1"
    )
    handler.holds["held"] = asyncio.Event()
    async with looping(bus, HEALTH_EVENTS, handler):
        await bus.publish(FAULT, encode(event))
        await handler.wait_for(lambda: len(handler.received) == 1)
        await server.kill()
        await connected(bus, is_=False)
        handler.holds["held"].set()
        await handler.wait_for(lambda: len(handler.done) == 1)
        await server.start()
        await connected(bus, is_=True)
        async with asyncio.timeout(60):
            while (await durable(bus))["num_ack_pending"]:
                await asyncio.sleep(0.01)
    assert [each.deliveries for each in handler.received] == [1]


async def durable(bus):
    """The consumer's state, asked for until the broker answers."""
    while True:
        with contextlib.suppress(Unavailable):
            return await bus.admin(f"CONSUMER.INFO.{HEALTH_EVENTS.stream}.{HEALTH_EVENTS.name}", {})


async def test_a_watch_outlives_the_broker(bus, server):
    """Every revision once, in order, however often the connection goes."""
    seen: list[int] = []
    moved = asyncio.Condition()

    async def watch() -> None:
        async for entry in bus.watch(NODES):
            async with moved:
                seen.append(int(entry.value))
                moved.notify_all()

    watching = asyncio.create_task(watch())
    for number in range(30):
        if number in (10, 20):
            await server.restart()
        await publish_through(bus, f"$KV.{NODES.name}.n-{number}", b"%d" % number, f"n-{number}")
    async with asyncio.timeout(60), moved:
        await moved.wait_for(lambda: len(seen) >= 30)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert seen == list(range(30))


async def test_a_follower_misses_nothing_while_the_broker_is_away(bus, server):
    """A follower without a first message misses nothing either: its beginning was fixed at once."""
    before = await bus.publish(FAULT, b"before")
    following = asyncio.create_task(first(bus.follow(EVENTS.name, [FAULT], "new")))
    durables = sum(each.stream == EVENTS.name for each in DURABLES)
    async with asyncio.timeout(60):
        while (await bus.admin(f"CONSUMER.NAMES.{EVENTS.name}", {}))["total"] == durables:
            await asyncio.sleep(0)
    await server.restart()
    await publish_through(bus, FAULT, b"after", "after")
    async with asyncio.timeout(60):
        stored = await following
    assert (stored.data, stored.sequence) == (b"after", before + 1)


async def first(stream):
    """The first of what an endless stream yields."""
    async with contextlib.aclosing(stream):
        return await anext(stream)


async def test_calls_fail_at_once_while_the_broker_is_away(bus, server):
    """Nothing is buffered and sent much later, after the caller got an error."""
    await server.kill()
    await connected(bus, is_=False)
    for call in (
        bus.publish(FAULT, b"1"),
        bus.get(NODES, "a"),
        bus.read(EVENTS.name, FAULT),
        bus.request("x", b"", timeout_seconds=60),
    ):
        async with asyncio.timeout(4):  # less than any call waits for an answer
            try:
                await call
            except Unavailable:
                continue
        raise AssertionError("it should have failed")
    await server.start()
    await connected(bus, is_=True)
    await publish_through(bus, FAULT, b"2", "2")
    assert [each.data for each in await bus.read(EVENTS.name, FAULT)] == [b"2"]


async def test_a_lease_has_one_holder_and_passes_on(bus):
    """Released, it passes within a renewal; its holder dead, within its time to live. Never two."""
    clock = SystemClock()
    leases = {name: Lease(bus, clock, "sweep", name) for name in ("a", "b", "c")}
    keeping = {name: asyncio.create_task(lease.keep()) for name, lease in leases.items()}

    async def holder(but: str = "") -> str:
        async with asyncio.timeout(60):
            while True:
                held = [name for name, lease in leases.items() if lease.held]
                assert len(held) <= 1
                if held and held[0] != but:
                    return held[0]
                await asyncio.sleep(0.01)

    one = await holder()
    keeping[one].cancel()
    await leases[one].release()
    two = await holder(but=one)
    keeping[two].cancel()
    three = await holder(but=two)
    assert {one, two, three} == {"a", "b", "c"}
    keeping[three].cancel()


async def test_a_lease_is_not_believed_past_its_time(bus, server):
    """A holder that cannot reach the broker stops holding before anybody else can begin.

    A task that waits for either is woken, whether or not the broker says anything.
    """
    lease = Lease(bus, SystemClock(), "sweep", "a")
    keeping = asyncio.create_task(lease.keep())
    async with asyncio.timeout(60):
        await lease.acquired()
        assert lease.held
        await server.kill()
        await lease.lost()
        assert not lease.held
    await server.start()
    async with asyncio.timeout(60):
        await lease.acquired()
        assert lease.held
        losing = asyncio.create_task(lease.lost())
        keeping.cancel()
        await lease.release()
        await losing
    assert not lease.held


async def test_a_broker_that_was_away_for_long_is_asked_once(bus, server, handler, looping):
    """Requests made meanwhile would stay open beside it, and take messages that are lost."""
    event = Lost(
        id="after", time=datetime(2026, 1, 1, tzinfo=UTC), pool="training", node="training-1"
    )
    async with looping(bus, HEALTH_EVENTS, handler):
        await server.kill()
        await connected(bus, is_=False)
        await asyncio.sleep(SILENCE_MAX_SECONDS * 2 + 1)  # away: longer than silence is borne
        await server.start()
        await connected(bus, is_=True)
        await publish_through(bus, FAULT, encode(event), event.id)
        await handler.wait_for(lambda: len(handler.done) == 1)
        place = f"{HEALTH_EVENTS.stream}.{HEALTH_EVENTS.name}"
        info = await bus.admin(f"CONSUMER.INFO.{place}", {})
    assert 1 == info["num_waiting"]
    assert [1] == [each.deliveries for each in handler.done]


async def test_a_request_made_before_the_connection_is_reported_stays(
    bus, server, handler, looping
):
    """The client reports a connection a round trip after it is used; then no other is made."""
    async with looping(bus, HEALTH_EVENTS, handler):
        await server.restart()
        await connected(bus, is_=True)
        place = f"{HEALTH_EVENTS.stream}.{HEALTH_EVENTS.name}"
        async with asyncio.timeout(60):
            while (await bus.admin(f"CONSUMER.INFO.{place}", {}))["num_waiting"] != 1:
                await asyncio.sleep(0.01)
        before = set(bus._client._subs)
        await bus._on_reconnected()
        for _ in range(3):  # rounds, in which a request would have been made
            await bus.admin(f"CONSUMER.INFO.{place}", {})
            await asyncio.sleep(RENEW_SECONDS)
        assert before == set(bus._client._subs)


async def test_connections_are_counted(bus, server):
    """The store may hold less than was known of it before the last connection."""
    before = bus.connections
    await server.restart()
    await connected(bus, is_=True)
    assert bus.connections > before
