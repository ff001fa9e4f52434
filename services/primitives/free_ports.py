"""Ports of this machine for servers that must find them free again after a restart."""

import random
import socket
from contextlib import ExitStack
from typing import Final

LOOPBACK: Final = "127.0.0.1"
PORT_MIN: Final = 10_240
PORT_MAX: Final = 32_767
"""Linux gives outgoing connections 32768 and up (ip_local_port_range): while a server is down, any
client, itself included as it connects again, can be given that server's port from there."""
TRIES_MAX: Final = 100


def free_ports(count: int, host: str = LOOPBACK, *, least: int = PORT_MIN) -> list[int]:
    """Ports that nothing has now, which no outgoing connection gets either.

    OSError: none was found in TRIES_MAX tries.
    """
    with ExitStack() as held:
        return [_bound(held.enter_context(socket.socket()), host, least) for _ in range(count)]


def _bound(taken: socket.socket, host: str, least: int) -> int:
    """Bind to a port by chance, as processes that start side by side must not take the same."""
    for _ in range(TRIES_MAX):
        port = random.randint(least, PORT_MAX)  # noqa: S311 (no secret)
        try:
            taken.bind((host, port))
        except OSError:
            continue
        return port
    raise OSError(f"no free port of {host} between {least} and {PORT_MAX}")
