"""A region whose link is really cut: its server and agents in a network namespace of their own.

The fleet's server and services are at the host, with credentials; so are the region's server, with
the files of `navarch nats-config region`, and its agents. The settings are shortened: a silent node
is replaced after five seconds, and the cut lasts three times as long.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from schemas import subjects
from schemas.messages import Message, decoder
from schemas.node_events import Fault, Lost, Returned, Verdict
from schemas.node_records import NodeRecord
from schemas.pool_events import Incident, NodeReplaced
from schemas.saga_log_entries import SagaStarted
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES, SAGAS
from services.bus.nats.nats_bus import NatsBus
from services.cli.nats_config_files import CONF
from services.cli.region_files import REGIONS
from tests.crash.provider_truth import FakeProviderTruth
from tests.crash.replica_process import ROOT, Replica
from tests.crash.rig import SERVICES
from tests.crash.scripted_agents import GONE, write_fault
from tests.support.inprocess import eventually
from tests.support.network import Network, missing
from tests.support.region_servers import RegionServer, connected, written_region
from tests.support.secured import Secured, serving_secured

pytestmark = pytest.mark.real

POOL = "eu"
NODES_WANTED = 3
LOST_AFTER_SECONDS = 5.0
CUT_SECONDS = 15.0
WAIT_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1
REGION = "region"

_node = decoder(NodeRecord)


@pytest.fixture(autouse=True)
def network_namespace_support() -> None:
    """Skip where links cannot be made; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


@dataclass
class Region:
    """The fleet, seen from its own server, and the agents behind the link."""

    directory: Path
    network: Network
    bus: NatsBus
    region: Secured
    server: RegionServer
    provider: FakeProviderTruth
    agents: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def run(self) -> None:
        """Start an agent for each instance, and kill it with its instance."""
        while True:
            names = self.provider.names()
            for name in set(names) - set(self.agents):
                self.agents[name] = await self._agent(name)
            for name in set(self.agents) - set(names):
                await ended(self.agents.pop(name))
            await asyncio.sleep(LOOK_SECONDS)

    async def _agent(self, node: str) -> asyncio.subprocess.Process:
        folder = self.directory / node
        folder.mkdir()
        self.kmsg(node).touch()
        kept = {key: each for key, each in os.environ.items() if not key.startswith("NAVARCH_")}
        settings = {
            "POOL": POOL,
            "NODE": node,
            "NATS_URL": self.region.url,
            "NATS_CREDS_FILE": str(self.region.file(f"agent:{POOL}/{node}")),
            "KMSG": str(self.kmsg(node)),
            "STATE_DIR": str(folder),
            "GPU_COUNT": "0",
            "CLOUD": "none",
            "HEARTBEAT_INTERVAL": "1s",
            "HEARTBEAT_TTL": "3s",
        }
        with (folder / "agent.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *(*self.network.through(REGION), sys.executable, "-m", "agent"),
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=kept | {f"NAVARCH_{name}": value for name, value in settings.items()},
            )

    def kmsg(self, node: str) -> Path:
        """Return a node's kernel log."""
        return self.directory / node / "kmsg"

    async def in_service(self) -> list[str]:
        """The nodes in service, heard and without a saga."""
        records = [_node.decode(each.value) for each in await self.bus.entries(NODES)]
        return sorted(
            each.node
            for each in records
            if each.state == "active" and not (each.lost or each.saga or each.cordoned)
        )

    async def events(self) -> list[Message]:
        """Return every event and every entry of a saga's log, in order."""
        stored = [
            *await self.bus.read(EVENTS.name, subjects.NODE_EVENTS),
            *await self.bus.read(EVENTS.name, subjects.POOL_EVENTS),
            *await self.bus.read(SAGAS.name, subjects.SAGAS),
        ]
        return [decode_stored(each) for each in stored]


async def ended(process: asyncio.subprocess.Process) -> None:
    """Kill a process that may have ended, and wait for its end."""
    if process.returncode is None:
        process.kill()
    await process.wait()


def settings(folder: Path, directory: Path) -> dict[str, object]:
    """Return the configuration of the services."""
    budget = {"max_unavailable": "100%", "max_replacements": "unlimited"}
    pool = {
        "provider": "fake",
        "instance_type": "simulated",
        "region": POOL,
        "gpu_count": 0,
        "min_nodes": NODES_WANTED,
        "max_nodes": NODES_WANTED + 2,
        "budget": budget,
        "drain_timeout": "5s",
        "launch_timeout": "180s",
        "health": {
            "lost_after": f"{LOST_AFTER_SECONDS:.0f}s",
            "incident": {"hold": "8s", "stage": "1s"},
        },
    }
    return {
        "fleet": "regions",
        "nats": {"creds_file": str(directory / "creds" / "{service}.creds")},
        "data_dir": str(folder / "data"),
        "providers": {"fake": {"file": str(folder / "provider.db")}},
        "pools": {POOL: pool},
        "budget": budget,
        "agent": {"heartbeat_interval": "1s", "heartbeat_ttl": "3s"},
    }


@asynccontextmanager
async def fleet(folder: Path, *, notices: bool) -> AsyncIterator[Region]:
    """A fleet whose pool is in the region; `notices`: its server finds a cut within seconds."""
    async with AsyncExitStack() as running:
        network = running.enter_context(Network({REGION: REGION}))
        directory = folder / "bus"
        config, _ = written_region(directory, [POOL], network.host)
        hub = await running.enter_async_context(
            serving_secured(directory, folder / "hub", config, network.host)
        )
        conf = directory / REGIONS / "eu" / CONF
        if notices:
            conf.write_text(conf.read_text().replace('"20s"', '"500ms"'))
        server = RegionServer(
            folder / "region",
            config=conf,
            arguments=("--addr", network.address(REGION)),
            through=network.through(REGION),
        )
        await server.start()
        running.push_async_callback(server.kill)
        bus = await connected(hub, "admin")
        running.push_async_callback(bus.close)
        file = folder / "navarch.yaml"
        file.write_text(json.dumps(settings(folder, directory)))
        kept = {key: each for key, each in os.environ.items() if not key.startswith("NAVARCH_")}
        environment = kept | {"NAVARCH_NATS_URL": hub.url, "NAVARCH_CONFIG": str(file)}
        unexpected: list[str] = []
        for service in SERVICES:
            replica = Replica(service, 1, environment, folder, unexpected.append)
            await replica.start()
            running.push_async_callback(replica.stop)
        provider = FakeProviderTruth(folder / "provider.db")
        region = Region(folder, network, bus, Secured(server, directory), server, provider)
        task = asyncio.create_task(region.run())
        try:
            yield region
            assert unexpected == []
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for each in region.agents.values():
                await ended(each)


@pytest.mark.parametrize("notices", [False, True], ids=["unnoticed", "noticed"])
async def test_a_region_is_cut_off_and_loses_nothing(tmp_path: Path, notices: bool) -> None:
    """Nothing is replaced for silence; two nodes break meanwhile, and are replaced, once."""
    async with fleet(tmp_path, notices=notices) as region:

        async def all_in_service() -> list[str]:
            found = await region.in_service()
            return found if len(found) == NODES_WANTED else []

        async def all_lost() -> bool:
            return sum(isinstance(each, Lost) for each in await region.events()) == NODES_WANTED

        async def replaced() -> bool:
            found = await region.events()
            return sum(isinstance(each, NodeReplaced) for each in found) == len(broken)

        nodes = await eventually(all_in_service, within_seconds=WAIT_SECONDS_MAX)
        before = await region.events()
        region.network.cut(REGION)
        broken = nodes[:2]
        for node in broken:
            write_fault(region.kmsg(node), node, GONE, 1)
        await eventually(all_lost, within_seconds=WAIT_SECONDS_MAX)
        await asyncio.sleep(CUT_SECONDS)  # the cut itself
        during = await region.events()
        made = region.provider.truth().made

        region.network.heal(REGION)
        await eventually(replaced, within_seconds=WAIT_SECONDS_MAX)
        await eventually(all_in_service, within_seconds=WAIT_SECONDS_MAX)
        after = await region.events()

    assert made == NODES_WANTED
    assert notices is ("Leafnode connection closed" in region.server.log)
    begun = [each for each in during if isinstance(each, Fault | SagaStarted)]
    assert [each for each in begun if each not in before] == []
    assert [each.kind for each in during if isinstance(each, Incident)] == ["silence"]
    faults = [each.node for each in after if isinstance(each, Fault)]
    judged = [
        each.node for each in after if isinstance(each, Verdict) and each.status == "unhealthy"
    ]
    gone = [each.old_node for each in after if isinstance(each, NodeReplaced)]
    back = {each.node for each in after if isinstance(each, Returned)}
    assert sorted(faults) == sorted(judged) == sorted(gone) == broken
    assert nodes[2] in back
    assert region.provider.truth().made == NODES_WANTED + len(broken)
