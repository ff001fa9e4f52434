"""Makes HTTP clients that read answers up to a limit, and ask nothing where no name may lead.

httpx reads an answer whole, and unpacks compressed ones, whatever their size. Here no compression
is asked for or accepted, so that the bytes that are counted are the bytes that are kept.
"""

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx

from services.primitives.redaction import redacted
from services.runtime.peer_addresses import refuses

ANSWER_BYTES_MAX: Final = 8 * 1_048_576
"""The longest lists of providers are below it."""


class _BoundedStream(httpx.AsyncByteStream):
    """The body of an answer, which raises httpx.ReadError beyond the limit."""

    def __init__(self, stream: httpx.AsyncByteStream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._stream:
            read += len(chunk)
            if read > self._bytes_max:
                raise httpx.ReadError(f"the answer is longer than {self._bytes_max} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _watch_peer(request: httpx.Request) -> None:
    """Have the connection that is opened for a request ended where its name may not lead there.

    What is checked is the address that was connected to, so that no later answer differs.
    """
    name = ""

    async def seen(event: str, info: Mapping[str, Any]) -> None:
        nonlocal name
        if event == "connection.connect_tcp.started":
            name = info["host"]
        elif event == "connection.connect_tcp.complete":
            stream = info["return_value"]
            address = stream.get_extra_info("server_addr")[0]
            if refuses(name, address, socket.gethostname()):
                await stream.aclose()
                raise httpx.ConnectError(
                    f"{name} leads to {address}, of this machine or for it alone; if that is "
                    "meant, write the address"
                )

    request.extensions["trace"] = seen


def bounded_client(
    *, bytes_max: int = ANSWER_BYTES_MAX, leads_anywhere: bool = False, **options: Any
) -> httpx.AsyncClient:
    """Make a client; an answer above `bytes_max` is an httpx.HTTPError like a lost connection.

    `leads_anywhere`: the name of the server may lead to this machine, as through a tunnel.
    """

    async def bound(answer: httpx.Response) -> None:
        packed = answer.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise httpx.DecodingError("the answer is compressed, which was not requested")
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = _BoundedStream(answer.stream, bytes_max)

    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    watches: list[Callable[..., Any]] = [] if leads_anywhere else [_watch_peer]
    hooks = {"request": watches, "response": [bound]}
    return httpx.AsyncClient(headers=headers, event_hooks=hooks, **options)


def failure_text(error: Exception) -> str:
    """Return why there is no answer, without what the server sent."""
    if isinstance(error, httpx.RemoteProtocolError | httpx.InvalidURL):
        return type(error).__name__
    return redacted(str(error)) or type(error).__name__


def status_text(code: int) -> str:
    """Return a status in words; the server's own phrase may be anything."""
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)
