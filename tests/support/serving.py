"""A web application on a free port of loopback, or behind a socket, for as long as a test needs."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from services.runtime.process_http import WebServer


@asynccontextmanager
async def serving(
    app: Starlette, path: str = "", *, identity: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[str]:
    """Serve it in this loop; its URL, without a slash at the end.

    `path`: of a Unix socket. `identity`: a file with certificate and key, for TLS.
    """
    if path:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(path)
    else:
        listening = socket.create_server((host, 0))
        # Without it an answer's body waits for the acknowledgement of its head.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    scheme = "https" if identity else "http"
    server = WebServer(app, ssl_certfile=identity or None)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"unix:{path}" if path else f"{scheme}://{host}:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await running
