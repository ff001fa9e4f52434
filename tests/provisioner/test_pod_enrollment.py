"""Agents in pods share what they enroll with; the cluster says which node each of them is on."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.enrollment import BusLogin, enroll, rejoin, rejoin_file
from agent.settings import AgentConfig
from schemas import subjects
from schemas.node_events import CredentialsIssued, CredentialsRefused
from schemas.node_records import node_key
from services.bus.nats.nats_bus import NatsBus
from services.cli.commands.nats_config_commands import write_pods
from services.cli.nats_config_files import BusDirectory, revoke_user
from services.primitives.clock import SystemClock
from services.primitives.errors import NavarchError
from services.provisioner.instances import instance_decisions
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.kubernetes_api import node_in
from tests.support.enrollment import NODE, OTHER, OWN, World
from tests.support.inprocess import eventually
from tests.support.secured import NOW, nats_config, serving_secured

YEARS = timedelta(days=3650)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Provide a bus with credentials of a pool's pods, and one adopted node of the pool."""
    directory = nats_config(tmp_path / "bus")
    shared = write_pods(directory, "training", NOW, YEARS)
    async with serving_secured(directory, tmp_path / "nats") as secured:
        bus = await NatsBus.connect(secured.options("provisioner"))
        made = World(secured, bus, tmp_path)
        made.record = replace(made.record, saga=instance_decisions.ADOPTED)
        made.config = in_pod(made.config, shared, tmp_path, f"pod on {NODE}")
        await made.start()
        yield made
        await made.bus.close()


def in_pod(config: AgentConfig, shared: Path, place: Path, token: str) -> AgentConfig:
    """An agent in a pod that has this token."""
    file = place / "pod.token"
    file.write_text(f"{token}\n")
    return replace(config, nats_bootstrap_file=str(shared), pod_token_file=str(file))


async def test_an_agent_in_a_pod_gets_credentials_of_its_node_alone(world: World) -> None:
    """The credentials are those of its node alone; the shared file stays for the others."""
    await enroll(world.config, world.connect)
    own = Path(world.config.nats_creds_file)
    wanted = [("publish", f"{each}.event.fault") for each in (OWN, OTHER)]
    refused = await world.secured.refused(f"agent:training/{NODE}", wanted, own)

    assert {("publish", f"{OTHER}.event.fault")} == refused
    assert sorted(own.parent.iterdir()) == [own, rejoin_file(world.config)]
    assert Path(world.config.nats_bootstrap_file).exists()
    assert [CredentialsIssued] == await world.published()
    assert "already" in await enroll(world.config, world.connect)


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("pod on training-2", "runs on node training-2"),
        ("stolen elsewhere", "does not know the pod's token"),
        ("", "does not know the pod's token"),
    ],
)
async def test_the_shared_credentials_alone_give_nothing(
    world: World, token: str, why: str
) -> None:
    """The provisioner refuses who has no token of a pod on that very node, and publishes it."""
    Path(world.config.pod_token_file).write_text(token)
    with pytest.raises(NavarchError, match=why):
        await enroll(world.config, world.connect)

    assert not Path(world.config.nats_creds_file).exists()
    assert [CredentialsRefused] == await world.published()
    record = await world.store.get(node_key("training", NODE))
    assert record is not None
    assert record.agent_key == ""


async def test_a_node_that_is_not_adopted_yet_is_no_event(world: World) -> None:
    """An agent that starts before the sweep has seen its node only has to ask again."""
    later = replace(world.config, node="training-9")
    with pytest.raises(NavarchError, match="not adopted yet"):
        await enroll(later, world.connect)

    assert [] == await world.published()


class Hurried(SystemClock):
    """A clock on which no pause is long."""

    async def sleep(self, seconds: float) -> None:
        """Return after a moment."""
        await super().sleep(min(seconds, 0.01))


async def test_an_agent_that_waits_for_its_adoption_warns_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent asks until the sweep has seen its node; the provisioner does not warn of it."""
    later = replace(world.config, node="training-9")

    async def refused(_: float) -> NatsBus:
        raise AssertionError("it has no credentials of its own")

    login = BusLogin(later, Hurried(), refused, world.connect, lambda: 0.0)
    caplog.set_level(logging.INFO)
    connecting = asyncio.create_task(login.connect())

    async def has_asked_often() -> bool:
        return caplog.text.count("not adopted yet") > 3

    await eventually(has_asked_often, within_seconds=60.0)
    connecting.cancel()
    warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert ["agent.enrollment"] == [each.name for each in warned]


async def test_a_node_whose_disk_was_wiped_gets_others(world: World) -> None:
    """The pod proves the node: a new key takes the place of the lost one, which then is refused."""
    await enroll(world.config, world.connect)
    own = Path(world.config.nats_creds_file)
    lost = own.read_text()
    own.unlink()
    await enroll(world.config, world.connect)

    assert own.read_text() != lost
    old = replace(world.config, nats_creds_file=str(own.with_name("old.creds")), pod_token_file="")
    Path(old.nats_creds_file).write_text(lost)
    rejoin_file(old).write_text(rejoin_file(world.config).read_text())
    world.config = old
    with pytest.raises(NavarchError, match="for another key"):
        await rejoin(old, world.connect)


async def test_refused_credentials_are_replaced_by_the_pods_word(world: World) -> None:
    """A node that left and came back has a revoked key: its agent gets credentials of another."""
    await enroll(world.config, world.connect)
    own = Path(world.config.nats_creds_file)
    before = own.read_text()
    await rejoin(world.config, world.connect)

    assert own.read_text() != before


async def test_the_shared_credentials_permit_one_kind_of_question(world: World) -> None:
    """The server lets them ask for their own pool, and neither speak as an agent nor listen."""
    one = ("publish", subjects.enroll_pod("training", NODE))
    wanted = [
        one,
        ("publish", subjects.enroll("training", NODE)),
        ("publish", subjects.enroll_pod("inference", "inference-1")),
        ("publish", f"{OWN}.event.fault"),
        ("publish", "$SRV.PING"),
        ("subscribe", subjects.ENROLL_POD),
        ("subscribe", "navarch.v1.>"),
        ("subscribe", "_INBOX.pod.inference.>"),
    ]
    shared = Path(world.config.nats_bootstrap_file)
    refused = await world.secured.refused("pod:training", wanted, shared)

    assert set(wanted) - {one} == refused


def test_they_are_listed_and_can_be_revoked(tmp_path: Path) -> None:
    """The commands `navarch nats-config user` show and revoke them."""
    directory = nats_config(tmp_path)
    file = write_pods(directory, "training", NOW, YEARS)
    revoke_user(directory, "training/*", datetime.now(UTC))

    assert "pod-training.creds" == file.name
    assert not file.exists()
    states = {each.name: each.state(NOW) for each in BusDirectory(directory).users()}
    assert "revoked" == states["training/*"]


def review(**changes: Any) -> dict[str, Any]:
    """Return a cluster's answer about a token."""
    user = {
        "username": "system:serviceaccount:navarch-agents:navarch-agent",
        "extra": {"authentication.kubernetes.io/node-name": ["gpu-1"]},
    }
    return {"authenticated": True, "audiences": ["navarch"], "user": user} | changes


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({}, "does not know"),
        (review(authenticated=False), "does not know"),
        (review(authenticated="yes"), "does not know"),
        (review(audiences=["https://kubernetes.default.svc"]), "does not know"),
        (review(audiences=None), "does not know"),
        (review(user={"username": "system:serviceaccount:other:navarch-agent"}), "not of the agen"),
        (review(user=None), "not of the agents"),
        (review(user=review()["user"] | {"extra": {}}), "on which node"),
        (
            review(
                user=review()["user"]
                | {"extra": {"authentication.kubernetes.io/node-name": ["a", "b"]}}
            ),
            "on which node",
        ),
    ],
)
def test_a_review_that_proves_nothing_is_refused(status: dict[str, Any], why: str) -> None:
    """Another audience, another account, no node: each is refused, with the reason."""
    with pytest.raises(ProviderError, match=why) as raised:
        node_in(status, "navarch-agents/navarch-agent")

    assert raised.value.kind == "INVALID"
    assert node_in(review(), "navarch-agents/navarch-agent") == "gpu-1"
