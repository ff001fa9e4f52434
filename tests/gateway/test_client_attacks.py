"""The Python client against servers that are no gateway: nothing hangs, no token goes astray."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from services.http_client import AsyncNavarch, NoAnswerError, http_transport
from services.http_client.api_call import CallerRateError, FleetUnavailableError
from services.http_client.server_sent_events import EVENT_BYTES_MAX, EventParser, StreamFormatError
from tests.gateway.client_certificates import authority, server_settings
from tests.support.serving import serving

SECRET = "navarch_a-token-of-one-host-alone"
PROBLEM = b'{"status": 503, "detail": "the bus is away", "remedy": "repeat it"}'

Script = Callable[["Answering", asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Answering:
    """A server that answers each connection's request as it is scripted."""

    script: Script
    requests: list[str] = field(default_factory=list)
    url: str = ""
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, answer it and hang up."""
        task = asyncio.current_task()
        assert task is not None
        self.serving.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            await self.script(self, writer)
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.serving.discard(task)


@asynccontextmanager
async def answering(script: Script) -> AsyncIterator[Answering]:
    """Run such a server."""
    made = Answering(script)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in made.serving:
            task.cancel()
        await asyncio.gather(*made.serving, return_exceptions=True)


def answer(status: str, kind: str, body: bytes, *headers: str) -> Script:
    """Return a script that gives one answer to every request."""
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        *headers,
    )

    async def script(_: Answering, writer: asyncio.StreamWriter) -> None:
        writer.write("\r\n".join((*lines, "Connection: close", "", "")).encode() + body)

    return script


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "BACKOFF_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(http_transport, "RECONNECT_SECONDS", 0.001)


async def failure(url: str, **options: float) -> NoAnswerError:
    """Return why there is no answer; the token is not part of it."""
    async with asyncio.timeout(30):
        async with AsyncNavarch(url, token=SECRET, **options) as fleet:  # type: ignore[arg-type]
            with pytest.raises(NoAnswerError) as read:
                await fleet.list_pools()
            with pytest.raises(NoAnswerError) as followed:
                await anext(fleet.follow_events())
    for each in (read.value, followed.value):
        assert SECRET not in f"{each!r} {each}"
    return read.value


async def test_a_token_follows_no_redirect() -> None:
    """The error of a redirect to another host or path names where the gateway may be."""
    async with answering(answer("200 OK", "application/json", b"[]")) as other:
        for status in ("301 Moved Permanently", "302 Found", "307 Temporary Redirect"):
            location = f"Location: {other.url}/api/v1/pools?secret=word"
            async with answering(answer(status, "text/html", b"<p>moved", location)) as first:
                text = str(await failure(first.url))
                assert f"a redirect to {other.url}, which is not followed" in text
                assert "word" not in text
                assert SECRET in first.requests[0]
        assert other.requests == []


@pytest.mark.parametrize(
    ("status", "kind", "body", "said", "tries"),
    [
        ("200 OK", "text/html", b"<html>sign in here, dear \x1b[31m", "another program", 1),
        ("200 OK", "application/json", b"<html>", "does not know", 1),
        ("200 OK", "application/json", b'{"pools": []}', "does not know", 1),
        ("200 OK", "application/json", b"[" * 100_000, "does not know", 1),
        ("404 Not Found", "text/plain", b"no such page", "404 Not Found of another program", 1),
        ("502 Bad Gateway", "text/html", b"<html>", "502 Bad Gateway of another program", 4),
        ("503 Service Unavailable", "application/problem+json", b"no json", "another program", 4),
    ],
)
async def test_what_a_proxy_answers_is_no_answer(
    status: str, kind: str, body: bytes, said: str, tries: int
) -> None:
    """A proxy's text is not shown; a failure that may pass is tried again, a few times."""
    async with answering(answer(status, kind, body)) as server:
        text = str(await failure(server.url))
        assert said in text
        assert "sign in" not in text
        assert len([each for each in server.requests if "/pools" in each]) == tries


async def test_a_compressed_answer_is_not_unpacked() -> None:
    """A compressed answer was not asked for, and may be a bomb."""
    script = answer("200 OK", "application/json", b"\x1f\x8b", "Content-Encoding: gzip")
    async with answering(script) as server:
        assert "compressed" in str(await failure(server.url))


async def test_an_answer_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without end is cut at its limit."""
    monkeypatch.setattr(http_transport, "ANSWER_BYTES_MAX", 1_000)
    async with (
        answering(answer("200 OK", "application/json", b" " * 100_000)) as server,
        AsyncNavarch(server.url, token=SECRET) as fleet,
    ):
        with pytest.raises(NoAnswerError, match="longer than 1000 bytes"):
            await fleet.list_pools()


async def test_a_server_that_stalls_is_not_waited_for() -> None:
    """A server may stall before the answer, within its head and within its body.

    A drip of bytes is no answer.
    """

    async def silent(_: Answering, __: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async def dripping(_: Answering, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.01)

    for script in (silent, dripping):
        async with answering(script) as server, asyncio.timeout(30):
            options = {"timeout_seconds": 0.2, "tries_max": 2}
            async with AsyncNavarch(server.url, token=SECRET, **options) as fleet:  # type: ignore[arg-type]
                with pytest.raises(NoAnswerError, match=r"no answer within 0\.2 s"):
                    await fleet.list_pools()
            assert len(server.requests) == 2


async def test_a_closed_port_is_an_error_after_few_tries() -> None:
    """A closed port ends calls and streams alike."""
    async with answering(answer("200 OK", "text/plain", b"")) as server:
        url = server.url
    assert "no connection" in str(await failure(url))


@pytest.mark.parametrize(("after", "tries"), [("0", 4), ("3600", 1), ("soon", 4), ("9" * 5_000, 4)])
async def test_a_gateway_that_asks_for_a_pause_gets_it_within_limits(
    after: str, tries: int
) -> None:
    """An hour is not waited for: the error says it."""
    header = f"Retry-After: {after}"
    kind = "application/problem+json"
    async with (
        answering(answer("429 Too Many Requests", kind, PROBLEM, header)) as server,
        AsyncNavarch(server.url, token=SECRET) as fleet,
    ):
        with pytest.raises(CallerRateError) as found:
            await fleet.list_pools()
    assert len(server.requests) == tries
    assert found.value.after_seconds in (0.0, 3600.0)


async def test_a_change_that_is_tried_again_has_one_key() -> None:
    """A repeated change is carried out once; a change without a key is sent once."""
    kind = "application/problem+json"
    async with (
        answering(answer("503 Service Unavailable", kind, PROBLEM)) as server,
        AsyncNavarch(server.url, token=SECRET) as fleet,
    ):
        with pytest.raises(FleetUnavailableError, match="the bus is away: repeat it"):
            await fleet.cordon_node("training-1")
        lines = [line for each in server.requests for line in each.splitlines()]
        keys = {line for line in lines if line.lower().startswith("idempotency-key: client-")}
        assert (len(server.requests), len(keys)) == (4, 1)
        with pytest.raises(FleetUnavailableError):
            await fleet.diagnose_node("training-1")
        assert len(server.requests) == 5


async def test_a_certificate_is_verified(tmp_path: Path) -> None:
    """The named authority verifies it; a stranger's certificate is refused.

    The error names the option.
    """
    own, other = authority(tmp_path, "own"), authority(tmp_path, "other")
    identity = server_settings(own, other).tls_cert_file

    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"[]"})

    async with serving(app, identity=identity) as url:  # type: ignore[arg-type]
        async with AsyncNavarch(url, token=SECRET, ca_file=own.file) as fleet:
            assert await fleet.list_pools() == []
        for ca_file in (other.file, ""):
            async with AsyncNavarch(url, token=SECRET, ca_file=ca_file, tries_max=1) as fleet:
                with pytest.raises(NoAnswerError, match="NAVARCH_CA_FILE"):
                    await fleet.list_pools()


async def test_a_stream_gives_up_after_its_time() -> None:
    """Where a server takes every connection and says nothing, and after one that has spoken."""
    script = answer("200 OK", "text/event-stream", b": connected\nid: 4\n\n")
    async with (
        answering(script) as server,
        AsyncNavarch(server.url, token=SECRET, give_up_seconds=0.2) as fleet,
    ):
        with pytest.raises(NoAnswerError, match="the stream ended"):
            await anext(fleet.follow_events())
    # From the position that the gateway gave before the first event.
    assert "Last-Event-ID" not in server.requests[0]
    assert all("Last-Event-ID: 4" in each for each in server.requests[1:])
    assert len(server.requests) > 1


def test_events_are_read_in_any_pieces() -> None:
    """Bytes may be cut anywhere; comments, several lines of data, and Windows line ends."""
    stream = (
        b": connected\r\nid: 3\r\n\r\nevent: verdict\ndata: {\ndata:  1}\nid: 4\n\nretry: 1\n\n\n"
    )
    whole = EventParser().feed(stream)
    parser = EventParser()
    single = [event for byte in stream for event in parser.feed(bytes((byte,)))]
    assert whole == single
    assert [(each.kind, each.data, each.id) for each in whole] == [
        ("", b"", "3"),
        ("verdict", b"{\n 1}", "4"),
        ("", b"", ""),
    ]


@pytest.mark.parametrize("piece", [b"x" * 1_048_576, (b"data: %s\n" % (b"x" * 1_000)) * 1_000])
def test_an_event_without_end_is_refused(piece: bytes) -> None:
    """An event without end is refused in one line and in many."""
    parser = EventParser()
    pieces = iter([piece] * (3 * EVENT_BYTES_MAX // len(piece)))
    with pytest.raises(StreamFormatError):
        list(map(parser.feed, pieces))
    assert next(pieces, None) is not None
