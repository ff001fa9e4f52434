"""Questions and their answers, whichever bus carries them."""

import asyncio

import pytest

from schemas.headers import SERVICE_ERROR, SUBJECT
from schemas.stream_specs import MESSAGE_BYTES_MAX
from services.primitives.errors import Refused, Unavailable


async def echo(data: bytes, headers: object) -> bytes:
    """Answer with what was asked."""
    del headers
    return data


async def test_a_responder_goes_on_after_the_requester_gave_up(any_bus):
    """A node's reboot is not called off because the one who asked for it has given up."""
    hold, done = asyncio.Event(), asyncio.Event()

    async def slow(*_: object) -> bytes:
        await hold.wait()
        done.set()
        return b"done"

    await any_bus.answer("test.slow", slow)
    with pytest.raises(Unavailable, match="no answer"):
        await any_bus.request("test.slow", b"", timeout_seconds=0.1)
    hold.set()
    async with asyncio.timeout(60):
        await done.wait()


async def test_everyone_who_answers_plainly_is_heard(any_bus, another_bus):
    """The slowest of them, too, within the silence that is granted after the one before."""
    released = asyncio.Event()

    async def slow(data: bytes, _: object) -> bytes:
        await released.wait()
        return b"slow " + data

    other = await another_bus()
    await any_bus.answer("test.all", echo)
    await any_bus.answer("test.all", echo)
    await other.answer("test.all", slow)
    # A round over the other's connection: what it subscribed to is known when that came back.
    await other.answer("test.there", echo)
    await other.request("test.there", b"", timeout_seconds=30)
    asking = asyncio.create_task(any_bus.request_all("test.all", b"1", 10, 30))
    await asyncio.sleep(0.1)
    released.set()
    stranger = asyncio.create_task(any_bus.request_all("test.unserved", b"", 30))
    async with asyncio.timeout(25):  # not 30 s: the server reports that there is no responder
        assert [] == await stranger
        assert [b"1", b"1", b"slow 1"] == sorted(await asking)


async def test_who_never_answers_is_waited_for_no_longer_than_the_silence(any_bus):
    """The first answer may take longer than those after it."""
    late, never = asyncio.Event(), asyncio.Event()

    async def first(*_: object) -> bytes:
        await late.wait()
        return b"first"

    async def last(*_: object) -> bytes:
        await never.wait()
        return b""

    await any_bus.answer("test.all", first)
    await any_bus.answer("test.all", last)
    asyncio.get_running_loop().call_later(0.3, late.set)
    async with asyncio.timeout(25):
        assert [b"first"] == await any_bus.request_all("test.all", b"", 0.05, 30)
    never.set()


async def test_a_service_learns_on_which_subject_it_was_asked(any_bus):
    """The service learns it also where it answers a whole tree of subjects.

    The requester's name may be read there alone.
    """
    asked = []

    async def note(data: bytes, headers: dict) -> bytes:
        asked.append(headers.get(SUBJECT))
        return data

    await any_bus.serve("notes", "says what it heard", {"test.one": note, "test.many.*": note})
    for subject in ("test.one", "test.many.a", "test.many.b"):
        await any_bus.request(subject, b"", timeout_seconds=30)
    assert asked == ["test.one", "test.many.a", "test.many.b"]
    with pytest.raises(Unavailable, match="no responders"):
        await any_bus.request("test.many.a.b", b"", timeout_seconds=30)


async def test_of_a_services_replicas_one_is_asked_and_of_plain_answerers_each(
    any_bus, another_bus
):
    """Two agents that take themselves for one node both act; two replicas share."""
    other, heard = await another_bus(), []

    def note(name: str):
        async def noting(*_: object) -> bytes:
            heard.append(name)
            return name.encode()

        return noting

    for name, bus in (("one", any_bus), ("other", other)):
        await bus.serve("notes", "says who it is", {"test.service": note(name)})
        await bus.answer("test.plain", note(name))
    # A round over the other's connection: what it subscribed to is known when that came back.
    await other.request("test.service", b"", timeout_seconds=30)
    heard.clear()
    await any_bus.request("test.service", b"", timeout_seconds=30)
    assert len(heard) == 1
    heard.clear()
    await any_bus.request("test.plain", b"", timeout_seconds=30)
    async with asyncio.timeout(60):
        while len(heard) < 2:
            await asyncio.sleep(0.01)
    assert sorted(heard) == ["one", "other"]


async def test_an_error_is_one_line_in_the_header_and_whole_in_the_answer(any_bus):
    """A handler may raise an error of several lines; a header is of one."""

    async def broken(*_: object) -> bytes:
        raise ValueError("first\nsecond: é\r\nthird")

    await any_bus.serve("broken", "fails", {"test.broken": broken})
    reply = await any_bus.request("test.broken", b"", timeout_seconds=30)
    assert reply.headers[SERVICE_ERROR] == "first second: é  third"
    assert rb"first\nsecond: " in reply.data


async def test_what_is_too_large_to_be_carried_is_reported(any_bus):
    """The asker learns it at once, of the question as of the answer."""

    async def large(*_: object) -> bytes:
        return b"x" * (MESSAGE_BYTES_MAX + 1)

    await any_bus.serve("large", "says too much", {"test.service": large})
    await any_bus.answer("test.plain", large)
    for subject in ("test.service", "test.plain"):
        reply = await any_bus.request(subject, b"", timeout_seconds=30)
        said = reply.data[:200].decode()
        assert "the answer has 1048577 bytes, 1048576 may be; ask for less" in said
    with pytest.raises(Refused, match="more than the server takes"):
        await any_bus.request("test.plain", b"x" * (MESSAGE_BYTES_MAX + 1), timeout_seconds=30)


async def test_who_has_left_is_not_asked(any_bus, another_bus):
    """No request waits for a service that has left."""
    leaving = await another_bus()
    await leaving.serve("echo", "says it again", {"test.service": echo})
    await leaving.answer("test.plain", echo)
    assert (await leaving.request("test.plain", b"1", timeout_seconds=30)).data == b"1"
    await leaving.close()
    for subject in ("test.service", "test.plain"):
        async with asyncio.timeout(60):
            with pytest.raises(Unavailable, match="no responders"):
                await any_bus.request(subject, b"", timeout_seconds=30)
