"""Any series of deliveries goes the same way in the in-memory server as in the real one.

Streams, durables and whatever may happen to them are drawn; both servers get the same calls at the
same moments, and asked the same questions. Waits are real, and so short that a stall of the machine
may fall between the two: a series counts as different when it is so every time.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.errors import NoRespondersError

from schemas import headers as h
from schemas.stream_specs import SECOND_NS
from services.bus.memory.jetstream import api_calls
from services.bus.memory.jetstream.consumer_state import Delivered
from services.bus.memory.jetstream.server_state import ConsumerPlace, ServerState
from services.bus.nats.pull_consumer import parse_stored
from services.bus.port import Bus
from services.bus.protocol.server_protocol import firing
from services.primitives.errors import BusError, Conflict, Refused, Unavailable

FETCH_SECONDS: Final = 0.04
"""How long a pull stays open: what was handed back at once comes within it."""
ACK_WAITS: Final = (0.1, 0.17, 30.0)
TRIES: Final = 4
LOOKS_MAX: Final = 10
STEADY_EXAMPLES: Final = 20

NAME = st.sampled_from(["d", "e"])
SUBJECT = st.sampled_from(["a", "b", "c.x"])
FILTERS = st.sampled_from([(">",), ("a",), ("a", "b"), ("c.*", "b")])
WORD = st.sampled_from(["ack", "ack", "nak", "term", "progress"])

STREAM = st.fixed_dictionaries(
    {
        "retention": st.sampled_from(["limits", "limits", "workqueue"]),
        "discard": st.sampled_from(["old", "new"]),
        "max_msgs_per_subject": st.sampled_from([-1, -1, 1, 2]),
        "max_bytes": st.sampled_from([-1, -1, 300]),
        "allow_msg_schedules": st.booleans(),
    }
)
DURABLE = st.fixed_dictionaries(
    {
        "filter_subjects": FILTERS,
        "ack_wait": st.sampled_from(ACK_WAITS),
        "max_deliver": st.sampled_from([-1, -1, 1, 2]),
        "max_ack_pending": st.sampled_from([1, 2, 1000]),
        "deliver_policy": st.sampled_from(["all", "all", "new", "last_per_subject"]),
    }
)
CALL = st.one_of(
    st.tuples(st.just("publish"), SUBJECT, st.sampled_from(["", "", "", "x", "y"])),
    st.tuples(st.just("publish"), SUBJECT, st.just("")),
    st.tuples(st.just("append"), SUBJECT, st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("schedule"), SUBJECT, st.sampled_from([-1.0, 0.05, 0.12])),
    st.tuples(st.just("fetch"), NAME, st.integers(1, 4)),
    st.tuples(st.just("fetch"), NAME, st.integers(1, 4)),
    st.tuples(st.just("settle"), st.integers(0, 5), WORD, st.sampled_from([0.0, 0.0, 0.1])),
    st.tuples(st.just("settle"), st.integers(0, 5), WORD, st.sampled_from([0.0, 0.0, 0.1])),
    st.tuples(st.just("wait"), st.sampled_from([0.07, 0.07, 0.3])),
    st.tuples(st.just("purge"), st.sampled_from([">", "a", "c.>"])),
    st.tuples(st.just("durable"), NAME, DURABLE),
    st.tuples(st.just("forget"), NAME),
    st.tuples(st.just("limit"), st.sampled_from([1, 2, -1])),
    st.tuples(st.just("look"), NAME),
    st.tuples(st.just("read"), SUBJECT),
)
SERIES = st.tuples(STREAM, DURABLE, st.lists(CALL, min_size=8, max_size=30))


class Real:
    """The real server, spoken to as plainly as it can be."""

    def __init__(self, bus: Bus, client: Client, name: str) -> None:
        self.bus = bus
        self.client = client
        self.name = name
        self.held: list[str] = []

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        return await self.bus.publish(subject, data, headers=headers)

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.bus.admin(call, body)

    async def fetch(self, consumer: str, count: int) -> list[tuple[int, int]]:
        """Pull for a moment; the server says when it is over."""
        over, found = asyncio.Event(), []

        async def arrived(message: Any) -> None:
            if message.headers and "Status" in message.headers:
                over.set()
                return
            stored, deliveries, _ = parse_stored(message)
            self.held.append(message.reply)
            found.append((stored.sequence, deliveries))
            if len(found) == count:
                over.set()

        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox, cb=arrived)
        asked = {"batch": count, "expires": int(FETCH_SECONDS * SECOND_NS)}
        await self.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self.name}.{consumer}",
            msgspec.json.encode(asked),
            reply=inbox,
        )
        async with asyncio.timeout(60):
            await over.wait()
        await subscription.unsubscribe()
        return found

    async def settle(self, held: int, word: str, delay: float) -> None:
        """Settle a delivery, and wait until the server has taken it in."""
        said = {
            "ack": b"+ACK",
            "nak": b'-NAK {"delay": %d}' % int(delay * SECOND_NS),
            "term": b"+TERM",
            "progress": b"+WPI",
        }[word]
        # It has no effect where the consumer is gone.
        with suppress(NoRespondersError):
            await self.client.request(self.held[held], said, timeout=5)

    async def read(self, filter_: str) -> list[tuple[int, bytes, Any]]:
        stored = await self.bus.read(self.name, filter_)
        return [(each.sequence, each.data, plain(each.headers)) for each in stored]


class Memory:
    """Holds the in-memory server's state, with the real time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = ServerState()
        self.held: list[tuple[str, int]] = []
        self._pulling: tuple[str, list[tuple[int, int]]] = ("", [])

    def tick(self) -> datetime:
        now = datetime.now(UTC)
        self._take_in([each for _, each in self.state.tick(now).delivered])
        return now

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        now = self.tick()
        return self.state.publish(subject, data, headers, now)[0]

    async def admin(self, call: str, body: dict[str, Any]) -> dict[str, Any]:
        now = self.tick()
        found = api_calls.call(self.state, call, body, now)
        self.state.settled(now)
        return found

    def begin(self, consumer: str, count: int) -> None:
        """A pull that stays open until `end`."""
        self._pulling = (consumer, [])
        effects = self.state.take(ConsumerPlace(self.name, consumer), 1, count, self.tick())
        self._take_in([each for _, each in effects.delivered])

    def end(self) -> list[tuple[int, int]]:
        """Return what the puller was given."""
        self.tick()
        consumer, found = self._pulling
        self.state.leave(ConsumerPlace(self.name, consumer), 1)
        return found

    def _take_in(self, delivered: list[Delivered]) -> None:
        consumer, found = self._pulling
        for each in delivered:
            self.held.append((consumer, each.stored.sequence))
            found.append((each.stored.sequence, each.deliveries))

    async def settle(self, held: int, word: Any, delay: float) -> None:
        consumer, sequence = self.held[held]
        place = ConsumerPlace(self.name, consumer)
        self.state.settle(place, sequence, word, delay, self.tick())

    async def read(self, filter_: str) -> list[tuple[int, bytes, Any]]:
        self.tick()
        stream = self.state.streams[self.name]
        stored = [stream.messages[each] for each in stream.sequences(filter_)]
        return [(each.sequence, each.data, plain(each.headers)) for each in stored]


def plain(headers: Any) -> Any:
    """Headers but for what is a moment or a number of this series."""
    return tuple(sorted(name for name in headers if name != h.SCHEDULE))


async def said(call: Any) -> Any:
    """Return what a call comes to: its answer, or the error's kind and code."""
    try:
        return await call
    except Conflict:
        return "conflict"
    except Unavailable:
        return "unavailable"
    except Refused as error:
        return "refused", error.code
    except BusError as error:
        return repr(error)


class Series:
    """One series on both servers; stops where they come to different ends."""

    def __init__(self, bus: Bus, client: Client, number: int) -> None:
        self.name = f"S{number}"
        self.tree = f"s{number}"
        self.real = Real(bus, client, self.name)
        self.memory = Memory(self.name)
        self._purged = False

    async def run(self, series: Any) -> Any:
        """Return the first call that differed, with both answers; None where none did."""
        stream, durable, calls = series
        if stream["allow_msg_schedules"]:
            # A timer that fires into a full stream makes the real server drop more than it need.
            stream = {**stream, "max_bytes": -1}
        if stream["discard"] == "new":
            stream = {**stream, "allow_msg_schedules": False}
        self.config = {
            "name": self.name,
            "subjects": [f"{self.tree}.>"],
            "allow_direct": True,
            "storage": "file",
            "allow_rollup_hdrs": True,
            **stream,
        }
        await self._both("STREAM.CREATE", dict(self.config))
        begun = [("durable", "d", durable), *calls, ("look", "d"), ("look", "e"), ("state",)]
        for number, call in enumerate(begun):
            real, memory = await self._do(number, *call)
            if real != memory:
                return number, call, real, memory
        await self.real.admin(f"STREAM.DELETE.{self.name}", {})
        return None

    async def _both(self, call: str, body: dict[str, Any], *more: str) -> tuple[Any, Any]:
        name = ".".join((call, self.name, *more))
        real, memory = [await said(each.admin(name, body)) for each in (self.real, self.memory)]
        return tuple("done" if isinstance(each, dict) else each for each in (real, memory))

    async def _do(self, number: int, kind: str, *more: Any) -> tuple[Any, Any]:
        doing = getattr(self, f"_{kind}")
        return await doing(number, *more)

    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> tuple[Any, Any]:
        place = f"{self.tree}.{subject}"
        real = await said(self.real.publish(place, data, headers))
        return real, await said(self.memory.publish(place, data, headers))

    async def _publish(self, number: int, subject: str, msg_id: str) -> tuple[Any, Any]:
        named = {h.MSG_ID: msg_id} if msg_id else {}
        return await self._store(subject, b"%d" % number * (number % 7), named)

    async def _append(self, number: int, subject: str, whole: bool, behind: int) -> Any:
        guarded = f"{self.tree}.>" if whole else f"{self.tree}.{subject}"
        last = self.memory.state.streams[self.name].last(guarded)
        expected = max((last.sequence if last else 0) - behind, 0)
        headers = {h.EXPECTED_LAST_SUBJECT_SEQ: str(expected)}
        if whole:
            headers[h.EXPECTED_LAST_SUBJECT_SEQ_SUBJECT] = guarded
        return await self._store(subject, b"%d" % number, headers)

    async def _schedule(self, number: int, subject: str, after: float) -> tuple[Any, Any]:
        at = datetime.now(UTC) + timedelta(seconds=after)
        headers = firing(at, f"{self.tree}.{subject}")
        return await self._store(f"timer.{number % 3}", b"%d" % number, headers)

    async def _fetch(self, _: int, name: str, count: int) -> tuple[Any, Any]:
        if name not in self.memory.state.consumers[self.name]:
            return None, None
        self.memory.begin(name, count)
        real = await self.real.fetch(name, count)
        return real, self.memory.end()

    async def _settle(self, _: int, back: int, word: str, delay: float) -> tuple[Any, Any]:
        held = len(self.memory.held) - 1 - back
        if held >= 0:
            await self.real.settle(held, word, delay)
            await self.memory.settle(held, word, delay)
        return None, None

    async def _wait(self, _: int, seconds: float) -> tuple[Any, Any]:
        await asyncio.sleep(seconds)
        self.memory.tick()
        return None, None

    async def _purge(self, _: int, filter_: str) -> tuple[Any, Any]:
        self._purged = True
        return await self._both("STREAM.PURGE", {"filter": f"{self.tree}.{filter_}"})

    async def _durable(self, _: int, name: str, options: dict[str, Any]) -> tuple[Any, Any]:
        wanted = {
            "durable_name": name,
            "name": name,
            "ack_policy": "explicit",
            **options,
            "filter_subjects": [f"{self.tree}.{each}" for each in options["filter_subjects"]],
            "ack_wait": int(options["ack_wait"] * SECOND_NS),
        }
        body = {"stream_name": self.name, "config": wanted}
        return await self._both("CONSUMER.DURABLE.CREATE", body, name)

    async def _forget(self, _: int, name: str) -> tuple[Any, Any]:
        return await self._both("CONSUMER.DELETE", {}, name)

    async def _limit(self, _: int, most: int) -> tuple[Any, Any]:
        if self.config["allow_msg_schedules"]:
            # The real server looks at its timers then, out of turn.
            return None, None
        self.config |= {"max_msgs_per_subject": most}
        return await self._both("STREAM.UPDATE", dict(self.config))

    async def _read(self, _: int, subject: str) -> tuple[Any, Any]:
        found = [await each.read(f"{self.tree}.{subject}") for each in (self.real, self.memory)]
        return found[0], found[1]

    async def _state(self, _: int) -> tuple[Any, Any]:
        found = []
        for each in (self.real, self.memory):
            state = (await each.admin(f"STREAM.INFO.{self.name}", {}))["state"]
            found.append([state[name] for name in ("messages", "bytes", "first_seq", "last_seq")])
        return found[0], found[1]

    async def _look(self, _: int, name: str) -> tuple[Any, Any]:
        """The consumer's account; the real server settles some of it in its own time."""
        for _ in range(LOOKS_MAX):
            call = f"CONSUMER.INFO.{self.name}.{name}"
            found = [await said(each.admin(call, {})) for each in (self.real, self.memory)]
            real, memory = (self._account(each) for each in found)
            if real == memory:
                break
            await asyncio.sleep(FETCH_SECONDS / 2)
        return real, memory

    def _account(self, info: Any) -> Any:
        """What matters of a consumer's account."""
        if not isinstance(info, dict):
            return info
        # The real server's count of what waits may stay too high after a purge.
        names = ["num_ack_pending"] if self._purged else ["num_ack_pending", "num_pending"]
        return [info[name] for name in names]


@pytest.fixture
async def client(server) -> AsyncIterator[Client]:
    """Yield a plain connection to the real server."""
    found = Client()
    await found.connect([server.url])
    yield found
    await found.close()


async def test_deliveries_go_as_the_real_servers_do(bus, client):
    """Both servers give the same messages to the same pullers, as often and in the same order.

    They agree on what is owed, refused and kept.
    """
    explored = settings().max_examples
    most = STEADY_EXAMPLES if explored <= 100 else explored
    drawn: list[Any] = []

    @settings(max_examples=most, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(SERIES)
    def draw(series: Any) -> None:
        drawn.append(series)

    await asyncio.get_running_loop().run_in_executor(None, draw)
    numbers = itertools.count()
    for series in drawn:
        for _ in range(TRIES):
            different = await Series(bus, client, next(numbers)).run(series)
            if different is None:
                break
        assert different is None, f"{different}\n{series}"
