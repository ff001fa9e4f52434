"""Readiness, liveness and metrics of a process over HTTP, and limits on connections."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from schemas.settings import HttpSettings
from services.runtime.metric_exposition import exposition
from services.settings.plugin_loader import setting_error

PEER_CERTIFICATE: Final = "navarch-peer-certificate"
"""Key in a request's state: what `ssl.SSLSocket.getpeercert()` says; empty without one."""
HEAD_SECONDS_MAX: Final = 10.0
"""From the connection, or from a request's first byte, to the end of its head."""


class PromptH11Protocol(H11Protocol):
    """HTTP/1.1 with that limit; an answer that is under way, as an event stream, has none."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peercert") or {}
        self.app_state = {**self.app_state, PEER_CERTIFICATE: peer}
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait on for the rest, but no longer."""
        super().data_received(data)
        if self._is_answering():
            self._cancel()
        elif self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._cancel()
        super().connection_lost(exc)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._late = self.loop.call_later(HEAD_SECONDS_MAX, self._end)

    def _cancel(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if not self._is_answering():
            self.transport.close()


class WebServer(uvicorn.Server):
    """One among the other works of a process."""

    def __init__(self, app: Any, **more: Any) -> None:
        """Serve `app`; `more`: further settings of uvicorn."""
        super().__init__(
            uvicorn.Config(
                app,
                http=PromptH11Protocol,
                log_config=None,
                lifespan="off",
                access_log=False,
                **more,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def check_port(settings: HttpSettings, file: Path | None) -> None:
    """Raise ConfigurationError if the endpoint's address cannot be used."""
    try:
        socket.create_server((settings.host, settings.port)).close()
    except OSError as error:
        raise setting_error(
            "http.port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "http.host",
            f"{settings.host}:{settings.port} cannot be used ({error.strerror or error}); write "
            "another, or port 0 for any free one",
            file,
        ) from error


class HttpEndpoint:
    """`/livez`, `/readyz` (and `/healthz`), `/metrics`."""

    def __init__(
        self,
        settings: HttpSettings,
        registry: CollectorRegistry,
        ready: Callable[[], Awaitable[str]],
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`ready` returns why the process is not ready, empty where it is."""
        self._registry = registry
        self._ready = ready
        self._refresh = refresh
        self._socket = socket.create_server((settings.host, settings.port))
        # asyncio sets it only on sockets that name their protocol; without it an answer's body
        # waits 40 ms for the acknowledgement of its head.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        routes = [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/healthz", self._readyz),
            Route("/metrics", self._metrics),
        ]
        self._server = WebServer(Starlette(routes=routes))

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Take no more requests."""
        self._server.should_exit = True

    async def _livez(self, _: Request) -> Response:
        # Answered by the very loop that does the work: an answer is the proof.
        return PlainTextResponse("alive\n")

    async def _readyz(self, _: Request) -> Response:
        problem = await self._ready()
        return PlainTextResponse(f"{problem or 'ready'}\n", status_code=503 if problem else 200)

    async def _metrics(self, request: Request) -> Response:
        if self._refresh is not None:
            await self._refresh()
        text, kind = await exposition(self._registry, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})
