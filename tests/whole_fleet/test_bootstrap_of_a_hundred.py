"""Bootstrap of a hundred SSH machines at once, five of which fail, hang or disconnect.

Twenty in `make test`, all of them in `make crash-matrix`.

The real services in this process on a real server, and as many SSH servers with real shells. Only
the agent is scripted: it registers once its machine's setup has started it.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, BootChecked, GpuIdentity, NodeEvent, Registered
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.settings import PluginSettings, PoolSpec, Settings, SetupSettings
from schemas.topology import HEARTBEATS, INSTANCES, NODES
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.explanation import why
from services.fleet_client.fleet_client import FleetClient
from services.health_monitor.service import build as build_health_monitor
from services.notifier.service import build as build_notifier
from services.pool_manager.service import build as build_pool_manager
from services.provisioner.service import build as build_provisioner
from tests.provisioner.ssh_machines import USER, Box, Machines, machines
from tests.support.inprocess import Running, eventually
from tests.support.wide import WHOLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NODES_WANTED = 100 if WHOLE else 20
SPARE = 5
COMMAND_SECONDS = 10.0
WITHIN_SECONDS = 240.0
KINDS = {7: "fails", 8: "fails", 12: "hangs", 13: "hangs", 17: "drops"}
"""Which machines are bad, in the order in which their setup begins."""
WELL, AGENT = "mkdir -p $HOME/opt", "echo {{.NodeID}} > $HOME/agent"
BROKEN = "echo no such package; exit 100"

SERVICES = {
    "pool-manager": build_pool_manager,
    "provisioner": build_provisioner,
    "health-monitor": build_health_monitor,
    "notifier": build_notifier,
}

_FAILED = r"scale-up-\S+ bootstrap failed after [\d.]+ m?s: "
REASONS = {
    "fails": re.compile(
        _FAILED + r"setup command 2 of 3 \(.*\) ended with 100; "
        r"it wrote: no such package$"
    ),
    "hangs": re.compile(
        _FAILED + r"setup command 1 of 3 \(mkdir -p \$HOME/opt\) did not "
        r"end within 10 s \(command_timeout\)$"
    ),
    "drops": re.compile(
        _FAILED + r"the SSH connection to 127\.0\.0\.1:\d+ broke 5 times; "
        r"0 of 3 setup commands have run$"
    ),
}
"""The first line of `navarch why` for a node on such a machine."""

_instances = decoder(InstanceRecord)
_nodes = decoder(NodeRecord)


class ScriptedAgents:
    """The agents that setup starts on the machines."""

    def __init__(self, bus: NatsBus) -> None:
        self._bus = bus
        self.started: dict[str, asyncio.Task[None]] = {}
        self.ran: Counter[str] = Counter()
        """How often each node's agent was started by a setup command."""

    def after(self, box: Box, command: str) -> None:
        """Register a node once its machine has the file that starts the agent."""
        del command
        file = box.home / "agent"
        if not file.exists():
            return
        node = file.read_text().strip()
        file.unlink()
        self.ran[node] += 1
        if node not in self.started:
            self.started[node] = asyncio.create_task(self._register(node))

    async def _register(self, node: str) -> None:
        about = {"time": datetime.now(UTC), "pool": "training", "node": node}
        gpus = tuple(GpuIdentity(index=each, uuid=f"GPU-{node}-{each}") for each in range(8))
        registered = Registered(
            id=f"registered-{node}", instance=node, boot_id="b1", gpus=gpus, **about
        )
        beat = HeartbeatRecord(pool="training", node=node, instance=node, time=about["time"])
        await self._bus.put(HEARTBEATS, node_key("training", node), encode(beat), ttl_seconds=600)
        await self._publish(registered)
        await self._publish(BootChecked(id=f"boot-{node}", ok=True, boot_id="b1", **about))

    async def _publish(self, event: NodeEvent) -> None:
        subject = subjects.node_event(event.pool, event.node, FACTS[type(event)])
        await self._bus.publish(subject, encode(event), msg_id=event.id)


class FaultyMachines:
    """Decides which machines fail, and how: the first ones whose setup begins."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def before(self, box: Box, command: str) -> None:
        """Inject the machine's failure when its setup begins."""
        if ".navarch/setup/" not in command:
            return
        failures = self.failures.setdefault(box.name, KINDS.get(len(self.failures), "works"))
        number = len(box.commands)
        match failures:
            case "fails":
                (box.home / "broken").touch()
            case "hangs":
                box.hangs.add(number)
            case "drops":
                box.drops.add(number)
            case _:
                return


@pytest.fixture
async def racks(tmp_path: Path) -> AsyncIterator[Machines]:
    """Yield every machine, running."""
    (tmp_path / "machines").mkdir()
    async with machines(tmp_path / "machines", NODES_WANTED + SPARE) as all_:
        yield all_


def settings(racks: Machines, folder: Path) -> Settings:
    """A pool of a hundred from that inventory."""
    inventory = [
        {"name": each.name, "host": "127.0.0.1", "port": each.port, "type": "h100-8x"}
        for each in racks.boxes.values()
    ]
    provider = PluginSettings(
        type="ssh",
        options={
            "machines": inventory,
            "user": USER,
            "key_file": str(racks.key),
            "sudo": False,
            "claim_folder": "~/claim",
            "reboot_command": "",
            "command_timeout": "60s",
            "connect_timeout": "60s",
        },
    )
    pool = PoolSpec(
        provider="racks",
        instance_type="h100-8x",
        gpu_count=8,
        min_nodes=NODES_WANTED,
        max_nodes=NODES_WANTED,
        ssh_user=USER,
        ssh_private_key_path=str(racks.key),
        setup_commands=(WELL, "[ ! -e $HOME/broken ] || { " + BROKEN + "; }", AGENT),
        setup=SetupSettings(sudo=False, command_timeout=Duration(COMMAND_SECONDS)),
    )
    return Settings(
        fleet="hundred",
        data_dir=str(folder),
        providers={"racks": provider},
        pools={"training": pool},
    )


async def test_a_hundred_bootstraps_with_five_failures(
    server: EmbeddedServer, bus: NatsBus, racks: Machines, tmp_path: Path
) -> None:
    """Five nodes fail, report why and are replaced; all others are admitted; no machine leaks."""
    agents, faulty = ScriptedAgents(bus), FaultyMachines()
    for box in racks.boxes.values():
        box.before, box.after = faulty.before, agents.after
    given = settings(racks, tmp_path / "data")
    async with AsyncExitStack() as stack:
        for name, build in SERVICES.items():
            await stack.enter_async_context(Running(server.url, name, build, given))

        async def all_active() -> bool:
            found = [_nodes.decode(each.value) for each in await bus.entries(NODES)]
            return sum(each.state == "active" for each in found) == NODES_WANTED

        await eventually(all_active, within_seconds=WITHIN_SECONDS, every=0.2)
        records = [_instances.decode(each.value) for each in await bus.entries(INSTANCES)]
    running = {each.instance for each in records if each.state == "running"}
    gone = {each.host: each.instance for each in records if each.state == "terminated"}
    assert (NODES_WANTED, len(KINDS)) == (len(running), len(gone))
    assert list(KINDS.values()) == [
        faulty.failures[each] for each in sorted(gone, key=list(faulty.failures).index)
    ]
    assert dict.fromkeys(set(racks.boxes) - set(gone), "held") == racks.claims()
    assert dict.fromkeys(running, 1) == agents.ran

    for host, node in gone.items():
        answer = await why(FleetClient(bus), node)
        tried = [each.text for each in answer.lines if each.topic == "tried"]
        assert REASONS[faulty.failures[host]].match(tried[0]), tried
        assert answer.summary.startswith(f"{node} in pool training is terminated")
        assert ("It is terminated; nothing is in progress.",) == answer.now
