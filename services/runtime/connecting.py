"""Who connects to the bus, and with what credentials."""

import ssl
from dataclasses import dataclass
from typing import Any

from schemas.settings import NatsSettings


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Who connects, and how."""

    settings: NatsSettings
    name: str
    inbox_prefix: str = "_INBOX"


def credentials(settings: NatsSettings) -> dict[str, Any]:
    """The client's arguments for whatever the settings name; none for an open server."""
    found: dict[str, Any] = {}
    if settings.user:
        found |= {"user": settings.user, "password": settings.password}
    if settings.creds_file:
        found["user_credentials"] = settings.creds_file
    if settings.tls_ca_file:
        found["tls"] = ssl.create_default_context(cafile=settings.tls_ca_file)
    return found
