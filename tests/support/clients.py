"""Connections to a server that a test has started."""

from schemas.settings import NatsSettings
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus


async def connected(server: EmbeddedServer) -> NatsBus:
    """A connection without credentials."""
    settings = NatsSettings(url=server.url)
    return await NatsBus.connect(ConnectOptions(settings=settings, name="test"))
