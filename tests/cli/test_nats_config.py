"""`navarch nats-config`: certificates and people, on a real server that reads what it writes."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from schemas.account_rules import Account
from schemas.fleet_queries import Expiry
from schemas.names import InvalidNameError
from schemas.permissions import VIEWER, inbox, rules
from schemas.settings import NatsSettings
from services.bus.nats.connection_expiry import expiries, expiring
from services.bus.nats.connection_options import credentials
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.cli import bus_client, bus_users, certificates
from services.cli.app import app
from services.cli.bus_client import connect_fleet, user_options
from services.cli.bus_users import BusUser
from services.cli.key_rotation import push
from services.cli.nats_config_files import ACCOUNTS, CONF, add_user, server_hosts
from services.primitives.errors import NavarchError, Unavailable

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = 365 * DAY


def nats_config(*arguments: str) -> str:
    """Run the command; return what it prints."""
    ran = CliRunner().invoke(app, ["nats-config", *arguments])
    if isinstance(ran.exception, (NavarchError, InvalidNameError)):
        raise ran.exception
    assert 0 == ran.exit_code, ran.output
    return ran.output


class ConfiguredServer(EmbeddedServer):
    """Runs a server with nats.conf itself."""

    def _written_config(self) -> Path:
        assert self._config is not None
        return self._config


def written(directory: Path, *options: str) -> Path:
    """A directory that `navarch nats-config write` has made."""
    store = ("--store", str(directory / "js"), "--http", "127.0.0.1:-1")
    nats_config("write", "--dir", str(directory / "bus"), *store, *options)
    return directory / "bus"


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[ConfiguredServer]:
    """Serve with the files in `directory`."""
    conf = directory / CONF
    # nats-server reloads nothing where an argument and its configuration name it differently.
    conf.write_text(f"server_name: nats-server\n{conf.read_text()}")
    server = ConfiguredServer(directory / "server", config=conf)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def settings(server: EmbeddedServer, directory: Path, who: str) -> NatsSettings:
    """Return the settings with which a service or a person connects with TLS."""
    return NatsSettings(
        url=server.url.replace("nats://", "tls://"),
        creds_file=str(directory / "creds" / f"{who}.creds"),
        tls_ca_file=str(directory / "tls" / "ca.pem"),
    )


def service_options(server: EmbeddedServer, directory: Path) -> ConnectOptions:
    """Return the options with which a service connects."""
    found = settings(server, directory, "metrics")
    return ConnectOptions(settings=found, name="metrics", inbox_prefix=inbox("metrics"))


async def test_the_files_make_a_server_with_tls(tmp_path: Path) -> None:
    """A client with the authority connects; one that does not know it, and one without TLS, not."""
    directory = written(tmp_path, "--host", "bus.example.com")
    async with serving(directory) as server:
        options = service_options(server, directory)
        bus = await NatsBus.connect(options, seconds_max=20)
        found = bus.expiries()
        await bus.close()
        with pytest.raises((nats.errors.Error, OSError, ssl.SSLError)):
            await nats.connect(server.url, connect_timeout=2, allow_reconnect=False)
    lives = [(each.at - datetime.now(UTC)) // DAY for each in found]

    assert [certificates.CERTIFICATE_DAYS - 1, certificates.AUTHORITY_DAYS - 1] == lives
    for file in ("tls/server.pem", "keys/ca.key"):
        assert 0o600 == (directory / file).stat().st_mode & 0o777


async def test_a_client_waits_for_tls_where_a_server_returns_without(tmp_path: Path) -> None:
    """A client sends nothing to a server without TLS, and is back as soon as TLS is."""
    directory = written(tmp_path)
    conf = directory / CONF
    async with serving(directory) as server:
        encrypted = conf.read_text()
        options = service_options(server, directory)
        bus = await NatsBus.connect(options, seconds_max=20)
        errors: list[str] = []
        bus._client._error_cb = lambda error: record(errors, error)
        conf.write_text(
            encrypted[: encrypted.index("tls {")] + encrypted[encrypted.index("jetstream") :]
        )
        await server.restart()
        async with asyncio.timeout(20):
            while not any("offers no TLS" in each for each in errors):
                await asyncio.sleep(0.01)
        connected = bus.connected
        conf.write_text(encrypted)
        await server.restart()
        async with asyncio.timeout(20):
            while not bus.connected:
                await asyncio.sleep(0.01)
        await bus.close()

    assert not connected


async def record(errors: list[str], error: Exception) -> None:
    """Keep an error of the client."""
    errors.append(str(error))


async def test_a_revoked_person_or_node_is_refused_and_others_go_on(tmp_path: Path) -> None:
    """A revocation applies at once, when the accounts are pushed; a second push does nothing."""
    directory = written(tmp_path)
    for name in ("alice", "bob"):
        add_user(directory, name, VIEWER, datetime.now(UTC), DAY)
    for node in ("n7", "n8"):
        said = nats_config("agent", f"training/{node}", "--valid", "1d", "--dir", str(directory))
    assert "navarch nats-config user revoke training/n8" in said
    revoked = {"alice": "alice", "agent-training-n7": "training/n7"}
    async with serving(directory) as server:
        options = {
            name: user_options(settings(server, directory, name))
            for name in (*revoked, "bob", "agent-training-n8")
        }
        buses = {name: await NatsBus.connect(each) for name, each in options.items()}
        for file, name in revoked.items():
            (tmp_path / file).write_text((directory / f"creds/{file}.creds").read_text())
            nats_config("user", "revoke", name, "--dir", str(directory))
        found = NatsSettings(url=server.url.replace("nats://", "tls://"))
        pushed = ["default-agents", "default-users"]
        assert pushed == await push(directory, found, datetime.now(UTC))
        assert [] == await push(directory, found, datetime.now(UTC))
        async with asyncio.timeout(20):
            while any(buses[each].connected for each in revoked):
                await asyncio.sleep(0.01)
        for file in revoked:
            copy = str(tmp_path / file)
            stolen = msgspec.structs.replace(options[file].settings, creds_file=copy)
            with pytest.raises(Unavailable):
                await NatsBus.connect(user_options(stolen), seconds_max=1)
        connected = {name for name, each in buses.items() if each.connected}
        for each in buses.values():
            await each.close()

    assert connected == {"bob", "agent-training-n8"}
    rows = nats_config("user", "list", "--dir", str(directory)).splitlines()[1:]
    assert [
        "alice viewer revoked",
        "bob viewer valid",
        "training/n7 agent revoked",
        "training/n8 agent valid",
    ] == [" ".join(r.split()[:3]) for r in rows]


async def test_an_expired_person_learns_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the command that renews the credentials."""
    monkeypatch.setattr(bus_client, "CONNECT_SECONDS_MAX", 0.5)
    directory = written(tmp_path, "--no-tls")
    add_user(directory, "alice", VIEWER, datetime.now(UTC) - 2 * DAY, DAY)
    async with serving(directory) as server:
        found = NatsSettings(url=server.url, creds_file=str(directory / "creds" / "alice.creds"))
        with pytest.raises(NavarchError, match=r"alice\.creds expired at .*nats-config user renew"):
            async with connect_fleet(found):
                pass


def test_writing_again_renews_the_servers_certificate_in_time(tmp_path: Path) -> None:
    """The certificate is renewed in its last third, or for another name.

    The authority and everything else stay.
    """
    key = certificates.new_key()
    authority = certificates.new_authority("tests", key, NOW)
    names = ["a.example", "10.0.0.1"]
    made = certificates.new_certificate(authority, key, "nats-server", names, NOW)
    same = ["10.0.0.1", "a.example"]
    for at, hosts, current in (
        (NOW, same, True),
        (NOW + 200 * DAY, same, True),
        (NOW + 300 * DAY, same, False),
        (NOW, ["a.example"], False),
    ):
        assert current == certificates.is_current(made, authority, hosts, at), (at, hosts)
    other = certificates.new_authority("tests", certificates.new_key(), NOW)
    assert not certificates.is_current(made, other, same, NOW)
    directory = written(tmp_path, "--host", "a.example")
    before = {each: each.read_bytes() for each in directory.rglob("*") if each.is_file()}
    written(tmp_path, "--host", "a.example")
    assert before == {each: each.read_bytes() for each in directory.rglob("*") if each.is_file()}
    written(tmp_path, "--host", "b.example")
    changed = {each.name for each, text in before.items() if each.read_bytes() != text}
    assert {"server.pem", "clients.yaml"} == changed


def test_without_tls_the_output_says_what_that_means(tmp_path: Path) -> None:
    """The server's configuration has no tls section, the clients' no authority."""
    said = nats_config("write", "--dir", str(tmp_path / "bus"), "--no-tls")

    assert "Use it on a private network only" in said
    assert "tls {" not in (tmp_path / "bus" / CONF).read_text()
    assert "tls_ca_file" not in (tmp_path / "bus" / "clients.yaml").read_text()


@pytest.mark.parametrize(
    ("urls", "hosts"),
    [
        ("nats://127.0.0.1:4222", ["127.0.0.1", "localhost"]),
        ("tls://a.example:4222,tls://b.example", ["a.example", "b.example"]),
        ("tls://[::1]:4222", ["::1"]),
        ("", []),
    ],
)
def test_the_certificate_has_the_hosts_of_the_urls(urls: str, hosts: list[str]) -> None:
    """The certificate also has the given hosts and this host's own names."""
    found = server_hosts(["given.example"], [urls])

    assert "given.example" == found[0]
    assert {"given.example", "localhost", "127.0.0.1", *hosts} == set(found)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("add", "alice", "--role", "viewer"), "revoke them first"),
        (
            ("add", "bob", "--role", "root"),
            "there is viewer, scheduler, sink-reader, operator, pool-admin, admin",
        ),
        (("add", "notifier", "--role", "viewer"), "name of a service"),
        (("add", "bob", "--role", "viewer", "--valid", "soon"), "--valid: 'soon'"),
        (("add", "bob", "--role", "viewer", "--valid", "0s"), "more than 0"),
        (("revoke", "bob"), "no user 'bob'.* there is: alice"),
        (("revoke", "training/alice"), "no user 'training/alice'"),
    ],
)
def test_a_mistyped_user_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], problem: str
) -> None:
    """A mistyped user is refused, and nothing is written."""
    directory = written(tmp_path, "--no-tls")
    add_user(directory, "alice", VIEWER, datetime.now(UTC), DAY)
    before = (directory / ACCOUNTS).read_bytes()
    with pytest.raises(NavarchError, match=problem):
        nats_config("user", *arguments, "--dir", str(directory))

    assert before == (directory / ACCOUNTS).read_bytes()


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200), st.booleans()), max_size=30))
def test_a_revoked_key_is_refused_until_it_has_expired_and_no_longer(
    drawn: list[tuple[int, int, bool]],
) -> None:
    """Expired revocations go, so the account's token does not grow for ever."""
    users = [
        BusUser(
            name=f"u{number}",
            role=VIEWER,
            key=f"U{number}",
            issued_at=NOW - days * DAY,
            expires_at=NOW + (valid - days) * DAY,
            revoked_at=NOW if revoked else None,
        )
        for number, (days, valid, revoked) in enumerate(drawn)
    ]
    found = bus_users.revocations(users, rules(), NOW).get(Account.USERS, {})

    assert {each.key for each in users if each.revoked_at and each.expires_at > NOW - DAY} == set(
        found
    )
    assert all(
        until >= each.issued_at.timestamp()
        for each in users
        for until in [found.get(each.key, 2e10)]
    )


def test_what_expires_soon_is_a_failure_with_its_remedy(tmp_path: Path) -> None:
    """The failure begins as early as the setting says.

    The services report it, and `status` shows it.
    """
    rows = [(40, []), (20, ["in 20 days"]), (0, ["within a day"]), (-2, ["expired at"])]
    for days, reasons in rows:
        at = NOW + days * DAY + timedelta(hours=1)
        found = expiring([Expiry(what="x", at=at, remedy="do y")], NOW, 30 * 86_400)
        assert len(reasons) == len(found)
        for reason, each in zip(reasons, found, strict=True):
            assert reason in each.reason
            assert ("expires-soon", "x", "do y") == (each.failure, each.about, each.remedy)
    directory = written(tmp_path, "--no-tls")
    add_user(directory, "alice", VIEWER, NOW, 90 * DAY)
    file = str(directory / "creds" / "alice.creds")
    options = ConnectOptions(settings=NatsSettings(creds_file=file), name="navarch-cli")
    assert [NOW + 90 * DAY] == [each.at for each in expiries(options, None)]
    assert credentials(options)
