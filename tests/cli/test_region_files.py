"""`navarch nats-config region`: its files, what is typed wrong, and real servers that read them."""

import asyncio
import json
import shutil
import subprocess
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from schemas.names import InvalidNameError
from schemas.permissions import node_inbox
from schemas.settings import NatsSettings
from schemas.topology import HEARTBEATS
from services.bus.nats.credentials_file import claims_of, claims_of_token
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.bus.topology_setup import set_up
from services.cli import region_files
from services.cli.bus_keys import KeyFiles
from services.cli.nats_config_files import ACCOUNTS, CONF, BusDirectory
from services.cli.region_files import CREDENTIALS, LEAFNODES, REGIONS
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError, NavarchError
from services.primitives.free_ports import free_ports
from tests.cli.test_nats_config import ConfiguredServer, nats_config, written
from tests.support.inprocess import eventually, path_of

ANY_PORT = ("--listen", "127.0.0.1:-1", "--http", "127.0.0.1:-1")
OPTIONS = ("--pool", "eu", "--pool", "eu-spot", "--hub", "127.0.0.1")


def region(bus: Path, *options: str, name: str = "eu") -> str:
    """Run the command for a region."""
    return nats_config("region", name, "--dir", str(bus), *(options or OPTIONS))


def claims(bus: Path) -> dict[str, object]:
    """Return the claims of the region's credentials."""
    return claims_of((bus / REGIONS / "eu" / CREDENTIALS).read_text())


def test_the_folder_has_no_key_of_the_fleet(tmp_path: Path) -> None:
    """The folder has one login of its own, and public keys."""
    bus = written(tmp_path, "--no-tls")
    out = region(bus)

    folder = bus / REGIONS / "eu"
    files = {str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()}
    texts = "".join((folder / each).read_text() for each in files)
    seeds = [each.read_text().strip() for each in (bus / "keys").glob("*.nk")]
    assert files == {ACCOUNTS, CONF, CREDENTIALS}
    assert seeds
    assert not [each for each in seeds if each in texts]
    assert claims(bus)["nats"]["tags"] == ["role:region", "pool:eu", "pool:eu-spot"]  # type: ignore[index]
    assert "`include ./leafnodes.conf`" in out
    assert "region-eu  region  valid" in nats_config("user", "list", "--dir", str(bus))
    assert {each.stat().st_mode & 0o077 for each in folder.rglob("*")} == {0}


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    """A second run asks for no include that is there."""
    bus = written(tmp_path, "--no-tls")
    region(bus)
    before = claims(bus)
    with (bus / CONF).open("a") as conf:
        conf.write(f"include ./{LEAFNODES}\n")

    again = region(bus)

    assert claims(bus) == before
    assert CREDENTIALS not in again
    assert "include" not in again


def test_other_pools_keep_the_key_and_a_revoked_one_is_not_used_again(tmp_path: Path) -> None:
    """`user revoke` ends whatever was signed for the revoked key."""
    bus = written(tmp_path, "--no-tls")
    region(bus)
    first = claims(bus)
    region(bus, "--pool", "eu", "--hub", "127.0.0.1")
    narrower = claims(bus)
    nats_config("user", "revoke", "region-eu", "--dir", str(bus))
    region(bus)

    assert narrower["sub"] == first["sub"]
    assert narrower["nats"]["tags"] == ["role:region", "pool:eu"]  # type: ignore[index]
    assert claims(bus)["sub"] != first["sub"]


def test_another_key_of_the_role_makes_other_credentials(tmp_path: Path) -> None:
    """Nothing of the old key is left that would delay the end of `rotate regions`."""
    bus = written(tmp_path, "--no-tls")
    region(bus)
    first = claims(bus)
    directory = BusDirectory(bus)
    files: KeyFiles = directory.key_files()
    files.renew("role-region")
    directory.write_accounts(directory.fleet(), datetime.now(UTC))
    region(bus)

    (user,) = directory.users()
    assert claims(bus)["iss"] != first["iss"]
    assert user.signer == claims(bus)["iss"]


def test_a_node_that_was_revoked_is_refused_there_too(tmp_path: Path) -> None:
    """Once the region's server has the files of a later run."""
    bus = written(tmp_path, "--no-tls")
    region(bus)
    nats_config("agent", "eu/n1", "--dir", str(bus))
    (node,) = [each for each in BusDirectory(bus).users() if each.role == "agent"]
    nats_config("user", "revoke", "eu/n1", "--dir", str(bus))
    region(bus)

    text = (bus / REGIONS / "eu" / ACCOUNTS).read_text()
    found = [claims_of_token(each) for each in text.split() if each.startswith("eyJ")]
    assert [each for each in found if node.key in each.get("nats", {}).get("revocations", {})]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--pool", "eu", "--hub", "https://x"), "--hub 'https://x' is no server: write HOST"),
        (("--pool", "eu", "--hub", "127.0.0.1:0"), "is no server"),
        (("--pool", "eu", "--hub", "a:b:c"), "is no server"),
        (("--pool", "e.u", "--hub", "127.0.0.1"), "pool"),
        (("--pool", ">", "--hub", "127.0.0.1"), "pool"),
    ],
)
def test_what_is_typed_wrong_is_named_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    """A pool with a wildcard would be every pool."""
    bus = written(tmp_path, "--no-tls")

    with pytest.raises((NavarchError, InvalidNameError), match=says):
        region(bus, *options)

    assert not (bus / REGIONS).exists()


def test_a_bus_with_certificates_needs_the_servers_name(tmp_path: Path) -> None:
    """A missing server name is refused, and a directory of no bus is named."""
    with pytest.raises(NavarchError, match=r"has no accounts\.conf"):
        region(tmp_path / "nothing")
    with pytest.raises(NavarchError, match="--host"):
        region(written(tmp_path))
    with pytest.raises(InvalidNameError, match="region"):
        region(tmp_path / "bus", name="e/u")


async def test_servers_and_agents_use_the_written_files_with_tls(tmp_path: Path) -> None:
    """The region's server proves who it is to agents, and the fleet's to it."""
    bus = written(tmp_path, "--host", "127.0.0.1")
    (port,) = free_ports(1)
    hub = ("--hub", f"127.0.0.1:{port}", "--host", "127.0.0.1")
    region(bus, "--pool", "eu", *hub, *ANY_PORT)
    nats_config("user", "add", "root", "--role", "admin", "--dir", str(bus))
    nats_config("agent", "eu/n1", "--dir", str(bus))
    with (bus / CONF).open("a") as conf:
        conf.write(f"include ./{LEAFNODES}\n")
    authority = str(bus / REGIONS / "eu" / "tls" / "ca.pem")
    async with AsyncExitStack() as running:
        urls = []
        for name, file in (("hub", bus / CONF), ("region", bus / REGIONS / "eu" / CONF)):
            server = ConfiguredServer(tmp_path / name, config=file, name=name)
            urls.append((await server.start()).replace("nats://", "tls://"))
            running.push_async_callback(server.kill)
        logins = (("root", urls[0], "_INBOX"), ("agent-eu-n1", urls[1], node_inbox("eu", "n1")))
        buses = []
        for name, url, box in logins:
            settings = NatsSettings(
                url=url, creds_file=str(bus / "creds" / f"{name}.creds"), tls_ca_file=authority
            )
            options = ConnectOptions(settings=settings, name=name, inbox_prefix=box)
            buses.append(await NatsBus.connect(options, seconds_max=20))
            running.push_async_callback(buses[-1].close)
        admin, agent = buses
        await set_up(admin, SystemClock(), replicas=1)

        async def beats() -> bool:
            with suppress(BusError):
                return bool(await agent.put(HEARTBEATS, "eu.n1", b"{}", ttl_seconds=60))
            return False

        await eventually(beats, within_seconds=20)
        assert await admin.get(HEARTBEATS, "eu.n1") is not None


async def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands run in order, with the page's hosts as folders.

    The region's server is connected in the end.
    """
    bus, there = written(tmp_path, "--host", "127.0.0.1"), tmp_path / "host"
    (port,) = free_ports(1)
    monkeypatch.chdir(tmp_path)
    hub = ConfiguredServer(tmp_path / "hub", config=bus / CONF, name="hub")
    started = ConfiguredServer(tmp_path / "region", config=there / CONF, name="region-eu")
    monkeypatch.setenv("NAVARCH_NATS_URL", (await hub.start()).replace("nats://", "tls://"))
    try:
        for line in page_commands():
            match line.split():
                case ["navarch", "nats-config", *arguments]:
                    await asyncio.to_thread(nats_config, *arguments)
                case ["nats-server", "--signal", "stop"]:
                    leafnodes = bus / LEAFNODES
                    leafnodes.write_text(leafnodes.read_text().replace("7422", str(port)))
                    await hub.restart()
                case ["echo", *_]:
                    subprocess.run(line, shell=True, check=True)
                case ["scp", "-r", source, _]:
                    shutil.copytree(source, there)
                    conf = (there / CONF).read_text().replace("/etc/navarch/region", str(there))
                    conf = conf.replace("nats1.example.com:7422", f"127.0.0.1:{port}")
                    (there / CONF).write_text(conf.replace("127.0.0.1:8222", "127.0.0.1:-1"))
                case ["ssh", _, "nats-server", *_]:
                    await started.start()
                case ["curl", "-s", _]:
                    assert await eventually(lambda: leafnodes_of(started), within_seconds=20) == 1
                case _:
                    raise AssertionError(line)
    finally:
        await hub.kill()
        await started.kill()


def page_commands() -> list[str]:
    """The commands of the page's section, continued lines joined, without comments."""
    section = path_of("docs/regions.md").read_text()
    block = section.partition("```bash\n")[2].partition("```")[0].replace("\\\n", "")
    return [line.partition(" #")[0].strip() for line in block.splitlines()]


async def leafnodes_of(server: ConfiguredServer) -> int:
    """Return how many leaf nodes a server is connected to."""
    (ports,) = (server.directory / "ports").glob("*.ports")
    url = json.loads(ports.read_text())["monitoring"][0]
    async with httpx.AsyncClient() as client:
        return int((await client.get(f"{url}/leafz")).json()["leafnodes"])


def test_the_certificate_is_renewed_by_a_later_run(tmp_path: Path) -> None:
    """The certificate is renewed in the last third of its year, no earlier."""
    bus = written(tmp_path, "--host", "127.0.0.1")
    pem = bus / REGIONS / "eu" / "tls" / "server.pem"
    texts = []
    for days in (0, 30, 300):
        region_files.write_region(
            bus,
            "eu",
            datetime.now(UTC) + timedelta(days=days),
            pools=["eu"],
            hubs=["127.0.0.1"],
            hosts=["127.0.0.1"],
            listen="127.0.0.1:-1",
            http="127.0.0.1:-1",
        )
        texts.append(pem.read_text())

    assert texts[0] == texts[1] != texts[2]
