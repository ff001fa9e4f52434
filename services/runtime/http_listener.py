"""Listens at configured addresses, and names the setting of one that cannot be used."""

import errno
import socket
from pathlib import Path

from schemas.settings import HttpSettings
from services.settings.plugin_loader import setting_error


def listen(host: str, port: int, keys: tuple[str, str], file: Path | None) -> socket.socket:
    """Listen; raise ConfigurationError if the address cannot be used.

    `keys`: the settings of the host and of the port.
    """
    try:
        found = socket.create_server((host, port))
    except OSError as error:
        raise setting_error(
            keys[error.errno in (errno.EADDRINUSE, errno.EACCES)],
            f"{host}:{port} cannot be used ({error.strerror or error}); write another, or port 0 "
            "for any free one",
            file,
        ) from error
    # asyncio sets it only on sockets that name their protocol; without it an answer's body waits
    # 40 ms for the acknowledgement of its head.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def check_port(settings: HttpSettings, file: Path | None) -> None:
    """Raise ConfigurationError if the endpoint's address cannot be used."""
    listen(settings.host, settings.port, ("http.host", "http.port"), file).close()
