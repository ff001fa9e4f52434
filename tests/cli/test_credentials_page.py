"""Every command of docs/credentials.md, run against a real server that is in use."""

import asyncio
import os
import re
import shlex
import shutil
import signal
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import nats.errors
import pytest
from typer.testing import CliRunner

from schemas import permissions, subjects
from schemas.settings import NatsSettings
from schemas.topology import EVENTS, HEALTH_EVENTS
from services.bus.nats.connection_options import ConnectOptions
from services.bus.nats.credentials_file import CREDENTIALS
from services.bus.nats.nats_accounts import Key, agent_token, new_seed, read_agent_keys
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.cli.app import app
from services.cli.bus_certificates import AUTHORITY, CLIENTS
from services.cli.bus_client import user_options
from services.cli.nats_config_files import CONF, add_user
from services.health_monitor.fact_intake import FactIntake
from services.primitives.clock import SystemClock
from services.primitives.errors import BusError, NavarchError, Unavailable
from tests.cli.test_nats_config import ConfiguredServer

PAGE = Path(__file__).parents[2] / "docs/credentials.md"
ETC = "/etc/navarch/"
FACT = subjects.node_event("training", "n1", "fault")
DAY = timedelta(days=1)


def commands() -> list[str]:
    """The page's commands, in order; each is one line."""
    found = re.findall(r"^ *```bash\n(.*?)^ *```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in found for line in textwrap.dedent(block).splitlines()]


class Site:
    """The page's hosts, as folders; a server, an agent that reports, a service that consumes."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.bus = place / "bus"
        self.server = ConfiguredServer(
            place / "server", config=place / "bus-host/bus" / CONF, sync=False
        )
        self.reported = 0
        self.consumed = 0
        self.agent: NatsBus | None = None
        self.service: NatsBus | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._seed = new_seed("user")

    @property
    def url(self) -> str:
        """Return the server's URL with TLS."""
        return self.server.url.replace("nats://", "tls://")

    async def navarch(self, line: str) -> str:
        """Run one of our commands; its error is raised."""
        arguments = shlex.split(line)[1:]
        extra = ()
        if arguments[:2] == ["nats-config", "write"]:
            extra = ("--store", str(self.place / "store"), "--http", "127.0.0.1:-1")
        environment = {"NAVARCH_NATS_URL": self.url if self.server.url else ""}
        ran = await asyncio.to_thread(
            CliRunner().invoke, app, [*arguments, *extra], env=environment
        )
        if isinstance(ran.exception, NavarchError):
            raise ran.exception
        assert ran.exit_code == 0, (line, ran.output, ran.exception)
        return ran.output

    async def run(self, line: str) -> str:
        """Run any line of the page."""
        words = shlex.split(line)
        if words[0] == "navarch":
            return await self.navarch(line)
        if words[0] == "scp":
            self._copy([each for each in words[1:] if each != "-r"])
        elif line.endswith("nats-server --signal reload"):
            os.kill(self.server.pid, signal.SIGHUP)
            await self._until(lambda: "Reloaded server configuration" in self._log(), reset=True)
        elif line.endswith("systemctl restart nats-server"):
            await self.server.restart()
        elif line.endswith("systemctl restart navarch-health-monitor"):
            await self.restart_service()
        elif line.endswith("systemctl restart navarch-gateway"):
            assert not await refused(self.as_gateway(self.place / "gateway-host/bus"))
        elif words[0].startswith("(umask"):
            process = await asyncio.create_subprocess_shell(line, cwd=self.place)
            assert 0 == await process.wait()
        else:
            assert line.startswith("export "), line
        return ""

    def _copy(self, words: list[str]) -> None:
        host, _, target = words[-1].partition(":")
        folder = self.place / host / target.removeprefix(ETC)
        folder.mkdir(parents=True, exist_ok=True)
        for each in words[:-1]:
            source = self.place / each
            if source.is_dir():
                shutil.copytree(source, folder / source.name, dirs_exist_ok=True)
            else:
                shutil.copy(source, folder)

    def _log(self) -> str:
        return (self.place / "server/nats-server.log").read_text()

    async def _until(self, holds: Callable[[], bool], *, reset: bool = False) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)
        if reset:
            (self.place / "server/nats-server.log").write_text("")

    def options(self, who: str, creds: Path, authority: Path, box: str) -> ConnectOptions:
        """Return the options with which a client of one of the hosts connects."""
        settings = NatsSettings(
            url=self.url, creds_file=str(creds), tls_ca_file=str(authority / AUTHORITY)
        )
        return ConnectOptions(settings=settings, name=who, inbox_prefix=box)

    def as_gateway(self, host: Path) -> ConnectOptions:
        """Return the options of a client that has a gateway's files."""
        creds, box = host / "creds/gateway.creds", permissions.inbox(permissions.GATEWAY)
        return self.options("gateway", creds, self.bus, box)

    def as_scheduler(self, creds: Path) -> ConnectOptions:
        """Return the options with which a workload system connects."""
        settings = NatsSettings(
            url=self.url, creds_file=str(creds), tls_ca_file=str(self.bus / AUTHORITY)
        )
        return user_options(settings)

    def steal(self) -> list[ConnectOptions]:
        """Copy what a thief may come by; how it connects with each."""
        loot = self.place / "loot"
        (loot / "creds").mkdir(parents=True)
        for each in ("bus/creds/slurm.creds", "bus/creds/health-monitor.creds"):
            shutil.copy(self.place / each, loot)
        shutil.copy(self.place / "gateway-host/bus/creds/gateway.creds", loot / "creds")
        creds, box = shutil.copy(self.place / "node/nats.creds", loot), permissions.node_inbox
        return [
            self.as_scheduler(loot / "slurm.creds"),
            self.as_gateway(loot),
            self.options("agent", creds, self.bus, box("training", "n1")),
            self.options(
                "health-monitor",
                loot / "health-monitor.creds",
                self.bus,
                permissions.inbox("health-monitor"),
            ),
        ]

    async def start(self) -> None:
        """Copy what is written to the hosts, and have the fleet run."""
        for host in ("bus-host", "monitor-host", "provisioner-host", "gateway-host", "node"):
            shutil.copytree(self.bus, self.place / host / "bus", dirs_exist_ok=True)
        conf = self.place / "bus-host/bus" / CONF
        text = conf.read_text().replace(str(self.bus.absolute()), str(conf.parent))
        conf.write_text(f"server_name: nats-server\n{text}")
        await self.server.start()
        admin = add_user(self.bus, "root", "admin", datetime.now(UTC), DAY)
        box = permissions.inbox("admin")
        bus = await NatsBus.connect(self.options("root", admin, self.bus, box), seconds_max=20)
        await set_up(bus, SystemClock(), replicas=1)
        await bus.close()
        self.renew_agent()
        await self.restart_agent()
        await self.restart_service()
        self._tasks = [asyncio.create_task(self._report()), asyncio.create_task(self._consume())]

    def renew_agent(self) -> None:
        """Renew the agent's credentials with the provisioner's files, as it does every day."""
        keys = read_agent_keys(self.place / "provisioner-host/bus/agent-signing.json")
        now = datetime.now(UTC)
        token = agent_token(keys, "training", "n1", Key(self._seed).public, now, now + DAY)
        (self.place / "node/nats.creds").write_text(
            CREDENTIALS.format(token=token, seed=self._seed)
        )
        source = self.place / "provisioner-host/bus" / AUTHORITY
        shutil.copy(source, self.place / "node/bus" / AUTHORITY)

    async def restart_agent(self) -> None:
        """Connect again, as when a token ends."""
        creds, box = self.place / "node/nats.creds", permissions.node_inbox("training", "n1")
        options = self.options("agent", creds, self.place / "node/bus", box)
        before, self.agent = self.agent, await NatsBus.connect(options, seconds_max=20)
        if before is not None:
            await before.close()

    async def restart_service(self) -> None:
        """Connect again, with the files that its host has."""
        host = self.place / "monitor-host/bus"
        creds, box = host / "creds/health-monitor.creds", permissions.inbox("health-monitor")
        options = self.options("health-monitor", creds, host, box)
        before, self.service = self.service, await NatsBus.connect(options, seconds_max=20)
        if before is not None:
            await before.close()

    async def _report(self) -> None:
        """Report one fact after the other, each until it is stored, as the agent's spool does."""
        while True:
            assert self.agent is not None
            try:
                number = self.reported + 1
                await self.agent.publish(FACT, str(number).encode(), msg_id=f"f-{number}")
                self.reported = number
            except BusError:
                pass
            await asyncio.sleep(0.05)

    async def _consume(self) -> None:
        """Consume them as the health-monitor does."""
        while True:
            assert self.service is not None
            bus, deliveries = self.service, self.service.consume(HEALTH_EVENTS)
            intake = FactIntake(bus, SystemClock())
            # What is not acknowledged is delivered again.
            with suppress(NavarchError, nats.errors.Error, TimeoutError, StopAsyncIteration):
                while bus is self.service:
                    async with asyncio.timeout(5):
                        delivery = await anext(deliveries)
                    self.consumed = max(self.consumed, int(delivery.stored.data))
                    await delivery.ack()
                    intake.decode(delivery.stored)
                    await intake.make_room()
            await deliveries.aclose()

    async def goes_on(self) -> None:
        """Wait until a fact that is reported from now on was consumed."""
        seen = self.reported
        await self._until(lambda: self.consumed > seen)

    async def end_clients(self) -> None:
        """Have nothing connected."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in (self.agent, self.service):
            if each is not None:
                await each.close()
        self.agent = self.service = None

    async def stop(self) -> list[int]:
        """End everything; return the facts that are stored."""
        await self.end_clients()
        admin = self.bus / "creds/root.creds"
        options = self.options("root", admin, self.bus, permissions.inbox("admin"))
        bus = await NatsBus.connect(options, seconds_max=20)
        stored = await bus.read(EVENTS.name, FACT)
        await bus.close()
        await self.server.kill()
        return [int(each.data) for each in stored]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A fleet that runs."""
    monkeypatch.chdir(tmp_path)
    found = Site(tmp_path)
    await found.navarch("navarch nats-config write --fleet prod --host bus.example.com")
    await found.start()
    yield found
    await found.end_clients()
    await found.server.kill()


@pytest.mark.slow
async def test_the_page_is_run_while_the_fleet_goes_on(site: Site) -> None:
    """No fact is lost or stored twice, and what is refused at the end is what the page says.

    Credentials that were copied before their keys were replaced are refused.
    """
    add_user(site.bus, "bob", "viewer", datetime.now(UTC), DAY)
    said: dict[str, str] = {}
    stolen: list[ConnectOptions] = []
    for line in commands():
        if "nats-config certificate" in line:
            break
        if not stolen and "nats-config rotate" in line:
            stolen = site.steal()
            assert [False] * len(stolen) == [await refused(each) for each in stolen]
        if line.endswith("rotate agents --finish --dry-run"):
            assert "agent training/n1 at 127.0.0.1" in await site.run(line)
            with pytest.raises(NavarchError, match=r"still of the old key.*agent training/n1"):
                await site.run("navarch nats-config rotate agents --finish")
            site.renew_agent()
            await site.restart_agent()
        if line.endswith("rotate authority --finish"):
            site.renew_agent()
        said[line] = await site.run(line)
        await site.goes_on()
    refusals = [await refused(each) for each in stolen]
    owners = [site.as_gateway(site.bus), site.as_scheduler(site.bus / "creds/slurm.creds")]
    accepted = [not await refused(each) for each in owners]
    stored = await site.stop()

    assert [True] * len(stolen) == refusals
    assert [True] * len(owners) == accepted
    assert stored == list(range(1, stored[-1] + 1))
    assert stored[-1] in (site.reported, site.reported + 1)
    users = said["navarch nats-config user list"]
    assert re.search(r"alice +operator +valid", users), users
    assert "training/training-7" in users
    assert "in use now: none" in said["navarch nats-config rotate agents --finish --dry-run"]
    restart = said["navarch nats-config rotate operator-key"]
    assert "Both keys are accepted" in restart
    assert [] == list(site.bus.glob("keys/*.old"))


async def refused(options: ConnectOptions) -> bool:
    """Return whether the server refuses a client with these options."""
    try:
        bus = await NatsBus.connect(options, seconds_max=1)
    except Unavailable:
        return True
    await bus.close()
    return False


async def test_a_server_that_verifies_clients_refuses_one_without_a_certificate(
    site: Site,
) -> None:
    """A client without a certificate is refused at each connection.

    The command `nats-config` itself uses the one named revoker, and names mistakes.
    """
    for mistake, problem in (
        ("rotate metric", "there is no key 'metric'; there is authority, agents, operator-key, "),
        ("rotate metrics --dir elsewhere", "elsewhere.* write` first"),
    ):
        with pytest.raises(NavarchError, match=problem):
            await site.navarch(f"navarch nats-config {mistake}")
    nothing = await site.navarch("navarch nats-config rotate metrics --finish")
    assert "No rotation of metrics was under way" in nothing
    for line in (each for each in commands() if "nats-config certificate" in each):
        await site.run(line)
    conf = site.place / "bus-host/bus" / CONF
    text = conf.read_text()
    lines = [re.sub(r"# (ca_file: |verify: )", r"\1", each) for each in text.splitlines()]
    assert 2 == sum(was != now for was, now in zip(text.splitlines(), lines, strict=True))
    conf.write_text("\n".join(lines) + "\n")
    await site.run("ssh bus-host nats-server --signal reload")
    creds, box = site.bus / "creds/health-monitor.creds", permissions.inbox("health-monitor")
    without = site.options("health-monitor", creds, site.bus, box)
    file = str(site.bus / CLIENTS / "{service}.pem")
    settings = msgspec.structs.replace(without.settings, tls_cert_file=file)
    options = replace(without, settings=settings)
    assert await refused(without)
    bus = await NatsBus.connect(options, seconds_max=20)
    ends = {each.what: each.at for each in bus.expiries()}
    await site.server.restart()
    await site._until(lambda: bus.connected)
    assert await refused(without)
    assert "pushed: nothing" in await site.navarch("navarch nats-config push")
    await bus.close()
    assert not await refused(options)

    certificate = f"the client certificate {site.bus / CLIENTS}/health-monitor.pem"
    assert timedelta(days=396) < ends[certificate] - datetime.now(UTC) < timedelta(days=398)
