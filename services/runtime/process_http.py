"""The endpoint answers over HTTP whether a process is alive and ready, and with its metrics."""

import asyncio
import contextlib
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from services.runtime.connection_slots import FILES_WANTED, ConnectionSlots
from services.runtime.http_protocol import HEAD_SECONDS_MAX, PromptH11Protocol, Slots
from services.runtime.metric_exposition import SharedExposition
from services.runtime.stranger_turns import StrangerTurns

PROBES_SHARE: Final = 4
"""One in so many of a process's files is for connections to its probes, which authenticate none."""


class WebServer(uvicorn.Server):
    """The server runs among the other works of a process."""

    def __init__(self, app: Any, files_share: int = 1, **more: Any) -> None:
        """Serve `app`; `more`: further settings of uvicorn.

        `files_share`: connections may take one in so many of the files that are for connections.
        """
        self._files_share = files_share
        fixed: dict[str, Any] = {"log_config": None, "lifespan": "off", "access_log": False}
        super().__init__(uvicorn.Config(StrangerTurns(app), http="h11", **fixed, **more))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, with slots, and with the time of a head for a TLS handshake."""
        slots: Slots = ConnectionSlots.within(allow_open_files() // self._files_share)
        config, loop = self.config, asyncio.get_running_loop()

        def protocol() -> PromptH11Protocol:
            return PromptH11Protocol(config, self.server_state, {}, loop, slots=slots)

        tls: dict[str, Any] = {"ssl": config.ssl, "ssl_handshake_timeout": HEAD_SECONDS_MAX}
        options = tls if config.ssl else {}
        self.servers = [
            await loop.create_server(protocol, sock=each, backlog=config.backlog, **options)
            for each in sockets or []
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def allow_open_files() -> int:
    """Raise this process's limit of open files to what the slots need, or as far as it may.

    Return the limit.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if most == resource.RLIM_INFINITY else min(FILES_WANTED, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    return wanted


class HttpEndpoint:
    """The endpoint answers `/livez`, `/readyz` (and `/healthz`) and `/metrics`."""

    def __init__(
        self,
        listening: socket.socket,
        registry: CollectorRegistry,
        ready: Callable[[], Awaitable[str]],
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`ready` returns why the process is not ready, empty where it is."""
        self._ready = ready
        self._exposition = SharedExposition(registry, refresh)
        self._socket = listening
        host, port = listening.getsockname()[:2]
        self.url = f"http://{host}:{port}"
        routes = [
            Route("/livez", self._livez),
            Route("/readyz", self._readyz),
            Route("/healthz", self._readyz),
            Route("/metrics", self._metrics),
        ]
        self._server = WebServer(Starlette(routes=routes), PROBES_SHARE)

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Take no more requests."""
        self._server.should_exit = True

    def close(self) -> None:
        """Free the port."""
        self._socket.close()

    async def _livez(self, _: Request) -> Response:
        # Answered by the very loop that does the work: an answer is the proof.
        return PlainTextResponse("alive\n")

    async def _readyz(self, _: Request) -> Response:
        problem = await self._ready()
        return PlainTextResponse(f"{problem or 'ready'}\n", status_code=503 if problem else 200)

    async def _metrics(self, request: Request) -> Response:
        text, kind = await self._exposition.text(request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind})
