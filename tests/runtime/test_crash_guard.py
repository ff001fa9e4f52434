"""A message that ends every process that handles it is set aside; nothing else ever is."""

import asyncio
import os
import shlex
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.dead_letters import dead_codec
from schemas.lease_records import SuspectRecord
from schemas.messages import encode
from schemas.node_events import Lost
from schemas.stream_specs import BucketSpec, DurableSpec
from schemas.topology import DEAD, LEASES
from services.bus.port import Bus
from services.operator_text.safe_text import escape_line
from services.primitives.clock import SystemClock
from services.primitives.errors import Retry, StoreFull, Unavailable
from services.runtime.crash_guard import AT_ONCE, DEATHS_MAX, TURNS, CrashGuard, Turns
from services.runtime.process_metrics import Instruments
from tests.support.fork_server import ForkServer
from tests.support.inprocess import eventually

NODES = "navarch.v1.node.training.*.event.lost"
AT = datetime(2026, 1, 1, tzinfo=UTC)
DOUBT_SECONDS = 0.1
MESSAGES = 30
SPEC = DurableSpec(
    stream="EVENTS", name="crashing", description="a test's", filters=(NODES,), ack_wait_seconds=0.3
)


async def publish(bus, number: int) -> int:
    """Publish one event, of a node of its own."""
    event = Lost(id=f"lost-{number}", time=AT, pool="training", node=f"n{number}")
    return await bus.publish(subjects.node_event("training", event.node, "lost"), encode(event))


async def letters(bus, durable: str) -> list:
    """Return the dead letters of a durable."""
    found = await bus.read(DEAD.name, subjects.dead("EVENTS", durable))
    return [dead_codec.decode(each.data) for each in found]


async def test_a_message_that_ends_its_process_is_set_aside_and_all_others_are_handled(bus):
    """Five processes die over it, with 29 others in flight; the sixth sets it aside and stays."""
    creation = {"stream_name": SPEC.stream, "config": SPEC.config(1)}
    await bus.admin(f"CONSUMER.DURABLE.CREATE.{SPEC.stream}.{SPEC.name}", creation)
    for number in range(MESSAGES):
        await publish(bus, number)

    async def settled() -> bool:
        info = await bus.admin(f"CONSUMER.INFO.{SPEC.stream}.{SPEC.name}", {})
        return not info["num_pending"] and not info["num_ack_pending"]

    url, spec = bus._client.connected_url.geturl(), msgspec.json.encode(SPEC).decode()
    program, deaths = ("tests.runtime.crashing_consumer", url, spec), 0
    async with ForkServer() as fork_server, asyncio.timeout(60):
        while not await settled():
            process = await fork_server.start(program, os.environ)
            ended, settles = (
                asyncio.create_task(process.wait()),
                asyncio.create_task(eventually(settled)),
            )
            await asyncio.wait({ended, settles}, return_when=asyncio.FIRST_COMPLETED)
            settles.cancel()
            deaths += ended.done()
            process.kill()
            await process.wait()
    (letter,) = await letters(bus, SPEC.name)
    assert (letter.sequence, deaths) == (8, DEATHS_MAX + 1)
    assert letter.reason == f"set aside: {DEATHS_MAX + 1} processes died while they handled it"


def guard_of(bus, replica: str, instruments: Instruments) -> CrashGuard:
    """Return the guard of one process."""
    clock = SystemClock()
    failures = instruments.failures
    return CrashGuard(bus, clock, "test", replica, failures, doubt_seconds=DOUBT_SECONDS)


class LateAnswers:
    """A bus whose server takes its time for removals."""

    def __init__(self, bus: Bus) -> None:
        """Everything else passes through to `bus`."""
        self._bus = bus
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def delete(self, bucket: BucketSpec, key: str) -> None:
        """Remove an entry once the answer is let through."""
        self.asked.set()
        await self.answers.wait()
        await self._bus.delete(bucket, key)


class RefusedWrites:
    """A bus that refuses the first writes of dead letters, or of records of what is set aside."""

    def __init__(self, bus: Bus, refused: str, count: int) -> None:
        """Everything else passes through to `bus`."""
        self._bus = bus
        self._refused = refused
        self._left = count
        self.reported: list[int] = []
        """How much was reported as set aside, at each attempt to write a letter."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    def _write(self, name: str) -> None:
        if self._refused in name and self._left:
            self._left -= 1
            raise StoreFull("insufficient storage resources available (10047)")

    async def publish(self, subject: str, data: bytes, **more: Any) -> int:
        """Store a message."""
        if ".dead." in subject:
            self.reported.append(len(await self._bus.entries(LEASES, "*.set-aside.>")))
        self._write(subject)
        return await self._bus.publish(subject, data, **more)

    async def create(self, bucket: BucketSpec, key: str, value: bytes, **more: Any) -> int:
        """Write a record that does not exist."""
        self._write(key)
        return await self._bus.create(bucket, key, value, **more)


async def suspects(bus) -> list[tuple[str, ...]]:
    """The processes named beside each suspect."""
    found = await bus.entries(LEASES, "*.suspect.>")
    return [msgspec.json.decode(each.value, type=SuspectRecord).processes for each in found]


async def accuse(bus, durable: str, sequence: int, count: int) -> str:
    """Record that so many processes died over a message."""
    (stored,) = await bus.read("EVENTS", NODES, after=sequence - 1)
    record = SuspectRecord(
        stored=stored.time, processes=tuple(f"gone-{number}" for number in range(count))
    )
    key = f"test.suspect.{durable}.{sequence}"
    await bus.put(LEASES, key, encode(record))
    return key


async def test_what_is_set_aside_is_reported_until_it_is_replayed(
    any_bus, durable, handler, looping
):
    """The command of the report hands it in again; another process of the service reports it."""
    spec = await durable(NODES, ack_wait_seconds=30)
    sequence = await publish(any_bus, 1)
    await accuse(any_bus, spec.name, sequence, DEATHS_MAX)
    handler.failures = [Retry("as by a process that died", 0.5)]
    async with looping(any_bus, spec, handler):  # the first delivery
        await handler.wait_for(lambda: len(handler.received) == 1)
    guard = guard_of(any_bus, "two", handler.instruments)
    async with looping(any_bus, spec, handler, guard=guard):

        async def reported() -> tuple:
            return handler.instruments.failures.current

        (failure,) = await eventually(reported)
        assert len(handler.received) == 1
        assert (failure.failure, failure.about.startswith("message")) == ("message-set-aside", True)
        other = Instruments()
        await guard_of(any_bus, "three", other).look()
        assert other.failures.current == (failure,)
        replay = shlex.split(failure.remedy.partition("run `")[2].partition("`, and")[0])
        assert replay[:2] == ["nats", "pub"]
        await any_bus.publish(replay[2], replay[3].encode())
        await handler.wait_for(lambda: len(handler.done) == 1)

        async def over() -> bool:
            await guard.look()
            return not handler.instruments.failures.current

        await eventually(over)
    (letter,) = await letters(any_bus, spec.name)
    assert (letter.sequence, letter.deliveries) == (sequence, 2)


@pytest.mark.parametrize("refused", [".dead.", ".set-aside."])
async def test_what_is_set_aside_waits_for_its_letter_and_its_report(
    any_bus, durable, handler, looping, monkeypatch, refused
):
    """No process handles it meanwhile, and the report follows the letter that it names."""
    monkeypatch.setattr("services.runtime.consumer_loop.BACKOFF_MAX_SECONDS", 0.01)
    spec = await durable(NODES, ack_wait_seconds=30)
    sequence = await publish(any_bus, 1)
    await accuse(any_bus, spec.name, sequence, DEATHS_MAX)
    handler.failures = [Retry("as by a process that died", 0.5)]
    async with looping(any_bus, spec, handler):  # the first delivery
        await handler.wait_for(lambda: len(handler.received) == 1)
    bus = RefusedWrites(any_bus, refused, 2)
    guard = guard_of(bus, "two", handler.instruments)
    async with looping(bus, spec, handler, guard=guard):

        async def settled() -> bool:
            return handler.count(spec.name, "set-aside") > 0

        await eventually(settled)
    assert (len(handler.received), len(handler.instruments.failures.current)) == (1, 1)
    assert (bus.reported, handler.count(spec.name, "retried")) == ([0, 0, 0], 3)
    (letter,) = await letters(any_bus, spec.name)
    assert letter.sequence == sequence


async def test_what_is_made_up_for_is_reported_without_a_replay(any_bus, durable, handler, looping):
    """The consumer brings the rest about by itself, so the report is only to be dismissed."""
    spec = await durable(NODES, ack_wait_seconds=30)
    sequence = await publish(any_bus, 1)
    await accuse(any_bus, spec.name, sequence, DEATHS_MAX)
    handler.failures = [Retry("as by a process that died", 0.5)]
    async with looping(any_bus, spec, handler):
        await handler.wait_for(lambda: len(handler.received) == 1)
    guard, made_up = guard_of(any_bus, "two", handler.instruments), asyncio.Queue[str]()

    async def make_up(received) -> None:
        made_up.put_nowait(received.message.id)

    async with looping(any_bus, spec, handler, guard=guard, make_up=make_up):
        assert await asyncio.wait_for(made_up.get(), 10) == "lost-1"
    (failure,) = handler.instruments.failures.current
    assert "It need not be replayed" in failure.remedy
    assert (len(handler.received), made_up.qsize()) == (1, 0)


TEXTS = [
    "Xid: 145  Fatal   XC1",
    "a \u00a0 b\u2028c",
    "it's 'quoted'",
    '\\ and "',
    "\x7f\t\n",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
async def test_the_command_of_an_alert_replays_the_message(any_bus, durable, text):
    """Alerts show one line with single spaces, without what a terminal would interpret."""
    spec = await durable(NODES, ack_wait_seconds=30)
    sequence = await publish(any_bus, 1)
    (stored,) = await any_bus.read("EVENTS", NODES, after=sequence - 1)
    data = msgspec.json.encode({"message": text, "metrics": {"load": 1.5, "id": 2**60}})
    stored = msgspec.structs.replace(stored, data=data)
    instruments = Instruments()
    guard = guard_of(any_bus, "one", instruments)
    await guard.set_aside(spec, stored, 4, replayed=True)
    (failure,) = instruments.failures.current
    shown = escape_line(" ".join(failure.remedy.split()))
    replay = shlex.split(shown.partition("run `")[2].partition("`, and")[0])
    assert msgspec.json.decode(replay[3]) == msgspec.json.decode(data)
    guard.settled(msgspec.structs.replace(stored, data=replay[3].encode(), headers={}))

    async def over() -> bool:
        return not await any_bus.entries(LEASES, "*.set-aside.>")

    await eventually(over)


async def test_a_replay_ends_the_report_of_another_process(any_bus, durable):
    """The report ends also where this process has not looked since the other one made it."""
    spec = await durable(NODES, ack_wait_seconds=30)
    sequence = await publish(any_bus, 1)
    (stored,) = await any_bus.read("EVENTS", NODES, after=sequence - 1)
    await guard_of(any_bus, "one", Instruments()).set_aside(spec, stored, 4, replayed=True)
    replay = msgspec.structs.replace(stored, sequence=sequence + 1, headers={})
    guard_of(any_bus, "two", Instruments()).settled(replay)

    async def over() -> bool:
        return not await any_bus.entries(LEASES, "*.set-aside.>")

    await eventually(over)


@pytest.mark.parametrize("error", [Retry("not yet", 0.0), Unavailable("no leader")])
async def test_an_answered_delivery_is_no_death(any_bus, durable, handler, looping, error):
    """Two replicas that answer in turns, and stop in turns, never set a message aside."""
    spec = await durable(NODES, ack_wait_seconds=30)
    await publish(any_bus, 1)
    handler.failures = [error] * (DEATHS_MAX + 2)
    for number in range(DEATHS_MAX + 1):
        guard = guard_of(any_bus, f"replica-{number}", handler.instruments)
        async with looping(any_bus, spec, handler, guard=guard):
            await handler.wait_for(lambda seen=number: len(handler.received) > seen)
    handler.failures = []
    async with looping(any_bus, spec, handler):
        await handler.wait_for(lambda: len(handler.done) == 1)
    assert (await letters(any_bus, spec.name), await suspects(any_bus)) == ([], [])


async def test_a_process_that_answers_late_is_not_dead(any_bus, durable, handler, looping):
    """A message whose accusation is removed while another replica doubts is handled."""
    spec = await durable(NODES, ack_wait_seconds=30)
    sequence = await publish(any_bus, 1)
    key = await accuse(any_bus, spec.name, sequence, DEATHS_MAX)
    handler.failures = [Retry("as by a process that died", 0.5)]
    async with looping(any_bus, spec, handler):
        await handler.wait_for(lambda: len(handler.received) == 1)
    guard = guard_of(any_bus, "two", handler.instruments)
    async with looping(any_bus, spec, handler, guard=guard):
        await any_bus.delete(LEASES, key)
        await handler.wait_for(lambda: len(handler.done) == 1)
    assert await letters(any_bus, spec.name) == []


async def test_an_answered_suspect_is_no_longer_named_when_the_next_has_its_turn(durable, any_bus):
    """The next one may end the process at once, and its death would count for both."""
    spec = await durable(NODES, ack_wait_seconds=30)
    for number in (1, 2):
        await accuse(any_bus, spec.name, await publish(any_bus, number), DEATHS_MAX - 1)
    first, second = await any_bus.read("EVENTS", NODES)
    answering = LateAnswers(any_bus)
    guard = guard_of(answering, "one", Instruments())
    answered = await guard.begin(spec, first)
    waiting = asyncio.create_task(guard.begin(spec, second))
    guard.end(answered)
    await answering.asked.wait()
    for _ in range(5):  # enough for the second, were it not waiting
        await any_bus.entries(LEASES)
    assert not waiting.done()
    answering.answers.set()
    guard.end(await waiting)
    assert len(await suspects(any_bus)) == 1


async def test_turns_are_taken_in_order_and_never_beyond_their_number():
    """A suspect that needs all turns waits for the others, and those after it wait too."""
    turns, order = Turns(), []

    async def take(name: str, count: int) -> None:
        await turns.take(count)
        order.append(name)

    tasks = [asyncio.create_task(take(str(n), c)) for n, c in enumerate((1, TURNS, 1))]
    for _ in range(3):
        await asyncio.sleep(0)
    assert order == ["0"]
    turns.give(1)
    async with asyncio.timeout(5):
        await tasks[1]
        assert order == ["0", "1"]
        turns.give(TURNS)
        await asyncio.gather(*tasks)
    assert [TURNS // each for each in AT_ONCE[1:]] == [1, 8, TURNS]
