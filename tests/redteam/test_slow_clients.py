"""Connections on which no request comes do not keep others out."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.runtime import http_protocol, process_http
from services.runtime.http_protocol import KNOW_CALLER
from services.runtime.process_http import WebServer, allow_open_files
from tests.support.self_signed import self_signed

FILES = 256
"""A server with so many files has slots for 64 connections of callers."""
UNREAD_BYTES = 8 * 1_048_576
HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def slow(scope: Any, _receive: Any, send: Any) -> None:
    """An answer that lasts longer than a caller may take to ask."""
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(8):
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        await asyncio.sleep(0.1)
    await send({"type": "http.response.body", "body": b"done", "more_body": False})


@asynccontextmanager
async def serving(**more: str) -> AsyncIterator[int]:
    """A server as the gateway's and the services' are."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = WebServer(slow, **more)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.should_exit = True
    await running


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX: ", HEAD], ids=str)
async def test_a_connection_without_a_request_ends(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4,096 of them had the gateway answer all others with 503, for ever; an answer goes on."""
    monkeypatch.setattr(http_protocol, "HEAD_SECONDS_MAX", 0.3)
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        if sent == HEAD:
            await reader.readuntil(b"done")
            writer.write(b"G")
        rest = await reader.read()
        writer.close()

    assert b"x" not in rest


async def test_a_handshake_that_never_comes_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection has no slot before it; the library would wait for a minute."""
    monkeypatch.setattr(process_http, "HEAD_SECONDS_MAX", 0.3)
    identity = tmp_path / "identity.pem"
    identity.write_text("".join(self_signed()))
    async with serving(ssl_certfile=str(identity)) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_a_caller_that_reads_nothing_keeps_no_other_caller_out() -> None:
    """A viewer's token held every slot of authenticated callers with answers left unread."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        caller = dict(scope["headers"])[b"authorization"].decode()
        has_room = scope["state"][KNOW_CALLER](caller)
        await send(
            {"type": "http.response.start", "status": 200 if has_room else 503, "headers": []}
        )
        await send({"type": "http.response.body", "body": b"x" * UNREAD_BYTES})

    listening = socket.create_server(("127.0.0.1", 0))
    server = WebServer(app, allow_open_files() // FILES)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    opened: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(60):
        for caller in (*["viewer"] * FILES, "operator"):
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(f"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: {caller}\r\n\r\n".encode())
            line = await reader.readline()
            opened.append(writer)
    for each in opened:
        each.transport.abort()
    server.should_exit = True
    await running
    assert b" 200 " in line
