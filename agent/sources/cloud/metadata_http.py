"""Sends one bounded HTTP/1.1 request at a time, to metadata services alone.

They are plain HTTP on a link-local address and reply with a few bytes: no TLS, no redirects, and no
proxies, through which a metadata service must never be reached.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

HEAD_BYTES_MAX: Final = 16_384
BODY_BYTES_MAX: Final = 262_144
HTTP_PORT: Final = 80


class MetadataUnavailable(Exception):  # noqa: N818 - reads as the state it names
    """The metadata service does not answer, or not as it is documented to."""


@dataclass(frozen=True, slots=True)
class MetadataReply:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


async def fetch(
    url: str, *, headers: Mapping[str, str], seconds: float, method: str = "GET"
) -> MetadataReply:
    """Make one request; raise MetadataUnavailable without a reply in time."""
    try:
        async with asyncio.timeout(seconds):
            return await _fetch(url, headers, method)
    except TimeoutError as error:
        raise MetadataUnavailable(f"{url}: no answer in {seconds:g} s") from error
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise MetadataUnavailable(f"{url}: {error or type(error).__name__}") from error


async def fetch_ok(url: str, *, headers: Mapping[str, str], seconds: float) -> MetadataReply:
    """Make one request; raise MetadataUnavailable without a reply of status 200."""
    reply = await fetch(url, headers=headers, seconds=seconds)
    if reply.status != HTTPStatus.OK:
        raise MetadataUnavailable(f"{url}: answers with status {reply.status}")
    return reply


async def _fetch(url: str, headers: Mapping[str, str], method: str) -> MetadataReply:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("not an http:// address")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if method != "GET":
        lines.append("Content-Length: 0")
    reader, writer = await asyncio.open_connection(
        parts.hostname, parts.port or HTTP_PORT, limit=HEAD_BYTES_MAX
    )
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii"))
        await writer.drain()
        return await _read(reader)
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> MetadataReply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"not an HTTP/1.1 answer: {first[:80]!r}")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return MetadataReply(int(rest[:3]), headers, await _body(reader, headers))


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader)
    if "content-length" in headers:
        return await reader.readexactly(_check_size(int(headers["content-length"])))
    body = b""
    while chunk := await reader.read(HEAD_BYTES_MAX):
        body += chunk
        _check_size(len(body))
    return body


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";", 1)[0], 16)
        _check_size(size + len(body))
        body += await reader.readexactly(size)
        await reader.readexactly(2)
        if size == 0:
            return body


def _check_size(size: int) -> int:
    if not 0 <= size <= BODY_BYTES_MAX:
        raise ValueError(f"an answer of {size} bytes")
    return size
