"""A web application on a free port of loopback, for as long as a test needs it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve it in this loop; its URL, without a slash at the end."""
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await running
