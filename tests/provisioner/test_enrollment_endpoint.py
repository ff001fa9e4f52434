"""A new node fetches its own credentials: once, for itself, in time, on a server that asks."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
import yaml
from msgspec.structs import replace
from nats.aio.client import Client

from agent import enrollment
from agent.enrollment import BusLogin, enroll, rejoin, rejoin_file, renew
from schemas import subjects
from schemas.node_events import CredentialsIssued, CredentialsRefused
from schemas.saga_params import LaunchSpec
from schemas.settings import NatsSettings
from schemas.topology import EVENTS
from services.bus.nats.connection_options import credentials
from services.bus.nats.credentials_file import life
from services.bus.nats.nats_bus import ConnectOptions, NatsBus
from services.primitives.clock import Clock, SystemClock
from services.primitives.errors import LoginRefused, NavarchError, Unavailable
from services.provisioner.bootstrap.enrollment_endpoint import (
    refusal_id,
    why_refused,
)
from services.provisioner.instances import instance_decisions
from tests.support.enrollment import NODE, OTHER, OWN, World
from tests.support.inprocess import eventually
from tests.support.secured import NOW, nats_config, serving_secured

COMMAND = Path(sys.executable).with_name("navarch-agent")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that `navarch nats-config` writes."""
    return nats_config(tmp_path_factory.mktemp("nats-config"))


@pytest.fixture
async def world(directory: Path, tmp_path: Path) -> AsyncIterator[World]:
    """Serve everything but the node."""
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        made = World(secured, bus, tmp_path)
        await made.start()
        yield made
        await bus.close()


async def test_a_new_node_gets_credentials_for_itself_alone(world: World) -> None:
    """Credentials permit the node's own subjects; what led to them is gone from the disk."""
    bootstrap = world.hand_over()
    said = await enroll(world.config, world.connect)
    own = Path(world.config.nats_creds_file)
    wanted = [("publish", f"{each}.event.fault") for each in (OWN, OTHER)]
    refused = await world.secured.refused(f"agent:training/{NODE}", wanted, own)

    assert f"fetched this node's credentials into {own}" == said
    assert {("publish", f"{OTHER}.event.fault")} == refused
    kept = [own, rejoin_file(world.config)]
    assert kept == sorted(own.parent.iterdir())
    assert {0o600} == {each.stat().st_mode & 0o777 for each in kept}
    assert not bootstrap.exists()
    assert [CredentialsIssued] == await world.published()
    assert "holds this node's credentials already" in await enroll(world.config, world.connect)


async def test_bootstrap_credentials_are_good_for_one_question_alone(world: World) -> None:
    """Bootstrap credentials permit neither the node's own subjects nor another node's question."""
    file = world.hand_over()
    enrolling = subjects.enroll("training", NODE)
    other = subjects.enroll("training", "training-2")
    wanted = [("publish", each) for each in (enrolling, other, f"{OWN}.telemetry", "$SRV.PING")]
    wanted += [("subscribe", "navarch.v1.>"), ("subscribe", enrolling)]
    refused = await world.secured.refused(f"bootstrap:training/{NODE}", wanted, file)

    assert set(wanted) - {("publish", enrolling)} == refused


async def test_they_cannot_be_used_a_second_time(world: World, tmp_path: Path) -> None:
    """A second process that read them from user data is refused, and operators are notified."""
    stolen = world.hand_over().read_text()
    await enroll(world.config, world.connect)
    thief = replace(
        world.config,
        nats_creds_file=str(tmp_path / "thief" / "nats.creds"),
        nats_bootstrap_file=str(tmp_path / "stolen.creds"),
    )
    Path(thief.nats_bootstrap_file).write_text(stolen)
    for _ in range(2):
        with pytest.raises(NavarchError, match="issued already, for another key"):
            await enroll(thief, world.connect)

    assert not Path(thief.nats_creds_file).exists()
    assert [CredentialsIssued, CredentialsRefused] == await world.published()


def test_a_refusal_is_published_once_a_day_and_reason() -> None:
    """A repetition is no new event; another reason, or another day, is."""
    later = NOW + timedelta(days=1)
    asked = [("too late", NOW), ("too late", NOW), ("another key", NOW), ("too late", later)]
    ids = [refusal_id(NODE, reason, at) for reason, at in asked]

    assert [0, 0, 2, 3] == [ids.index(each) for each in ids]


async def test_an_answer_that_is_lost_is_given_again(world: World) -> None:
    """A node that died before it kept its credentials asks with the key that it had kept."""
    text = world.hand_over().read_text()
    await enroll(world.config, world.connect)
    own = Path(world.config.nats_creds_file)
    seed = own.read_text().splitlines()[-2]
    own.unlink()
    own.with_name(f"{own.name}.key").write_text(seed)
    Path(world.config.nats_bootstrap_file).write_text(text)
    await enroll(world.config, world.connect)

    assert seed in own.read_text()
    assert [CredentialsIssued] == await world.published()


async def test_they_end_with_their_time(world: World) -> None:
    """The server refuses them, and the provisioner would not answer either."""
    early = replace(world.record, intended_at=datetime.now(UTC) - timedelta(hours=2))
    file = Path(world.config.nats_bootstrap_file)
    file.write_text(world.templates.credentials(early))
    settings = NatsSettings(url=world.secured.url, creds_file=str(file))
    client = Client()
    with pytest.raises(nats.errors.Error, match=r"(?i)auth"):
        await client.connect(
            world.secured.url,
            allow_reconnect=False,
            max_reconnect_attempts=0,
            **credentials(ConnectOptions(settings=settings, name="late")),
        )
    await client.close()
    await world.store.change(f"training.{NODE}", lambda _: early)
    world.hand_over()
    with pytest.raises(NavarchError, match=r"time to fetch them is over \(agent.enroll_within\)"):
        await enroll(world.config, world.connect)


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, ""),
        ({"agent_key": "MINE"}, ""),
        ({"agent_key": "OTHER"}, "issued already, for another key"),
        ({"intended_at": NOW - timedelta(hours=2)}, "time to fetch them is over"),
        ({"intended_at": NOW - timedelta(hours=2), "agent_key": "MINE"}, ""),
        # The key was lost with the instance's record.
        ({"intended_at": NOW - timedelta(hours=2), "saga": instance_decisions.ADOPTED}, ""),
        (
            {"saga": instance_decisions.ADOPTED, "agent_key": "OTHER"},
            "issued already, for another key",
        ),
        ({"state": "orphaned"}, "no longer exists"),
        ({"state": "terminating"}, "no longer exists"),
    ],
)
def test_which_key_gets_credentials(changes: dict[str, Any], refused: str) -> None:
    """The first in time, that one again, and that of an adopted instance."""
    launch = LaunchSpec(fleet="f", provider="aws", instance_type="t")
    record = instance_decisions.intended_record("training", NODE, launch, "saga", NOW)
    found = why_refused(replace(record, **changes), "MINE", NOW - timedelta(hours=1))

    assert refused in found
    assert bool(refused) == bool(found)


async def test_a_node_that_is_gone_gets_none(world: World) -> None:
    """A node whose instance is gone gets none, though its credentials may still hold."""
    world.hand_over()
    await world.store.change(
        f"training.{NODE}", lambda now: now and replace(now, state="terminated")
    )
    with pytest.raises(NavarchError, match="the instance no longer exists"):
        await enroll(world.config, world.connect)


async def test_a_provisioner_that_cannot_sign_says_why(directory: Path, tmp_path: Path) -> None:
    """The node's journal then holds the reason; systemd asks again."""
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        made = World(secured, bus, tmp_path)
        made.hand_over()
        made.nats = NatsSettings(agent_signing_file=str(tmp_path / "gone.json"))
        await made.start()
        with pytest.raises(NavarchError, match=r"no credentials for .*gone\.json cannot be read"):
            await enroll(made.config, made.connect)
        await bus.close()


class ShiftedClock(SystemClock):
    """A clock that is wrong."""

    def __init__(self, seconds: float) -> None:
        self._error = timedelta(seconds=seconds)

    def now(self) -> datetime:
        """Return the wrong time."""
        return super().now() + self._error


@pytest.fixture
async def brief(directory: Path, tmp_path: Path) -> AsyncIterator[World]:
    """Everything but the node, whose credentials expire within two seconds."""
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        made = World(secured, bus, tmp_path)
        made.agent = replace(made.agent, credentials_valid=2.0)
        await made.start()
        yield made
        await bus.close()


def login_of(world: World, clock: Clock | None = None) -> BusLogin:
    """Return the agent's login."""

    async def open_own(seconds_max: float) -> NatsBus:
        options = world.secured.options(
            f"agent:training/{NODE}", Path(world.config.nats_creds_file)
        )
        return await NatsBus.connect(options, seconds_max=seconds_max)

    return BusLogin(world.config, clock or SystemClock(), open_own, world.connect, lambda: 0.0)


async def test_an_agent_renews_its_credentials_and_loses_no_event(brief: World) -> None:
    """An agent lives through several lives of its credentials.

    Each message that it repeats until it is stored is there.
    """
    brief.hand_over()
    login = login_of(brief)
    bus = await login.connect()
    keeping = asyncio.create_task(login.run())
    first = life(brief.config.nats_creds_file)[1]
    number = 0
    async with asyncio.timeout(60):
        while (last := life(brief.config.nats_creds_file)[1]) < first + 3:
            with suppress(Unavailable):
                await bus.publish(f"{OWN}.event.fault", b"%d" % number, msg_id=str(number))
                number += 1
            await asyncio.sleep(0.02)
    stored = await brief.bus.read(EVENTS.name, f"{OWN}.event.fault")
    keeping.cancel()
    await bus.close()

    assert [b"%d" % each for each in range(number)] == [each.data for each in stored]
    assert last > first + 1
    assert [CredentialsIssued] == await brief.published()


async def test_an_agent_comes_back_after_its_credentials_have_expired(
    brief: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provisioner was away, too; never where its instance is gone."""
    monkeypatch.setattr(enrollment, "CONNECT_SECONDS_MAX", 0.5)
    brief.hand_over()
    await enroll(brief.config, brief.connect)
    own = Path(brief.config.nats_creds_file)
    seed, expired = own.read_text().splitlines()[-2], own.with_suffix(".expired")
    expired.write_text(own.read_text())
    ends = life(str(own))[1]
    await brief.bus.close()
    await asyncio.sleep(max(ends + 1 - datetime.now(UTC).timestamp(), 0))
    brief.connecting.clear()
    connecting = asyncio.create_task(login_of(brief).connect())
    await brief.connecting.wait()
    refused = not connecting.done()
    await brief.restart()
    bus = await connecting
    connected = bus.connected
    await bus.close()
    with pytest.raises(LoginRefused):
        await NatsBus.connect(brief.secured.options("agent", expired), seconds_max=1)

    assert refused
    assert connected
    assert life(brief.config.nats_creds_file)[1] > ends
    assert seed in Path(brief.config.nats_creds_file).read_text()
    await brief.store.change(
        f"training.{NODE}", lambda now: now and replace(now, state="terminated")
    )
    with pytest.raises(NavarchError, match="the instance no longer exists"):
        await rejoin(brief.config, brief.connect)


@pytest.mark.parametrize(("signer", "agent"), [(600, -600), (-600, 600)])
async def test_clocks_that_are_minutes_wrong_lock_no_agent_out(
    directory: Path, tmp_path: Path, signer: float, agent: float
) -> None:
    """Wrong clocks of provisioner and agent lock no agent out, in opposite directions.

    The credentials are valid for an hour.
    """
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        made = World(secured, bus, tmp_path)
        made.agent = replace(made.agent, credentials_valid=3600.0)
        await made.start(ShiftedClock(signer))
        made.hand_over()
        login = login_of(made, ShiftedClock(agent))
        node = await login.connect()
        await renew(made.config, node)
        connected = node.connected
        await node.close()
        await bus.close()

    assert connected


SYSTEMCTL = """#!/bin/sh
[ "$1" = enable ] || exit 0
set -a; . {root}/etc/navarch/agent.env; set +a
unit={root}/etc/systemd/system/navarch-agent.service
sh -c "exec $(sed -n 's/^ExecStart=//p' $unit)" > {root}/agent.log 2>&1 &
echo $! > {root}/pid
"""


def installed(user_data: str, root: Path) -> str:
    """Do what cloud-init does with the files, under `root`; return the commands that it runs."""
    for name in ("/etc/", "/var/lib/"):
        user_data = user_data.replace(name, f"{root}{name}")
    user_data = user_data.replace("/opt/navarch/bin/navarch-agent", str(COMMAND))
    config = yaml.safe_load(user_data)
    for each in config["write_files"]:
        file = Path(each["path"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(each["content"])
        file.chmod(int(each["permissions"], 8))
    systemctl = root / "bin" / "systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text(SYSTEMCTL.format(root=root))
    systemctl.chmod(0o755)
    shell, flags, script = config["runcmd"][0]
    assert ("sh", "-ec") == (shell, flags)
    return str(script)


async def test_user_data_starts_an_agent_that_registers(world: World, tmp_path: Path) -> None:
    """The rendered commands, run by `sh`, end with an agent that speaks for its node."""
    assert COMMAND.exists()
    root = tmp_path / "machine"
    root.mkdir()
    script = installed(world.templates.user_data(world.record), root)
    (root / "kmsg").touch()
    environment = {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "NAVARCH_STATE_DIR": str(root / "state"),
        "NAVARCH_KMSG": str(root / "kmsg"),
        "NAVARCH_GPU_COUNT": "0",
        "NAVARCH_CLOUD": "none",
        "NAVARCH_BOOT_TESTS": "none",
        "NAVARCH_EXIT_WITHOUT": str(root / "kmsg"),
    }
    done = await asyncio.to_thread(
        subprocess.run, ["sh", "-ec", script], env=environment, capture_output=True, check=False
    )
    assert (0, b"") == (done.returncode, done.stderr)

    async def registered() -> bool:
        return bool(await world.bus.read(EVENTS.name, f"{OWN}.event.registered"))

    await eventually(registered)
    os.kill(int((root / "pid").read_text()), 15)
    said = (root / "agent.log").read_text()
    assert "ermissions violation" not in said
    assert not (root / "etc/navarch/bootstrap.creds").exists()
