"""A request whose body could end in two places is refused, and nothing after it is read."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from services.runtime.process_http import WebServer

HEAD: Final = "POST /first HTTP/1.1\r\nHost: x\r\n"
SECOND: Final = "GET /second HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED: Final = "Transfer-Encoding: chunked\r\n"
END: Final = "0\r\n\r\n"


@asynccontextmanager
async def serving(paths: list[str]) -> AsyncIterator[int]:
    """A server as the gateway's and the services' are; it keeps the paths that it is asked for."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    listening = socket.create_server(("127.0.0.1", 0))
    server = WebServer(app)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await running


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + "Content-Length: 5\r\n" + CHUNKED + "\r\n" + END + SECOND,
        HEAD + CHUNKED + "Content-Length: 5\r\n\r\n" + END + SECOND,
        HEAD + "content-length: 0\r\nTRANSFER-ENCODING: CHUNKED\r\n\r\n" + END + SECOND,
        HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!" + SECOND,
        HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n" + END + SECOND,
        HEAD + CHUNKED + CHUNKED + "\r\n" + END + SECOND,
        HEAD + "Transfer-Encoding : chunked\r\n\r\n" + END + SECOND,
        HEAD.replace("1.1", "1.0") + CHUNKED + "\r\n" + END + SECOND,
    ],
)
async def test_a_body_with_two_ends_is_refused(sent: str) -> None:
    """A proxy that goes by the length let through what the gateway took for a second request."""
    paths: list[str] = []
    async with serving(paths) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent.encode())
        answer = (await reader.read()).decode()
        writer.close()

    assert answer.startswith("HTTP/1.1 400 ")
    assert answer.count("HTTP/1.1") == 1
    assert "connection: close" in answer.lower()
    assert not paths


async def test_each_of_the_two_is_served_alone() -> None:
    """Clients that stream a body, and those that know its length, are answered."""
    paths: list[str] = []
    sent = HEAD + "Content-Length: 5\r\n\r\nhello" + HEAD + CHUNKED + "\r\n" + END
    async with serving(paths) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((sent + SECOND.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")).encode())
        answer = (await reader.read()).decode()
        writer.close()

    assert answer.count("HTTP/1.1 204") == 3
    assert paths == ["/first", "/first", "/second"]
