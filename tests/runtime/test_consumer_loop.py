"""The one consumer loop: order, retries, dead letters, and what stopping leaves behind."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from schemas import subjects
from schemas.dead_letters import DeadLetter, dead_codec
from schemas.messages import encode
from schemas.node_events import Lost
from schemas.topology import DEAD
from services.primitives.errors import (
    Refused,
    Reject,
    Retry,
    TooLarge,
    Unavailable,
    UnreadableRecord,
)
from services.runtime.sender_quota import EQUAL_MAX, LETTERS_MAX, SenderLimit
from tests.support.busyness import watched
from tests.support.settling import settled

NODES = "navarch.v1.node.training.*.event.lost"
DURABLE = "test-durable"


def subject(node: str) -> str:
    return subjects.node_event("training", node, "lost")


def lost(number: int, node: str) -> bytes:
    event = Lost(
        id=f"lost-{number}", time=datetime(2026, 1, 1, tzinfo=UTC), pool="training", node=node
    )
    return encode(event)


async def letters(bus) -> list[DeadLetter]:
    """Every dead letter there is."""
    stored = await bus.read(DEAD.name, subjects.dead("EVENTS", DURABLE))
    found = [dead_codec.decode(each.data) for each in stored]
    assert all(isinstance(each, DeadLetter) for each in found)
    return found


async def test_messages_of_one_key_are_handled_in_order_and_others_beside_them(
    any_bus, durable, handler, looping
):
    """A node that is slow to handle holds up its own messages and no others."""
    spec = await durable(NODES, ack_wait_seconds=30)
    handler.holds["lost-0"] = asyncio.Event()
    async with looping(any_bus, spec, handler):
        for number in range(6):
            node = "slow" if number % 2 == 0 else "quick"
            await any_bus.publish(subject(node), lost(number, node))
        await handler.wait_for(lambda: len(handler.done) == 3)
        assert handler.ids() == ["lost-1", "lost-3", "lost-5"]
        assert [each.message.id for each in handler.received].count("lost-2") == 0
        handler.holds["lost-0"].set()
        await handler.wait_for(lambda: len(handler.done) == 6)
    assert handler.ids()[3:] == ["lost-0", "lost-2", "lost-4"]
    assert handler.count(DURABLE, "done") == 6


@pytest.mark.parametrize(
    "failure",
    [Retry("not yet"), Unavailable("no leader"), ValueError("a defect of ours")],
    ids=["retry", "bus", "defect"],
)
async def test_what_fails_is_tried_again_with_growing_waits(
    any_bus, durable, handler, looping, failure
):
    """A message whose handler raises comes back, later each time, until it is handled."""
    spec = await durable(NODES, ack_wait_seconds=30)
    handler.failures = [failure] * 3
    loop = asyncio.get_running_loop()
    times = []
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), lost(1, "n"))
        for count in range(1, 5):
            await handler.wait_for(lambda count=count: len(handler.received) >= count)
            times.append(loop.time())
        await handler.wait_for(lambda: bool(handler.done))
        await settled(any_bus, "EVENTS", DURABLE)
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert [each.deliveries for each in handler.received] == [1, 2, 3, 4]
    assert all(wait > least for wait, least in zip(waits, (0.04, 0.08, 0.16), strict=True))
    assert (handler.count(DURABLE, "retried"), handler.count(DURABLE, "done")) == (3, 1)
    assert await letters(any_bus) == []


async def test_a_retry_may_name_its_own_wait(any_bus, durable, handler, looping):
    """A handler that knows when it pays to try again says so."""
    spec = await durable(NODES, ack_wait_seconds=30)
    handler.failures = [Retry("busy", after_seconds=0.5)]
    loop = asyncio.get_running_loop()
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), lost(1, "n"))
        await handler.wait_for(lambda: len(handler.received) == 1)
        failed = loop.time()
        await handler.wait_for(lambda: len(handler.done) == 1)
        assert 0.4 < loop.time() - failed < spec.ack_wait_seconds / 2


async def test_what_always_fails_becomes_a_dead_letter(any_bus, durable, handler, looping):
    """A message that has used up its deliveries is set aside with the reason and its bytes."""
    spec = await durable(NODES, ack_wait_seconds=30, failures_max=3)
    handler.failures = [ValueError(f"try {number}") for number in range(3)]
    async with looping(any_bus, spec, handler):
        sequence = await any_bus.publish(subject("n"), lost(1, "n"))
        await settled(any_bus, "EVENTS", DURABLE)
        await any_bus.publish(subject("n"), lost(2, "n"))
        await handler.wait_for(lambda: len(handler.done) == 1)
    (letter,) = await letters(any_bus)
    assert (letter.subject, letter.sequence, letter.deliveries) == (subject("n"), sequence, 3)
    assert letter.reason == "given up after 3 failures: try 2"
    assert letter.data == lost(1, "n").decode()
    assert handler.ids() == ["lost-2"]


async def test_what_a_dead_letter_would_have_done_is_made_up_for(
    any_bus, durable, handler, looping
):
    """Once, after the letter is stored; a bus that is away delays it."""
    spec = await durable(NODES, ack_wait_seconds=30, failures_max=2)
    handler.failures = [ValueError("a defect of ours")] * 2
    away, made_up = [Unavailable("no leader"), Retry("not yet")], asyncio.Queue()

    async def make_up(received) -> None:
        if away:
            raise away.pop()
        made_up.put_nowait((received.message.id, len(await letters(any_bus))))

    async with looping(any_bus, spec, handler, make_up=make_up):
        await any_bus.publish(subject("n"), lost(1, "n"))
        assert await asyncio.wait_for(made_up.get(), 10) == ("lost-1", 1)
        await any_bus.publish(subject("n"), lost(2, "n"))
        await handler.wait_for(lambda: handler.ids() == ["lost-2"])
    assert made_up.empty()


@pytest.mark.parametrize(
    "failure",
    [
        Unavailable("insufficient storage resources available (10047)"),
        Refused("stream not found", 10059),
        Retry("not yet"),
        UnreadableRecord("HEALTH", "training.n", "truncated"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_bus_that_refuses_gives_no_message_up(
    any_bus, durable, handler, looping, failure, monkeypatch
):
    """Only its content, or a handler that raises, ends a message; refusals of the bus never do."""
    monkeypatch.setattr("services.runtime.consumer_loop.BACKOFF_MAX_SECONDS", 0.01)
    monkeypatch.setattr("services.primitives.errors.UNREADABLE_SECONDS", 0.01)
    if isinstance(failure, UnreadableRecord):
        failure.after_seconds = 0.01
    spec = await durable(NODES, ack_wait_seconds=30, failures_max=2)
    handler.failures = [failure] * 40
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), lost(1, "n"))
        await handler.wait_for(lambda: len(handler.done) == 1)
        await settled(any_bus, "EVENTS", DURABLE)
    assert (handler.count(DURABLE, "retried"), handler.count(DURABLE, "dead")) == (40, 0)
    assert await letters(any_bus) == []
    assert handler.instruments.failures.current == ()


async def test_a_message_that_is_too_large_to_store_is_dead(any_bus, durable, handler, looping):
    """No repetition makes it smaller."""
    spec = await durable(NODES, ack_wait_seconds=30, failures_max=2)
    handler.failures = [TooLarge("1048577 bytes are more than the server takes")] * 2
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), lost(1, "n"))
        await settled(any_bus, "EVENTS", DURABLE)
    assert handler.count(DURABLE, "dead") == 1


async def test_a_flood_of_garbage_leaves_few_letters(any_bus, durable, handler, looping):
    """One sender's, beyond its quota, are counted in one letter; another sender has its own."""
    spec = await durable(NODES)
    async with looping(any_bus, spec, handler):
        for number in range(100):
            await any_bus.publish(subject("flooding"), b"garbage %d" % number)
        await any_bus.publish(subject("other"), b"garbage")
        await settled(any_bus, "EVENTS", DURABLE)
    found = await letters(any_bus)
    assert sum(each.messages for each in found) == 101
    flooding = [each for each in found if each.subject == subject("flooding")]
    assert len(flooding) == LETTERS_MAX + 1
    assert flooding[-1].messages == 100 - LETTERS_MAX
    assert flooding[-1].reason.startswith(f"80 messages of {subject('flooding')} are like this")
    assert handler.count(DURABLE, "invalid") == 101


async def test_a_flood_of_one_sender_does_not_delay_others(
    any_bus, durable, handler, looping, monkeypatch
):
    """Some of its messages are handled, the rest is counted and reported as one failure."""
    monkeypatch.setattr("services.runtime.consumer_loop.SUMMARY_SECONDS", 0.05)
    spec = await durable(NODES, ack_wait_seconds=30)
    for number in range(500):
        await any_bus.publish(subject("flooding"), lost(number, "flooding"))
    await any_bus.publish(subject("other"), lost(1_000, "other"))
    limit = SenderLimit(signature=type, rank=lambda _: 0)
    failures = handler.instruments.failures
    async with looping(any_bus, spec, handler, limit=limit):
        await handler.wait_for(lambda: "lost-1000" in handler.ids())
        await settled(any_bus, "EVENTS", DURABLE)
        while not failures.current:
            await asyncio.sleep(0.01)
    assert len(handler.done) == EQUAL_MAX + 1
    assert handler.count(DURABLE, "withheld") == 500 - EQUAL_MAX
    (failure,) = failures.current
    assert (failure.failure, failure.about) == ("message-flood", DURABLE)
    assert f"from {subject('flooding')};" in failure.reason


async def test_what_a_handler_rejects_is_dead_at_once(any_bus, durable, handler, looping):
    """Trying again would be of no use."""
    spec = await durable(NODES)
    handler.failures = [Reject("no such pool")]
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), lost(1, "n"))
        await settled(any_bus, "EVENTS", DURABLE)
    (letter,) = await letters(any_bus)
    assert (letter.reason, letter.deliveries) == ("no such pool", 1)
    assert handler.count(DURABLE, "dead") == 1


async def test_an_unknown_type_is_acknowledged_and_counted(any_bus, durable, handler, looping):
    """A message of a newer release's type concerns no handler of this one."""
    spec = await durable(NODES)
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), b'{"type": "io.navarch.agent.event.v9.new", "x": 1}')
        await settled(any_bus, "EVENTS", DURABLE)
    assert (handler.received, await letters(any_bus)) == ([], [])
    assert handler.count(DURABLE, "unknown") == 1


GARBAGE = {
    "empty": (b"", "no type: not a message"),
    "no JSON": (b"\xff\xfe\x00", "no type: not a message"),
    "truncated": (lost(1, "n")[:-5], "no type: not a message"),
    "no object": (b"[1, 2]", "no type: not a message"),
    "no type": (b'{"id": "x"}', "no type: not a message"),
    "type is no text": (b'{"type": 5}', "no type: not a message"),
    "field missing": (
        b'{"type": "io.navarch.health_monitor.event.v1.lost", "id": "x"}',
        "lost: Object missing required field",
    ),
    "wrong type": (lost(1, "n").replace(b'"n"', b"7"), "Expected `str`, got `int`"),
    "no time": (lost(1, "n").replace(b"2026-01-01T", b"noon "), "Invalid RFC3339"),
    "deep": (b'{"type":' * 50_000, "no type: not a message"),
    "a megabyte": (b"x" * 1_000_000, "no type: not a message"),
}


@pytest.mark.parametrize(("data", "reason"), GARBAGE.values(), ids=GARBAGE.keys())
async def test_garbage_is_dead_lettered_and_the_loop_lives_on(
    any_bus, durable, handler, looping, data, reason
):
    """The letter has the reason and, up to a bound, the bytes; what comes after it is handled."""
    spec = await durable(NODES)
    async with looping(any_bus, spec, handler):
        await any_bus.publish(subject("n"), data)
        await any_bus.publish(subject("n"), lost(2, "n"))
        await handler.wait_for(lambda: len(handler.done) == 1)
        await settled(any_bus, "EVENTS", DURABLE)
    (letter,) = await letters(any_bus)
    assert reason in letter.reason
    assert letter.bytes == len(data)
    assert letter.data == data[:65_536].decode("utf-8", "replace")
    assert handler.count(DURABLE, "invalid") == 1


async def test_a_slow_handler_keeps_its_message(any_bus, durable, handler, looping):
    """Handling may take longer than the acknowledgement wait, and the wait of those behind it."""
    spec = await durable(NODES, ack_wait_seconds=0.8)
    handler.holds["lost-0"] = asyncio.Event()
    async with watched() as still, looping(any_bus, spec, handler):
        for number in range(3):
            await any_bus.publish(subject("n"), lost(number, "n"))
        await handler.wait_for(lambda: len(handler.received) == 1)
        until = asyncio.get_running_loop().time() + 1.3
        again = 0
        while asyncio.get_running_loop().time() < until:
            info = await any_bus.admin(f"CONSUMER.INFO.EVENTS.{DURABLE}", {})
            again = max(again, info["num_redelivered"])
            await asyncio.sleep(0.05)  # no event when a message does not come again
        handler.holds["lost-0"].set()
        await handler.wait_for(lambda: len(handler.done) >= 3)
    # A stalled machine cannot report progress.
    if still() < spec.ack_wait_seconds / 4:
        assert (again, [each.deliveries for each in handler.done]) == (0, [1, 1, 1])


async def test_stopping_finishes_what_is_held_and_hands_back_the_rest(
    any_bus, durable, handler, looping
):
    """The next process has what was left at once, without the acknowledgement wait."""
    spec = await durable(NODES, ack_wait_seconds=30)
    handler.holds |= {"lost-0": asyncio.Event(), "lost-1": asyncio.Event()}
    async with looping(any_bus, spec, handler, finish_seconds=1.0):
        for number, node in enumerate(("finishes", "hangs")):
            await any_bus.publish(subject(node), lost(number, node))
        await handler.wait_for(lambda: len(handler.received) == 2)
        asyncio.get_running_loop().call_later(0.05, handler.holds["lost-0"].set)
    assert handler.ids() == ["lost-0"]
    del handler.holds["lost-1"]
    async with looping(any_bus, spec, handler), asyncio.timeout(15):
        await handler.wait_for(lambda: len(handler.done) == 2)
    assert handler.ids() == ["lost-0", "lost-1"]
    assert handler.done[1].deliveries == 2


async def test_two_replicas_share_the_work(any_bus, durable, handler, looping):
    """Each message reaches one of them, once."""
    spec = await durable(NODES, in_flight_max=8)
    async with looping(any_bus, spec, handler), looping(any_bus, spec, handler):
        for number in range(100):
            await any_bus.publish(subject(f"n-{number % 10}"), lost(number, "n"))
        await handler.wait_for(lambda: len(handler.done) >= 100)
        await settled(any_bus, "EVENTS", DURABLE)
    assert sorted(handler.ids()) == sorted(f"lost-{number}" for number in range(100))
