"""Questions over one inbox: each has its own answer, and none waits for ever."""

import asyncio
import gc
from typing import Any

import pytest
from nats.aio.client import Client

from services.bus.nats.client_protocol import ClientMessage
from services.bus.nats.quick_client import QuickClient
from services.bus.nats.request_mux import RequestMux
from services.primitives.errors import Unavailable


class Message:
    """A message as the client gives it."""

    def __init__(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """As it arrives."""
        self.subject = subject
        self.data = data
        self.headers = headers


class Line:
    """A connection that keeps what was asked, so that it can be answered in any order."""

    def __init__(self) -> None:
        """Nothing asked yet."""
        self.asked: list[tuple[str, str]] = []
        self._arrived: Any = None

    def new_inbox(self) -> str:
        """Return the only inbox."""
        return "_INBOX.one"

    async def subscribe(self, subject: str, *, cb: Any, **_: int) -> None:
        """Keep who listens."""
        assert subject == "_INBOX.one.*"
        self._arrived = cb

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """Note the question."""
        del payload, headers
        self.asked.append((subject, reply))

    async def answers(self, number: int, data: bytes, status: str = "") -> None:
        """Answer one of the questions."""
        headers = {"Status": status} if status else None
        await self._arrived(Message(self.asked[number][1], data, headers))


async def listening() -> tuple[Line, RequestMux]:
    """A line, and who asks over it."""
    line = Line()
    mux = RequestMux(line)
    await mux.listen()
    return line, mux


async def test_each_question_has_its_own_answer() -> None:
    """The order of answers does not matter; unexpected and late replies are ignored."""
    line, mux = await listening()
    asked = [asyncio.create_task(mux.ask("q", b"", None, 5)) for _ in range(3)]
    await asyncio.sleep(0)
    asked[1].cancel()
    await asyncio.sleep(0)
    for number in (2, 1, 0, 0):
        await line.answers(number, b"%d" % number)

    assert [b"0", b"2"] == [(await asked[each]).data for each in (0, 2)]
    assert asked[1].cancelled()


async def test_many_answers_end_with_the_one_that_says_so() -> None:
    """The answers end with an error where the last one says so."""
    line, mux = await listening()

    def ends(message: ClientMessage) -> bool:
        if message.data == b"bad":
            raise Unavailable("bad")
        return message.data == b"end"

    good = asyncio.create_task(mux.gather("q", b"", ends, 5))
    bad = asyncio.create_task(mux.gather("q", b"", ends, 5))
    await asyncio.sleep(0)
    for number, data in ((0, b"1"), (1, b"1"), (0, b"2"), (1, b"bad"), (0, b"end"), (0, b"3")):
        await line.answers(number, data)

    assert [b"1", b"2"] == [each.data for each in await good]
    with pytest.raises(Unavailable, match="bad"):
        await bad


async def test_answers_may_take_longer_together_than_the_silence_allowed() -> None:
    """Each of them restarts the wait; the silence after the last of them ends it."""
    line, mux = await listening()
    loop = asyncio.get_running_loop()
    asked = asyncio.create_task(mux.gather("q", b"", lambda _: False, 0.05))
    await asyncio.sleep(0)
    began = loop.time()
    while loop.time() - began < 0.1:
        await line.answers(0, b"one of many")
        await asyncio.sleep(0)
    assert not asked.done()
    with pytest.raises(TimeoutError):
        await asked


async def test_a_question_that_cannot_be_answered_ends_at_once() -> None:
    """Where nothing serves its subject, where the connection is lost; else after its time."""
    line, mux = await listening()
    unserved, lost = (asyncio.create_task(mux.ask("q", b"", None, 5)) for _ in range(2))
    await asyncio.sleep(0)
    await line.answers(0, b"", "503")
    with pytest.raises(Unavailable, match="q: no responders"):
        await unserved
    mux.lost()
    with pytest.raises(Unavailable, match="the connection to the bus was lost"):
        await lost
    with pytest.raises(TimeoutError):
        await mux.ask("q", b"", None, 0.001)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\r\n",
        b"A: b\r\n",
        b"A: b\r\nNats-Msg-Id: x:y\r\n\r\n",
        b"A:b\r\nB:\tc \r\n C : d\r\n",
        b"no colon\r\nA: b\r\n",
        b"two words: b\r\nA: b\r\n",
        "Größe: 1\r\nA: größer\r\n".encode(),
        b"A: \xff\r\n: empty\r\nA: twice\r\n",
    ],
)
def test_headers_are_read_as_the_client_reads_them(raw: bytes) -> None:
    """Headers are read line by line instead of letter by letter, with the same result."""
    assert Client._parse_header_lines(raw) == QuickClient._parse_header_lines(raw)


async def test_a_question_whose_sending_fails_leaves_nothing_unseen() -> None:
    """The connection is lost while it is sent: its answer is not reported."""
    line, mux = await listening()
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: unseen.append(context["message"])
    )

    async def lost(*_: object, **__: object) -> None:
        mux.lost()
        raise OSError("the line is down")

    line.publish = lost  # type: ignore[method-assign]
    with pytest.raises(OSError, match="down"):
        await mux.ask("a", b"", None, 1.0)
    gc.collect()
    assert unseen == []


async def test_a_question_that_none_answers_leaves_no_garbage() -> None:
    """Services ask every few seconds who else is there, and look for garbage seldom."""
    _, mux = await listening()
    await mux.gather_all("s", b"", 0.001, 0.001)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await mux.gather_all("s", b"", 0.001, 0.001)
        assert gc.collect() < 20
    finally:
        gc.enable()
