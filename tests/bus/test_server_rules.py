"""Every server takes, refuses and removes the same messages, to the byte and the code."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime, timedelta

import pytest

from schemas import headers as h
from schemas.stream_specs import SECOND_NS
from schemas.topology import NODES
from services.bus.protocol.server_protocol import firing
from services.primitives.errors import BusError, Conflict, Refused, TooLarge, Unavailable
from tests.bus.conftest import collect
from tests.support.busyness import watched

ROLLUP = "Nats-Rollup"
GUARD = h.EXPECTED_LAST_SUBJECT_SEQ
LATER = "@at 2040-01-01T00:00:00Z"


def config(name: str = "S", **options: object) -> dict:
    return {
        "name": name,
        "subjects": [f"{name.lower()}.>"],
        "allow_direct": True,
        "storage": "file",
    } | options


async def make(bus, name: str = "S", **options: object) -> None:
    """Create a stream of the test's own."""
    await bus.admin(f"STREAM.CREATE.{name}", config(name, **options))


async def state(bus, name: str = "S") -> tuple[int, int, int, int]:
    """Return how many messages it holds, of how many bytes, from which sequence to which."""
    found = (await bus.admin(f"STREAM.INFO.{name}", {}))["state"]
    return found["messages"], found["bytes"], found["first_seq"], found["last_seq"]


async def said(call) -> object:
    """Return what a call comes to: its answer, or the error's kind and code."""
    try:
        return await call
    except BusError as error:
        kind = Unavailable if isinstance(error, Unavailable) else type(error)
        return kind, getattr(error, "code", 0)


async def test_bytes_are_counted_as_the_file_store_counts(any_bus):
    """Subject, headers as they go over the wire, data, and what a record costs by itself."""
    await make(any_bus)
    found = []
    for headers in ({}, {"a": "b"}, {"a": "b", "cc": "dd"}):
        await any_bus.publish("s.1", b"1", headers=headers)
        found.append((await state(any_bus))[1])
    assert [34, 34 + 56, 34 + 56 + 64] == found


@pytest.mark.parametrize(
    ("data", "headers", "taken"),
    [
        (100, {}, True),
        (101, {}, False),
        (82, {"a": "b"}, True),
        (83, {"a": "b"}, False),
        (76, {"a": "b", "c": "d"}, True),
        (77, {"a": "b", "c": "d"}, False),
    ],
)
async def test_headers_count_where_a_message_may_be_so_large(any_bus, data, headers, taken):
    """The limit is exact to the byte; beyond it, a message is refused before its guard is read."""
    await make(any_bus, max_msg_size=100)
    assert (1 if taken else (Refused, 10054)) == await said(
        any_bus.publish("s.1", b"x" * data, headers=headers)
    )


async def test_what_is_too_large_for_the_wire_does_not_end_the_connection(any_bus):
    """Headers count there, too: the server closes the connection of a client that sends more."""
    await make(any_bus, max_msg_size=-1)
    assert await any_bus.publish("s.1", b"x" * 1_048_576) == 1
    for size, headers in ((1_048_577, {}), (1_048_576, {"a": "b"})):
        assert await said(any_bus.publish("s.1", b"x" * size, headers=headers)) == (TooLarge, 0)
    assert await any_bus.publish("s.1", b"x" * (1_048_576 - 18), headers={"a": "b"}) == 2


@pytest.mark.parametrize("key", ["x" * 20_000, "two\r\nlines", "a b", "\x00"], ids=ascii)
async def test_a_subject_that_is_none_does_not_end_the_connection(any_bus, key):
    """The server would close it at once, and again after each reconnection."""
    await make(any_bus)
    for call in (any_bus.publish(f"s.{key}", b""), any_bus.get(NODES, key), any_bus.last("S", key)):
        with pytest.raises(TooLarge):
            await call
    assert await any_bus.publish("s.1", b"") == 1


async def test_a_full_stream_takes_what_replaces_something_as_large(any_bus):
    """A full bucket's records can still be written, as long as they do not grow."""
    await make(any_bus, max_bytes=1_000, discard="new", max_msgs_per_subject=1)
    sizes = [("1", 300), ("2", 300), ("3", 300), ("4", 300), ("1", 300), ("1", 299), ("1", 300)]
    found = [await said(any_bus.publish(f"s.{key}", b"x" * size)) for key, size in sizes]
    full = (Unavailable, 0)
    assert found == [1, 2, 3, full, 4, 5, full]
    assert await state(any_bus) == (3, 998, 2, 5)


SCHEDULED = {h.SCHEDULE: LATER, h.SCHEDULE_TARGET: "s.2"}
HEADERS = {
    "ttl no duration": ({h.TTL: "abc"}, 10165),
    "ttl zero": ({h.TTL: "0s"}, 10165),
    "ttl under a second": ({h.TTL: "999ms"}, 10165),
    "ttl a second and a half": ({h.TTL: "1500ms"}, 0),
    "ttl plain seconds": ({h.TTL: "5"}, 0),
    "ttl minutes": ({h.TTL: "1m30s"}, 0),
    "ttl days": ({h.TTL: "1d"}, 10165),
    "ttl never": ({h.TTL: "never"}, 0),
    "timer": (SCHEDULED, 0),
    "timer at no moment": (SCHEDULED | {h.SCHEDULE: "@at noon"}, 10189),
    "timer without target": ({h.SCHEDULE: LATER}, 10190),
    "timer at itself": (SCHEDULED | {h.SCHEDULE_TARGET: "s.1"}, 10190),
    "timer at another stream": (SCHEDULED | {h.SCHEDULE_TARGET: "o.1"}, 10190),
    "timer at many": (SCHEDULED | {h.SCHEDULE_TARGET: "s.*"}, 10190),
    "rollup of a subject": ({ROLLUP: "sub"}, 0),
    "rollup of all": ({ROLLUP: "all"}, 0),
    "rollup of what": ({ROLLUP: "some"}, 10111),
}


async def test_headers_are_refused_with_their_codes(any_bus):
    """A message may request only what the server can do; nothing is guessed."""
    await make(any_bus, allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    await make(any_bus, "O")
    found = {}
    for name, (headers, _) in HEADERS.items():
        answer = await said(any_bus.publish("s.1", b"", headers=headers))
        found[name] = 0 if isinstance(answer, int) else answer[1]
    assert found == {name: code for name, (_, code) in HEADERS.items()}


async def test_what_a_stream_does_not_allow_is_reported_in_the_servers_order(any_bus):
    """The server checks size and life first, then the guard.

    Timers, repetitions, and at last the rollup follow.
    """
    await make(any_bus)
    await any_bus.publish("s.1", b"", msg_id="a")
    wrong, again = {GUARD: "9"}, {h.MSG_ID: "a"}
    cases = [
        ({h.TTL: "1s"}, 10166, 10166),
        (SCHEDULED, Conflict, 10188),
        ({ROLLUP: "sub"}, Conflict, 1),
    ]
    for asked, guarded, repeated in cases:
        for more, expected in ((wrong, guarded), (again, repeated)):
            answer = await said(any_bus.publish("s.1", b"", headers=asked | more))
            if isinstance(answer, tuple):
                answer = Conflict if answer[0] is Conflict else answer[1]
            assert (asked, more, expected) == (asked, more, answer)


async def test_a_rollup_takes_the_place_of_its_subject_or_of_all(any_bus):
    """The stream's sequences count on."""
    await make(any_bus, allow_rollup_hdrs=True)
    for subject in ("s.1", "s.1", "s.2"):
        await any_bus.publish(subject, b"")
    await any_bus.publish("s.1", b"", headers={ROLLUP: "sub"})
    assert [each.sequence for each in await any_bus.read("S", "s.>")] == [3, 4]
    await any_bus.publish("s.2", b"", headers={ROLLUP: "all"})
    assert [each.sequence for each in await any_bus.read("S", "s.>")] == [5]


async def test_narrower_limits_act_at_once(any_bus):
    """The limits apply to what is stored already: per subject, in bytes, in age."""
    await make(any_bus, duplicate_window=SECOND_NS // 10)
    for number in range(6):
        await any_bus.publish(f"s.{number % 2}", b"%d" % number)
    narrower = {"max_msgs_per_subject": 2}, {"max_bytes": 70}, {"max_age": SECOND_NS // 10}
    found = []
    for limit in narrower:
        wanted = config(duplicate_window=SECOND_NS // 10) | limit
        await any_bus.admin("STREAM.UPDATE.S", wanted)
        async with asyncio.timeout(60):
            while "max_age" in limit and (await state(any_bus))[0]:
                await asyncio.sleep(0.01)
        found.append((await state(any_bus))[0])
    assert found == [4, 2, 0]


UPDATES = [
    ({"retention": "workqueue"}, True),
    ({"storage": "memory"}, True),
    ({"allow_msg_ttl": False}, True),
    ({"allow_msg_schedules": False}, True),
    ({"deny_delete": False}, True),
    ({"deny_purge": False}, False),
    ({"subjects": ["s.1"]}, False),
    ({"max_msg_size": 10}, False),
    ({"compression": "s2"}, False),
]


async def test_some_options_of_a_stream_are_for_ever(any_bus):
    """Set-up cannot correct them, and says so; it goes by the code."""
    own = {"allow_msg_ttl": True, "allow_msg_schedules": True, "deny_delete": True}
    await make(any_bus, **own, deny_purge=True)
    for change, fixed in UPDATES:
        wanted = config(**own, deny_purge=True) | change
        answer = await said(any_bus.admin("STREAM.UPDATE.S", wanted))
        assert (change, fixed) == (change, answer == (Refused, 10052))


async def test_what_cannot_be_combined_is_refused(any_bus):
    """Streams of the same subjects; consumers of a work queue that would share or skip some."""

    def consumer(name: str, filter_: str, **more: object) -> object:
        wanted = {"durable_name": name, "filter_subjects": [filter_], "ack_policy": "explicit"}
        asked = {"stream_name": "W", "config": wanted | {"deliver_policy": "all"} | more}
        return any_bus.admin(f"CONSUMER.DURABLE.CREATE.W.{name}", asked)

    await make(any_bus)
    queue = {"retention": "workqueue"}
    await make(any_bus, "W", **queue)
    found = [
        await said(any_bus.admin("STREAM.CREATE.T", config("T", subjects=["t.>", "s.1"]))),
        await said(any_bus.admin("STREAM.CREATE.S", config(max_msg_size=5))),
        await said(any_bus.admin("STREAM.UPDATE.W", config("W", subjects=["s.1"], **queue))),
        await said(consumer("a", "w.1.>")),
        await said(consumer("a", "w.1.*")),
        await said(consumer("b", "w.1.2")),
        await said(consumer("b", "w.2")),
        await said(consumer("b", "w.*.2")),
        await said(consumer("c", "w.3", ack_policy="none")),
        await said(consumer("c", "w.3", deliver_policy="new")),
    ]
    codes = [each[1] if isinstance(each, tuple) else 0 for each in found]
    assert codes == [10065, 10058, 10065, 0, 0, 10100, 0, 10100, 10084, 10101]


async def test_every_call_says_what_is_not_there(any_bus):
    """The same kind of error, and the same code, whichever call meets it."""
    calls = {
        "publish": any_bus.publish("unserved.x", b""),
        "append": any_bus.append("unserved.x", b"", tree="unserved.>", expected=0),
        "read": any_bus.read("NONE", "s.>"),
        "last": any_bus.last("NONE", "s.1"),
        "last of a tree": any_bus.last("NONE", "s.>"),
        "last sequence": any_bus.last_sequence("NONE"),
        "last sequence of a tree": any_bus.last_sequence("NONE", "s.>"),
        "purge": any_bus.purge("NONE", "s.>"),
        "update": any_bus.admin("STREAM.UPDATE.NONE", config("NONE")),
        "delete": any_bus.admin("STREAM.DELETE.NONE", {}),
        "names": any_bus.admin("CONSUMER.NAMES.NONE", {}),
        "consumer": any_bus.admin("CONSUMER.INFO.NONE.d", {}),
        "message": any_bus.admin("STREAM.MSG.GET.EVENTS", {"seq": 77}),
        "message by subject": any_bus.admin("STREAM.MSG.GET.EVENTS", {"last_by_subj": "x"}),
        "forgotten consumer": any_bus.admin("CONSUMER.DELETE.EVENTS.none", {}),
    }
    found = {name: await said(call) for name, call in calls.items()}
    away, no_stream = (Unavailable, 0), (Refused, 10059)
    assert found == {
        **dict.fromkeys(("publish", "append", "read"), away),
        **dict.fromkeys(("last", "last of a tree", "last sequence of a tree"), away),
        **dict.fromkeys(("last sequence", "purge", "update", "delete"), no_stream),
        **dict.fromkeys(("names", "consumer"), no_stream),
        **dict.fromkeys(("message", "message by subject"), (Refused, 10037)),
        "forgotten consumer": (Refused, 10014),
    }


async def test_a_timer_is_ended_by_whatever_takes_its_place_or_removes_it(any_bus):
    """Another timer, a plain message, a purge: what was scheduled before does not fire."""
    await make(any_bus, allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    soon = firing(datetime.now(UTC) + timedelta(seconds=0.2), "s.due")
    for name in ("replaced", "silenced", "purged", "kept"):
        await any_bus.publish(f"s.{name}", name.encode(), headers=soon)
    await any_bus.publish("s.replaced", b"", headers=SCHEDULED)
    await any_bus.publish("s.silenced", b"")
    await any_bus.purge("S", "s.purged")
    last = firing(datetime.now(UTC) + timedelta(seconds=0.4), "s.due")
    await any_bus.publish("s.last", b"last", headers=last)
    fired = await collect(any_bus.follow("S", ["s.due"], "all"), 2)
    assert [each.data for each in fired] == [b"kept", b"last"]
    left = [each.subject for each in await any_bus.read("S", "s.>")]
    assert left == ["s.silenced", "s.replaced", "s.silenced", "s.due", "s.due"]


async def test_what_fires_keeps_its_own_headers_alone(any_bus):
    """Not the timer's guard, id and life; and it says whose it was."""
    await make(any_bus, allow_msg_schedules=True, allow_msg_ttl=True)
    own = {"traceparent": "00-a-b-01", h.TTL: "9s", GUARD: "0", h.MSG_ID: "m"}
    at = datetime.now(UTC) + timedelta(seconds=0.1)
    await any_bus.publish("s.1", b"", headers=own | firing(at, "s.due"))
    (fired,) = await collect(any_bus.follow("S", ["s.due"], "all"), 1)
    assert fired.headers == {
        "traceparent": "00-a-b-01",
        "Nats-Scheduler": "s.1",
        "Nats-Schedule-Next": "purge",
    }


async def test_only_the_end_of_a_subject_leaves_a_marker(any_bus):
    """Where the subject has a newer message no marker is needed; the marker ends, too."""
    await make(
        any_bus,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        subject_delete_marker_ttl=SECOND_NS,
    )
    second = {h.TTL: "1s"}
    await any_bus.publish("s.stays", b"stays")
    for subject in ("s.stays", "s.goes", "s.goes"):
        await any_bus.publish(subject, b"", headers=second)
    following = any_bus.follow("S", ["s.>"], "new")
    async with aclosing(following), asyncio.timeout(60):
        marker = await anext(following)
        while len(await any_bus.read("S", "s.>")) > 1:
            await asyncio.sleep(0.02)
    assert (marker.subject, marker.data, marker.headers) == (
        "s.goes",
        b"",
        {h.MARKER_REASON: "MaxAge", h.TTL: "1s", ROLLUP: "sub"},
    )
    assert (await any_bus.last_sequence("S"), await state(any_bus)) == (5, (1, 42, 1, 5))


async def test_timers_that_come_due_together_fire_in_the_order_of_storing(any_bus):
    """The server looks four times a second at most; within that, what was set first goes first."""
    await make(any_bus, allow_msg_schedules=True)
    now = datetime.now(UTC)
    for name, seconds in (("one", 0.2), ("two", 0.1), ("three", -5), ("later", 0.6)):
        at = now + timedelta(seconds=seconds)
        await any_bus.publish(f"s.{name}", name.encode(), headers=firing(at, "s.due"))
    fired = await collect(any_bus.follow("S", ["s.due"], "all"), 4)
    assert [each.data for each in fired] == [b"one", b"two", b"three", b"later"]
    waited = [(each.time - now).total_seconds() for each in fired]
    assert waited[0] >= 0.24
    assert waited[3] >= 0.59


async def test_what_is_over_soon_after_another_is_over_a_look_later(any_bus):
    """Lives end in bunches, not each at its moment; none ends early."""
    await make(
        any_bus,
        allow_msg_ttl=True,
        allow_rollup_hdrs=True,
        max_msgs_per_subject=1,
        subject_delete_marker_ttl=60 * SECOND_NS,
    )
    stored = {}
    async with watched() as still:
        for name in ("one", "two"):
            await any_bus.publish(f"s.{name}", b"", headers={h.TTL: "1s"})
            stored[name] = (await any_bus.last("S", f"s.{name}")).time
            # A tenth of a second lies between them: less than between two looks.
            while name == "one" and datetime.now(UTC) < stored[name] + timedelta(seconds=0.1):
                await asyncio.sleep(0.01)
        one, two = await collect(any_bus.follow("S", ["s.>"], "new"), 2)
    assert (one.subject, two.subject) == ("s.one", "s.two")
    assert one.headers == {h.MARKER_REASON: "MaxAge", h.TTL: "1m0s", ROLLUP: "sub"}
    assert one.time >= stored["one"] + timedelta(seconds=0.99)
    # Who stood still for the first look has both at the second.
    assert still() > 0.05 or two.time - one.time >= timedelta(seconds=0.2)


async def test_no_message_ends_before_its_marker_would(any_bus):
    """The rule holds outside of buckets; there each key has its own life, however short."""
    for name, most in (("S", -1), ("B", 1)):
        await make(
            any_bus,
            name,
            allow_msg_ttl=True,
            allow_rollup_hdrs=True,
            max_msgs_per_subject=most,
            subject_delete_marker_ttl=60 * SECOND_NS,
        )
        await any_bus.publish(f"{name.lower()}.1", b"", headers={h.TTL: "30s"})
    lives = [(await any_bus.last(name, f"{name.lower()}.1")).headers for name in ("S", "B")]
    assert lives == [{h.TTL: "60"}, {h.TTL: "30s"}]


async def test_a_tree_is_what_is_under_a_subject_and_not_the_subject(any_bus):
    """`>` is one token or more: reading, guarding and looking for the last agree on it."""
    await make(any_bus)
    await any_bus.publish("s.a.b", b"under")
    await any_bus.publish("s.a", b"itself")
    assert (await any_bus.last("S", "s.a.>")).sequence == 1
    assert [each.sequence for each in await any_bus.read("S", "s.a.>")] == [1]
    assert await any_bus.last_sequence("S", "s.a.>") == 1
    assert await any_bus.append("s.a.b", b"", tree="s.a.>", expected=1) == 3


async def test_messages_are_counted_by_subject_and_all_but_the_newest_are_removed(any_bus):
    """A filter selects the subjects; a subject without messages is not named."""
    await make(any_bus)
    for number in range(5):
        await any_bus.publish("s.a", b"%d" % number)
    await any_bus.publish("s.b", b"")

    async def counts(filter_):
        info = await any_bus.admin("STREAM.INFO.S", {"subjects_filter": filter_})
        return info["state"].get("subjects") or {}

    assert await counts("s.>") == {"s.a": 5, "s.b": 1}
    await any_bus.admin("STREAM.PURGE.S", {"filter": "s.a", "keep": 2})
    assert await counts("s.a") == {"s.a": 2}
    assert await counts("s.c") == {}
    assert [each.data for each in await any_bus.read("S", "s.a")] == [b"3", b"4"]
