"""Connections to a server that a test has started."""

from schemas.settings import NatsSettings
from services.bus.nats.archive_bus import ArchiveBus
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus


async def connected(server: EmbeddedServer) -> NatsBus:
    """Return a connection without credentials."""
    settings = NatsSettings(url=server.url)
    return await NatsBus.connect(ConnectOptions(settings=settings, name="test"))


async def archive_connected(
    server: EmbeddedServer, kind: type[ArchiveBus] = ArchiveBus
) -> ArchiveBus:
    """The same, of an administrator who takes out streams and puts them in."""
    settings = NatsSettings(url=server.url)
    return await kind.connect(ConnectOptions(settings=settings, name="test"))
