"""docs/production.md from its second step to its drill: three servers, TLS, every service.

The servers are in network namespaces of this machine, each with files of its own; the services are
processes instead of systemd units, and nodes are of the provider `local`.
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from schemas.permissions import GATEWAY, SERVICES
from services.bus.nats.embedded_server import server_binary
from services.primitives.free_ports import free_ports
from tests.support import inprocess
from tests.support.network import Network, missing

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT: Final = Path(__file__).parents[2]
SERVERS: Final = ("n1", "n2", "n3")
TOKEN: Final = "token-of-the-operator-ada"
SECONDS_MAX: Final = 240.0
LOOK_SECONDS: Final = 0.5


@pytest.fixture(autouse=True)
def network_namespace_support() -> None:
    """Skip where there can be no machines."""
    if reason := missing():
        pytest.skip(reason)


class Place:
    """Where the administrator works, and the files of the services' host."""

    def __init__(self, root: Path, network: Network) -> None:
        self.root = root
        self.network = network
        self.etc = root / "etc"
        self.config = self.etc / "navarch.yaml"
        self.user = "ada"
        (root / "admin").mkdir()

    async def navarch(self, *arguments: str, **more: str) -> str:
        """Run a command as the page says; its output."""
        status, text = await self.run(*arguments, **more)
        assert status == 0, (arguments, text)
        return text

    async def until(self, words: str, *arguments: str) -> None:
        """Run a command until it succeeds and says so."""
        status, text = -1, ""
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_MAX):
                while status != 0 or words not in text:
                    await asyncio.sleep(LOOK_SECONDS)
                    status, text = await self.run(*arguments)
        assert (status, words in text) == (0, True), (arguments, text)

    async def run(self, *arguments: str, **more: str) -> tuple[int, str]:
        """Run a command with the page's two variables; its exit code and all its words."""
        login = self.root / "admin" / "bus" / "creds" / f"{self.user}.creds"
        own = {"NAVARCH_CONFIG": str(self.config)} if self.config.exists() else {}
        own |= {"NAVARCH_NATS_CREDS_FILE": str(login)} if login.exists() else {}
        status, out, err = await inprocess.navarch(
            *arguments, cwd=self.root / "admin", **(own | more)
        )
        return status, out if status == 0 else out + err

    def server_files(self, name: str) -> Path:
        """Copy to a server what the page names, and nothing else; its configuration."""
        bus, own = self.root / "admin" / "bus", self.root / name / "bus"
        (own / "routes").mkdir(parents=True)
        shutil.copytree(bus / "tls", own / "tls")
        for each in ("accounts.conf", f"nats-{name}.conf"):
            shutil.copy(bus / each, own / each)
        for each in ("ca.pem", f"{name}.pem"):
            shutil.copy(bus / "routes" / each, own / "routes" / each)
        conf = own / f"nats-{name}.conf"
        text = conf.read_text().replace("/etc/navarch/bus", str(own))
        conf.write_text(text.replace("/var/lib/nats", str(self.root / name / "store")))
        return conf

    def service_files(self, port: int) -> None:
        """Lay out the files of the services' host, and its configuration."""
        bus = self.root / "admin" / "bus"
        shutil.copytree(bus / "creds", self.etc / "creds")
        shutil.copytree(bus / "tls", self.etc / "tls")
        for each in ("agent-signing.json", "revocation.json", "revoker.creds"):
            shutil.copy(bus / each, self.etc / each)
        clients = (bus / "clients.yaml").read_text().replace(str(bus), str(self.etc))
        own: dict[str, Any] = yaml.safe_load(clients)
        settings = {
            "fleet": "prod",
            "data_dir": str(self.root / "data"),
            **own,
            "agent": {"bus_url": own["nats"]["url"]},
            "providers": {"local": {"type": "local", "gpu_count": 1}},
            "pools": {
                "training": {
                    "provider": "local",
                    "instance_type": "local",
                    "gpu_count": 1,
                    "min_nodes": 0,
                    "max_nodes": 4,
                    "budget": {"max_unavailable": 1},
                }
            },
            "notifier": {"type": "noop"},
            "gateway": {"port": port, "tls_cert_file": str(self.etc / "tls" / "server.pem")},
        }
        self.config.write_text(yaml.safe_dump(settings))


@asynccontextmanager
async def running(*commands: tuple[tuple[str, ...], dict[str, str]]) -> AsyncIterator[None]:
    """Programs, each with more of an environment, until the end."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
    started = [
        await asyncio.create_subprocess_exec(
            *words,
            env=kept | more,
            cwd=ROOT,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        for words, more in commands
    ]
    try:
        yield
        assert [each.returncode for each in started] == [None] * len(started)
    finally:
        for each in started:
            if each.returncode is None:
                each.terminate()
        await asyncio.gather(*(each.wait() for each in started))


async def test_the_page_leads_to_a_fleet_that_replaces_a_node(tmp_path: Path) -> None:
    """Each step's check holds, a command needs two variables, and a backup is restored."""
    with Network(dict(zip(SERVERS, SERVERS, strict=True))) as network:
        place = Place(tmp_path, network)
        named = [f"--server={name}={network.address(name)}" for name in SERVERS]
        here = ("--store", "/var/lib/nats", "--server-dir", "/etc/navarch/bus")
        assert "wrote bus/clients.yaml" in await place.navarch(
            "nats-config", "write", "--fleet", "prod", *here, *named
        )
        program = str(server_binary())
        servers = [
            ((*network.through(name), program, "-c", str(place.server_files(name))), {})
            for name in SERVERS
        ]
        for name, role in (("ada", "operator"), ("root", "admin")):
            await place.navarch("nats-config", "user", "add", name, "--role", role)
        assert "ada" in await place.navarch("nats-config", "user", "list")
        async with running(*servers):
            await _services(place)


async def _services(place: Place) -> None:
    [port, lonely] = free_ports(2)
    place.service_files(port)
    assert "is valid" in await place.navarch("config", "validate", str(place.config))
    environment = {"NAVARCH_CONFIG": str(place.config), "NAVARCH_AUTH_TOKEN": TOKEN}
    modules = [each.replace("-", "_") for each in (*sorted(SERVICES), GATEWAY)]
    services = [((sys.executable, "-m", f"services.{each}"), environment) for each in modules]
    async with running(*services):
        await _checks(place, port)
        place.user = "root"
        await place.navarch("backup", str(place.root / "backup"))
    words = ("-a", "127.0.0.1", "-p", str(lonely), "-js", "-sd", str(place.root / "restored"))
    async with running(((str(server_binary()), *words), {})):
        url = f"nats://127.0.0.1:{lonely}"
        place.config.unlink()
        place.user = "none"
        out = await place.navarch("restore", str(place.root / "backup"), "--nats-url", url)
        assert "Restored: fleet prod" in out


async def _checks(place: Place, port: int) -> None:
    await place.until("it answers", "doctor")
    assert "FAIL" not in await place.navarch("workload", "check", "training")
    assert "sent" in await place.navarch("alerts", "test")
    http = {
        "NAVARCH_SERVER": f"https://127.0.0.1:{port}",
        "NAVARCH_CA_FILE": str(place.etc / "tls" / "ca.pem"),
        "NAVARCH_AUTH_TOKEN": TOKEN,
    }
    await place.navarch("scale", "training", "1", "--wait")
    [node] = json.loads(await place.navarch("list", "-o", "json", **http))
    assert "in service" in await place.navarch("timeline", node["id"])
    await _drill(place.root / "data" / "local" / node["id"])

    await place.until("replaced it", "why", node["id"])
    assert "scale to 1" in await place.navarch("audit", "--since", "1h", **http)
    await place.navarch("scale", "training", "0", "--wait")


async def _drill(folder: Path) -> None:
    start = json.loads((folder / "start.json").read_text())
    kept = {key: value for key, value in os.environ.items() if not key.startswith("NAVARCH_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent", "inject", "xid", "79", "--gpu", "0"),
        env=kept | start["environment"],
        cwd=ROOT,
    )
    assert await process.wait() == 0
