"""A way to a cloud's API on which an answer may be lost, or the one who asked may die.

It is between a provider and the nearest thing to its cloud that runs here, passes every request
on, and at one moment ordered beforehand says that it is time to die, or keeps an answer for itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.support.serving import serving

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
HOP = frozenset({"content-length", "transfer-encoding", "connection", "content-encoding", "date"})
"""Headers that belong to one hop, or that a proxy writes itself."""


class Lossy:
    """Passes requests on until the moment comes."""

    def __init__(self, upstream: str) -> None:
        self.socket = f"{upstream}.way" if upstream.startswith("/") else ""
        parts = urlsplit("http://socket" if self.socket else upstream)
        self._upstream = f"{parts.scheme}://{parts.netloc}"
        self._rest = parts
        transport = httpx.AsyncHTTPTransport(uds=upstream if self.socket else None)
        self._client = httpx.AsyncClient(timeout=10.0, transport=transport)
        self._over = asyncio.Event()
        self.port = 0
        self.moments = 0
        """Before each request and after each answer, counted since the last order."""
        self._die_at = 0
        self._lose = 0
        self.due = asyncio.Event()
        """The moment to die has come."""

    @property
    def url(self) -> str:
        """Return the URL, or the path of the socket, that the provider is given for its cloud."""
        return self.socket or urlunsplit(self._rest._replace(netloc=f"127.0.0.1:{self.port}"))

    def order(self, *, die_at: int = 0, lose: int = 0) -> None:
        """Die at the n-th moment, or lose the n-th answer, counted from now; 0: never."""
        self.moments, self._die_at, self._lose = 0, die_at, lose
        self.due = asyncio.Event()

    async def _moment(self) -> None:
        self.moments += 1
        if self.moments == self._die_at:
            self.due.set()
            await self._over.wait()

    async def answer(self, request: Request) -> Response:
        """Pass one request on."""
        await self._moment()
        if self._over.is_set():
            return Response(status_code=503)
        url = request.url
        query = f"?{url.query}" if url.query else ""
        given = await self._client.request(
            request.method,
            f"{self._upstream}{request.scope['raw_path'].decode()}{query}",
            content=await request.body(),
            headers=[(k, v) for k, v in request.headers.items() if k not in HOP],
        )
        await self._moment()
        if self._lose and self.moments == 2 * self._lose:
            await self._over.wait()
        headers = {key: value for key, value in given.headers.items() if key not in HOP}
        return Response(given.content, given.status_code, headers)

    def end(self) -> None:
        """End the requests that get no answer."""
        self._over.set()

    async def close(self) -> None:
        """Give back the connections."""
        await self._client.aclose()


@asynccontextmanager
async def lossy(upstream: str) -> AsyncIterator[Lossy]:
    """Serve a lossy proxy to this URL on loopback, or to this socket beside it."""
    way = Lossy(upstream)
    app = Starlette(routes=[Route("/{path:path}", way.answer, methods=METHODS)])
    async with serving(app, way.socket) as url:
        way.port = urlsplit(url).port or 0
        try:
            yield way
        finally:
            way.end()
    await way.close()
