"""Nodes are set up over a real SSH server in the test, with real shells and real files."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.node_events import SetupRan, node_codec
from schemas.saga_params import LaunchSpec, SetupSpec
from schemas.settings import AgentSettings, NatsSettings
from schemas.topology import EVENTS
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import SIGNING_FILE
from services.primitives.clock import SystemClock
from services.provisioner.bootstrap import setup_plan
from services.provisioner.bootstrap.ssh_setup import SshSetup
from services.provisioner.bootstrap.user_data import REDACTED, BootstrapTemplates
from services.provisioner.instances import instance_decisions
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.providers.fake import FakeProvider
from services.runtime.logs import set_up_logs
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import FLEET, fake, providers
from tests.support.secured import nats_config

SAGA = "scale-up-web-1"


@dataclass
class Node:
    """A machine with an SSH server: commands run in a shell whose home is a folder of the test."""

    home: Path
    key: Path
    port: int = 0
    refuse: int = 0
    """So many logins are turned away first, as by a machine that boots."""
    drop: set[int] = field(default_factory=set)
    """Which commands, counted from 1, lose the connection once they have run."""
    commands: int = 0
    logins: int = 0
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def stop(self) -> None:
        """End whatever runs still."""
        for each in self.running:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            await each.wait()

    async def handle(self, process: asyncssh.SSHServerProcess[str]) -> None:
        """Run what was sent."""
        self.commands += 1
        number = self.commands
        ran = await asyncio.create_subprocess_shell(
            process.command or "",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin"},
            executable="/bin/bash",
            start_new_session=True,
        )
        self.running.append(ran)
        out, err = await ran.communicate()
        if number in self.drop:
            process.get_extra_info("connection").abort()
            return
        process.stdout.write(out.decode(errors="replace"))
        process.stderr.write(err.decode(errors="replace"))
        process.exit(ran.returncode or 0)

    def log(self) -> list[str]:
        """Return the words that the commands wrote to the file `log` of the node."""
        file = self.home / "log"
        return file.read_text().split() if file.exists() else []


class Gate(asyncssh.SSHServer):
    """Lets the key in, once it lets anybody in."""

    def __init__(self, node: Node) -> None:
        """Of this node."""
        self._node = node

    def begin_auth(self, username: str) -> bool:
        """Turn away the first ones."""
        del username
        self._node.logins += 1
        if self._node.logins <= self._node.refuse:
            raise asyncssh.PermissionDenied("not yet")
        return True


def new_key(file: Path) -> None:
    """A key pair as `ssh-keygen` makes it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(file))
    key.write_public_key(f"{file}.pub")


async def listen(node: Node, host_key: Path) -> asyncssh.SSHAcceptor:
    """Start the node's SSH server."""
    server = await asyncssh.listen(
        "127.0.0.1",
        node.port,
        server_factory=lambda: Gate(node),
        server_host_keys=[str(host_key)],
        authorized_client_keys=f"{node.key}.pub",
        process_factory=node.handle,
    )
    node.port = server.get_port()
    return server


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A machine that waits for its setup."""
    for name in ("key", "host-key"):
        new_key(tmp_path / name)
    home = tmp_path / "home"
    home.mkdir()
    made = Node(home=home, key=tmp_path / "key")
    server = await listen(made, tmp_path / "host-key")
    yield made
    await made.stop()
    server.close()
    await server.wait_closed()


@dataclass
class World:
    """Holds a running instance, and the setup of it."""

    bus: NatsBus
    store: InstanceStore
    setup: SshSetup
    provider: FakeProvider

    async def record(self) -> InstanceRecord:
        """Return the instance's record now."""
        found = await self.store.get("web.web-1")
        assert found is not None
        return found

    async def run(self, spec: SetupSpec) -> None:
        """Set it up."""
        await self.setup.run(await self.record(), spec, SAGA)

    async def published(self) -> list[SetupRan]:
        """Return the setup events that were published about the instance."""
        stored = await self.bus.read(EVENTS.name, "navarch.v1.node.web.web-1.event.setup-ran")
        return [node_codec.decode(each.data) for each in stored]


@pytest.fixture
async def world(bus: NatsBus, node: Node) -> World:
    """Return an instance on loopback."""
    store, provider = InstanceStore(bus), fake()
    launch = LaunchSpec(fleet=FLEET, provider="fake", instance_type="h100", region="here")
    clock = SystemClock()
    record = instance_decisions.intended_record("web", "web-1", launch, SAGA, clock.now())
    await store.create(record)
    await store.change(
        "web.web-1", lambda now: now and replace(now, state="running", address="127.0.0.1")
    )
    templates = BootstrapTemplates(
        NatsSettings(url="nats://bus:4222"),
        AgentSettings(),
        Path(),
        frozenset({str(node.key), "/nowhere/key"}),
    )
    setup = SshSetup(bus, clock, store, providers(provider), templates, poll_seconds=0.01)
    return World(bus, store, setup, provider)


def spec_of(node: Node, *commands: str, **changes: Any) -> SetupSpec:
    """Return a setup with these commands and the login of the node."""
    plain = SetupSpec(
        commands=commands,
        user="ubuntu",
        private_key_path=str(node.key),
        port=node.port,
        sudo=False,
        login_seconds=5,
        connect_seconds=2,
        command_seconds=10,
    )
    return replace(plain, **changes)


WRITE: Callable[[str], str] = 'echo {} >> "$HOME/log"'.format


async def test_commands_run_in_order_with_their_variables(world: World, node: Node) -> None:
    """Each one's time and output is published; several lines and quotes are taken as written."""
    here = "cat > $HOME/unit << EOF\nExecStart=agent --server {{.ControlPlane}} '{{.NodeID}}'\nEOF"
    await world.run(spec_of(node, WRITE("{{.Pool}}"), here, WRITE("{{.Region}}") + "; echo done"))
    assert ["web", "here"] == node.log()
    assert "ExecStart=agent --server nats://bus:4222 'web-1'\n" == (node.home / "unit").read_text()
    events = await world.published()
    assert [(1, 3, 0), (2, 3, 0), (3, 3, 0)] == [
        (each.command, each.commands, each.exit_status) for each in events
    ]
    assert ("done\n", "cat > $HOME/unit << EOF …") == (events[2].output, events[1].text)


async def test_a_command_that_fails_fails_the_step_with_the_end_of_its_output(
    world: World, node: Node
) -> None:
    """Commands before the failed one stay done, and those after it are not run."""
    spec = spec_of(node, WRITE("one"), "seq 1 10000; echo no such package >&2; exit 7", WRITE("3"))
    with pytest.raises(StepFailure, match=r"setup command 2 of 3 .* ended with 7; .* no such pack"):
        await world.run(spec)
    assert ["one"] == node.log()
    assert [0, 7] == [each.exit_status for each in await world.published()]
    assert setup_plan.OUTPUT_CHARS_MAX == len((await world.published())[1].output)


async def test_what_is_done_is_not_done_again(world: World, node: Node) -> None:
    """A second provisioner goes on where the first one died."""
    await world.run(spec_of(node, WRITE("one"), WRITE("two")))
    await world.run(spec_of(node, WRITE("one"), WRITE("two"), WRITE("three")))
    assert ["one", "two", "three"] == node.log()
    assert 3 == len(await world.published())


async def test_a_broken_connection_is_opened_again(world: World, node: Node) -> None:
    """The command whose answer was lost has run, and is not run twice."""
    node.drop = {1, 3}
    await world.run(spec_of(node, WRITE("one"), WRITE("two"), WRITE("three")))
    assert ["one", "two", "three"] == node.log()


async def test_a_connection_that_always_breaks_fails_the_step(world: World, node: Node) -> None:
    """Bounded, and said how far it came."""
    node.drop = set(range(2, 50))
    with pytest.raises(StepFailure, match="broke 5 times; 1 of 9 setup commands"):
        await world.run(spec_of(node, *(WRITE(str(n)) for n in range(9))))


async def test_two_provisioners_at_once_run_each_command_once(world: World, node: Node) -> None:
    """The second waits on the node's lock and finds the mark."""
    spec = spec_of(node, WRITE("one"), WRITE("two"))
    await asyncio.gather(world.run(spec), world.run(spec))
    assert ["one", "two"] == node.log()


async def test_logins_are_tried_until_the_machine_is_up(world: World, node: Node) -> None:
    """Refusals at first are a machine that boots."""
    node.refuse = 3
    await world.run(spec_of(node, WRITE("one")))
    assert (["one"], 4) == (node.log(), node.logins)


async def test_another_machine_at_the_same_address_is_refused(
    world: World, node: Node, tmp_path: Path
) -> None:
    """The first host key seen is pinned, before anything is run."""
    await world.run(spec_of(node, WRITE("one")))
    assert (await world.record()).host_key.startswith("ssh-ed25519 ")
    new_key(tmp_path / "other-key")
    other = replace_port(node)
    server = await listen(other, tmp_path / "other-key")
    with pytest.raises(StepFailure, match="another machine answers at 127") as failed:
        await world.run(spec_of(other, WRITE("two")))
    server.close()
    await server.wait_closed()
    assert ("AUTH", ["one"]) == (failed.value.error, node.log())


def replace_port(node: Node) -> Node:
    """Return the same home behind another port."""
    return Node(home=node.home, key=node.key)


@pytest.mark.parametrize(
    ("commands", "changes", "says"),
    [
        (("echo {{.Secret}}",), {}, r"names {{\.Secret}}, which is none of ControlPlane"),
        (("x" * 40_000,), {}, "longer than 32768"),
        (("true",), {"private_key_path": "/nowhere/key"}, "/nowhere/key .* cannot be used"),
        (("true",), {"port": 9, "login_seconds": 0}, "failed for 0 s"),
        (("sleep 3",), {"command_seconds": 0.2}, "did not end within 0.2 s"),
    ],
)
async def test_what_cannot_be_is_said_with_the_setting_to_change(
    world: World, node: Node, commands: tuple[str, ...], changes: dict[str, Any], says: str
) -> None:
    """One row for each way in which a setup does not come about."""
    with pytest.raises(StepFailure, match=says):
        await world.run(spec_of(node, *commands, **changes))


async def test_an_instance_without_an_address_is_waited_for(world: World, node: Node) -> None:
    """The provider's list says it in the end; never is said with the time that was given."""
    await world.store.change("web.web-1", lambda now: now and replace(now, address=""))
    with pytest.raises(StepFailure, match="assigned web-1 no address within 0 s"):
        await world.run(spec_of(node, WRITE("one"), address_seconds=0))


async def test_credentials_reach_only_the_node(
    world: World, node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials are in no event, error or log, and not left on the node's disk."""
    quiet = logging.getLogger("asyncssh").level
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    set_up_logs("provisioner")
    root.handlers[:] = before
    place = nats_config(tmp_path / "bus")
    signing = str(place / SIGNING_FILE)
    templates = BootstrapTemplates(
        NatsSettings(agent_signing_file=signing),
        AgentSettings(),
        tmp_path,
        frozenset({str(node.key)}),
    )
    world.setup = SshSetup(
        world.bus, SystemClock(), world.store, providers(world.provider), templates
    )
    secret = templates.credentials(await world.record())
    token, seed = (each for each in secret.splitlines() if each and not each.startswith("--"))
    put = "cat > $HOME/creds << EOF\n{{.Credentials}}\nEOF"
    with caplog.at_level(logging.INFO), pytest.raises(StepFailure) as failed:
        await world.run(spec_of(node, put, "echo '{{.Credentials}}'; exit 3"))
    logging.getLogger("asyncssh").setLevel(quiet)

    assert secret.strip() == (node.home / "creds").read_text().strip()
    events = [each.text + each.output for each in await world.published()]
    record = repr(await world.record())
    for text in (*events, str(failed.value), caplog.text, record):
        assert token not in text
        assert seed not in text
    assert REDACTED in events[1]
    assert "base64 -d" not in caplog.text
    assert [] == list((node.home / ".navarch").glob("**/*.sh"))


def test_provisioner_starts_without_ssh() -> None:
    """Importing asyncssh takes a third of a start, and most pools set nothing up over SSH."""
    code = "import sys, services.provisioner.__main__; print('asyncssh' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
