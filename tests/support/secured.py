"""A real server that asks for credentials, started with what `navarch nats-config` writes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats
import pytest

from schemas import permissions
from schemas.permissions import USER_ROLES
from schemas.settings import NatsSettings
from services.bus.nats.connection_options import credentials
from services.bus.nats.credentials_file import CREDENTIALS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_accounts import (
    Key,
    agent_token,
    bootstrap_credentials,
    new_seed,
    read_agent_keys,
)
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.cli.bus_client import user_options
from services.cli.nats_config_files import ACCOUNTS, SIGNING_FILE, add_user, write
from services.primitives.clock import SystemClock

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WHERE = {"store": "/data", "listen": "127.0.0.1:4222", "http": "127.0.0.1:8222"}


def nats_config(directory: Path) -> Path:
    """Write what `navarch nats-config` writes, with one person of each role, named after it."""
    write(directory, "tests", NOW, **WHERE)
    for role in USER_ROLES:
        add_user(directory, role, role, NOW, timedelta(days=3650))
    return directory


class Secured:
    """A server that asks for credentials, and those of everybody."""

    def __init__(self, server: EmbeddedServer, directory: Path) -> None:
        self.server = server
        self.directory = directory

    @property
    def url(self) -> str:
        """Return the server's URL."""
        return self.server.url

    def file(self, who: str) -> Path:
        """Credentials of a user; those of nodes are made as the provisioner makes them.

        `agent:<pool>/<node>` or `bootstrap:<pool>/<node>`.
        """
        kind, _, place = who.partition(":")
        if not place or kind == permissions.POD:
            return self.directory / "creds" / f"{who}.creds"
        pool, _, node = place.partition("/")
        file = self.directory / f"{kind}-{pool}-{node}.creds"
        keys = read_agent_keys(self.directory / SIGNING_FILE)
        if kind == permissions.BOOTSTRAP:
            until = NOW + timedelta(days=3650)
            file.write_text(bootstrap_credentials(keys, pool, node, "launch", NOW, until))
            return file
        key = Key(new_seed("user"))
        made = agent_token(keys, pool, node, key.public, NOW, NOW + timedelta(days=3650))
        file.write_text(CREDENTIALS.format(token=made, seed=key.seed))
        return file

    def options(self, who: str, file: Path | None = None) -> ConnectOptions:
        """Return how they connect; `file`: with these credentials in place of those made here."""
        settings = NatsSettings(url=self.url, creds_file=str(file or self.file(who)))
        kind, _, place = who.partition(":")
        pool, _, node = place.partition("/")
        if kind == "agent":
            box = permissions.node_inbox(pool, node)
        elif kind == permissions.BOOTSTRAP:
            box = permissions.bootstrap_inbox(pool, node)
        elif kind == permissions.POD:
            box = permissions.pod_inbox(pool)
        elif who in set(USER_ROLES) - {permissions.ADMIN}:
            return user_options(settings)
        else:
            box = permissions.inbox(who)
        most = permissions.rules()[kind].payload_bytes_max
        return ConnectOptions(settings=settings, name=who, inbox_prefix=box, message_bytes_max=most)

    async def refused(
        self, who: str, wanted: list[tuple[str, str]], file: Path | None = None
    ) -> set[tuple[str, str]]:
        """Try to publish or subscribe; return what the server did not let them."""
        errors: list[str] = []

        async def error(each: Exception) -> None:
            errors.append(str(each).lower())

        options = self.options(who, file)
        client = await nats.connect(
            self.url, error_cb=error, inbox_prefix=options.inbox_prefix, **credentials(options)
        )
        mine = client.new_inbox()
        back = await client.subscribe(mine)
        for what, subject in wanted:
            if what == "publish":
                await client.publish(subject, b"{}")
            else:
                await client.subscribe(subject)
        # The server answers in order: when this is back, every refusal is, too.
        await client.publish(mine, b"")
        await back.next_msg(timeout=60)
        await client.close()
        return {
            (what, subject)
            for what, subject in wanted
            if any(
                "permissions violation" in each
                and ("subscription" in each) == (what == "subscribe")
                and f'"{subject.lower()}"' in each
                for each in errors
            )
        }


@asynccontextmanager
async def serving_secured(
    directory: Path,
    store: Path,
    config: Path | None = None,
    host: str = "",
    through: Sequence[str] = (),
) -> AsyncIterator[Secured]:
    """Provide a server with the configuration in `directory`, and the whole topology.

    `config`: a file in place of accounts.conf. `host`: the address at which it listens. `through`:
    the command that starts it.
    """
    arguments = ("--addr", host) if host else ()
    server = EmbeddedServer(
        store, config=config or directory / ACCOUNTS, arguments=arguments, through=through
    )
    await server.start()
    found = Secured(server, directory)
    bus = await NatsBus.connect(found.options("admin"), seconds_max=20)
    await set_up(bus, SystemClock(), replicas=1)
    await bus.close()
    try:
        yield found
    finally:
        await server.kill()


@pytest.fixture(scope="module")
def nats_config_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide the directory that `navarch nats-config` writes."""
    return nats_config(tmp_path_factory.mktemp("nats-config"))


@pytest.fixture
async def secured(nats_config_directory: Path, tmp_path: Path) -> AsyncIterator[Secured]:
    """A server with that configuration and the whole topology."""
    async with serving_secured(nats_config_directory, tmp_path / "nats") as found:
        yield found
