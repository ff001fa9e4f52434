"""A real sshd on loopback: a hundred nodes set up at once, some of which fail."""

import asyncio
import getpass
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.saga_params import LaunchSpec, SetupSpec
from schemas.settings import AgentSettings, NatsSettings
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.bootstrap.ssh_setup import SshSetup
from services.provisioner.bootstrap.user_data import BootstrapTemplates
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_calls import ProviderCalls, Providers
from services.provisioner.providers.fake import FakeProvider
from services.saga.participant import StepFailure
from tests.real.sshd import SSHD, new_key, real_sshd

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(SSHD is None, reason="no sshd here: apt-get install openssh-server"),
]
NODES = 100
FAILING, HANGING, DROPPING = {7, 8}, {20, 21}, {50}


@pytest.fixture
async def sshd(tmp_path: Path) -> AsyncIterator[int]:
    """The port of an sshd started for the test."""
    new_key(tmp_path / "key")
    async with real_sshd(tmp_path, tmp_path / "key") as port:
        yield port


def command_for(number: int, folder: Path) -> tuple[str, ...]:
    """The setup command of a node: most succeed, five do not."""
    well = f"echo {{{{.NodeID}}}} >> {folder}/ran-{number}"
    if number in FAILING:
        return (well, "echo no such package; exit 100")
    if number in HANGING:
        return (well, "sleep 30")
    if number in DROPPING:
        # The session's sshd is killed, as in a network failure, after the work is done.
        hang_up = "kill -9 $(ps -o ppid= -p $PPID)"
        once = f"[ -e {folder}/dropped ] || {{ touch {folder}/dropped; {hang_up}; }}"
        return (f"{well}; {once}", well)
    return (well, well)


async def test_a_hundred_setups_at_once(bus: NatsBus, sshd: int, tmp_path: Path) -> None:
    """Failing and hanging nodes report the reason; the others are done, each command once."""
    store, clock = InstanceStore(bus), SystemClock()
    environment = Environment(name="fake", fleet="f", nats_url="", data_dir=tmp_path)
    provider = FakeProvider(options=FakeProvider.Options(), environment=environment)
    calls = Providers({"fake": ProviderCalls(provider, call_timeout_seconds=5)})
    templates = BootstrapTemplates(
        NatsSettings(url="nats://bus"),
        AgentSettings(),
        tmp_path,
        frozenset({str(tmp_path / "key")}),
    )
    setup = SshSetup(bus, clock, store, calls, templates, poll_seconds=0.05)

    async def one(number: int) -> str:
        node = f"web-{number}"
        launch = LaunchSpec(fleet="f", provider="fake", instance_type="t")
        record = instance_decisions.intended_record("web", node, launch, "saga", datetime.now(UTC))
        record = replace(record, state="running", address="127.0.0.1")
        await store.create(record)
        spec = SetupSpec(
            commands=command_for(number, tmp_path),
            user=getpass.getuser(),
            private_key_path=str(tmp_path / "key"),
            port=sshd,
            sudo=False,
            login_seconds=30,
            connect_seconds=20,
            command_seconds=8,
        )
        try:
            await setup.run(record, spec, f"scale-up-{node}")
        except StepFailure as failure:
            return str(failure)
        return "done"

    outcomes = dict(enumerate(await asyncio.gather(*map(one, range(NODES)))))
    bad = {number: outcome for number, outcome in outcomes.items() if outcome != "done"}
    assert FAILING | HANGING == set(bad)
    assert all("ended with 100; it wrote: no such package" in bad[each] for each in FAILING)
    assert all("did not end within 8 s" in bad[each] for each in HANGING)
    for number in range(NODES):
        ran = (tmp_path / f"ran-{number}").read_text().splitlines()
        expected = 1 if number in FAILING | HANGING else 2
        assert [f"web-{number}"] * expected == ran
    assert (tmp_path / "dropped").exists()
