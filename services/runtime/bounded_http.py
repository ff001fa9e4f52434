"""HTTP clients that read answers only up to a limit.

httpx reads an answer whole, and unpacks compressed ones, whatever their size. Here no compression
is asked for or accepted, so that the bytes that are counted are the bytes that are kept.
"""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, Final

import httpx

from services.primitives.redaction import redacted

ANSWER_BYTES_MAX: Final = 8 * 1_048_576
"""The longest lists of providers are below it."""


class _BoundedStream(httpx.AsyncByteStream):
    """An answer's body; httpx.ReadError beyond the limit."""

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


def bounded_client(*, bytes_max: int = ANSWER_BYTES_MAX, **options: Any) -> httpx.AsyncClient:
    """Make a client; an answer above `bytes_max` is an httpx.HTTPError like a lost connection."""

    async def bound(answer: httpx.Response) -> None:
        packed = answer.headers.get("Content-Encoding", "identity")
        if packed != "identity":
            raise httpx.DecodingError("the answer is compressed, which was not requested")
        assert isinstance(answer.stream, httpx.AsyncByteStream)
        answer.stream = _BoundedStream(answer.stream, bytes_max)

    headers = {"Accept-Encoding": "identity", **options.pop("headers", {})}
    return httpx.AsyncClient(headers=headers, event_hooks={"response": [bound]}, **options)


def failure_text(error: Exception) -> str:
    """Return why there is no answer.

    The library's text is left out where it repeats what the server sent.
    """
    if isinstance(error, httpx.RemoteProtocolError | httpx.InvalidURL):
        return type(error).__name__
    return redacted(str(error)) or type(error).__name__


def status_text(code: int) -> str:
    """A status in words; the server's own phrase may be anything."""
    try:
        return f"{code} {HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)
