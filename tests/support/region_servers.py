"""Servers of regions, with the files that `navarch nats-config region` writes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import ACCOUNTS, CONF
from services.cli.region_files import LEAFNODES, REGIONS, write_region
from services.primitives.free_ports import LOOPBACK, free_ports
from tests.support.secured import Secured, nats_config, serving_secured

ANY_PORT = "127.0.0.1:-1"


class RegionServer(EmbeddedServer):
    """A server with a configuration that is complete."""

    def _written_config(self) -> Path:
        assert self._config is not None
        return self._config

    @property
    def log(self) -> str:
        """Return what the server logged."""
        return (self.directory / "nats-server.log").read_text()


@dataclass(frozen=True, slots=True)
class ServedRegion:
    """The fleet's server, and that of a region, each with the credentials of everybody."""

    hub: Secured
    region: Secured
    server: RegionServer
    leaf_port: int


def written_region(
    directory: Path, pools: Sequence[str], hub: str = LOOPBACK, port: int = 0
) -> tuple[Path, int]:
    """The configuration of the fleet's server, and the port at which it accepts the region's.

    Region `eu` has a folder in `directory`.
    """
    nats_config(directory)
    port = port or free_ports(1)[0]
    write_region(
        directory,
        "eu",
        datetime.now(UTC),
        pools=pools,
        hubs=[f"{hub}:{port}"],
        hosts=(),
        listen=ANY_PORT,
        http=ANY_PORT,
    )
    config = directory / "hub.conf"
    config.write_text((directory / ACCOUNTS).read_text() + (directory / LEAFNODES).read_text())
    return config, port


@asynccontextmanager
async def serving_region(folder: Path, pools: Sequence[str]) -> AsyncIterator[ServedRegion]:
    """Provide both servers on this host."""
    directory = folder / "bus"
    config, port = written_region(directory, pools)
    async with serving_secured(directory, folder / "hub", config) as hub:
        server = RegionServer(folder / "region", config=directory / REGIONS / "eu" / CONF)
        await server.start()
        try:
            region = Secured(server, directory)
            yield ServedRegion(hub, region, server, port)
        finally:
            await server.kill()


async def connected(server: Secured, who: str) -> NatsBus:
    """Return a connection of a role at one of the servers."""
    return await NatsBus.connect(server.options(who), seconds_max=20)
