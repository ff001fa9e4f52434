"""Agents on hosts of their own: one node ID on two hosts, and a host that is renamed.

Each host is a namespace of this machine with its own link, address and host name.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import MachineRefused, Registered, node_codec
from schemas.node_records import NodeRecord, node_key
from schemas.topology import EVENTS, NODES
from services.provisioner.providers.local_gpus import compiler
from services.provisioner.providers.local_host import KMSG, NVML_STATE, START, AgentStart
from services.provisioner.providers.local_process import PID
from tests.crash.fleet_settings import POOL
from tests.crash.fleet_shape import Shape
from tests.crash.rig import Rig
from tests.crash.scripted_agents import GONE, write_fault
from tests.support.network import Network, missing

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(compiler() is None, reason="no C compiler, so no simulated GPUs"),
]

OTHER = "other-host"
HEARD_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.1
CONDEMNED_WITHIN_SECONDS = 5.0
"""A fatal fault of a node's own machine has opened a saga well before."""
START_RENAMED = 'hostname "$0" && exec "$@"'

_nodes = decoder(NodeRecord)


@pytest.fixture(autouse=True)
def network_namespace_support() -> None:
    """Skip where hosts cannot be made; checked only when these tests run."""
    if reason := missing():
        pytest.skip(reason)


@asynccontextmanager
async def agent(
    start: AgentStart, hostname: str, through: tuple[str, ...] = ()
) -> AsyncIterator[None]:
    """An agent on a host of that name."""
    process = await asyncio.create_subprocess_exec(
        *(*through, "unshare", "--uts", "sh", "-c", START_RENAMED, hostname, *start.command),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=start.environment,
        start_new_session=True,
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def node_event(rig: Rig, kind: type, node: str, fits: Callable[[object], bool]) -> object:
    """Wait for an event about a node."""
    async with asyncio.timeout(HEARD_SECONDS_MAX):
        while True:
            for stored in await rig.bus.read(EVENTS.name, subjects.node_events_of(POOL, node)):
                event = node_codec.decode(stored.data)
                if isinstance(event, kind) and fits(event):
                    return event
            await asyncio.sleep(LOOK_SECONDS)


async def record_of(rig: Rig, node: str) -> NodeRecord:
    """Return a node's record."""
    entry = await rig.bus.get(NODES, node_key(POOL, node))
    assert entry is not None
    record: NodeRecord = _nodes.decode(entry.value)
    return record


def start_of(rig: Rig, node: str) -> tuple[Path, AgentStart]:
    """Return the place of a node's machine, and how its agent is started."""
    place = rig.directory / "data" / "local" / node
    return place, msgspec.json.decode((place / START).read_bytes(), type=AgentStart)


async def test_a_second_host_with_a_nodes_id_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    """The node's own host is the node; a fatal fault of the other one condemns nothing."""
    shape = Shape(provider="local")
    with Network({"second": OTHER}) as network:
        async with Rig(tmp_path / "fleet", shape, network) as rig:
            node = await rig.oldest()
            place, start = start_of(rig, node)
            second = tmp_path / OTHER
            second.mkdir()
            gpus = (place / NVML_STATE).read_text("utf-8").replace("GPU-", "GPU-other-")
            (second / NVML_STATE).write_text(gpus, "utf-8")
            (second / KMSG).touch()
            changed = {
                "NAVARCH_BOOT_ID": "11111111-2222-3333-4444-555555555555",
                "NAVARCH_ADDRESS": network.address(OTHER),
                "NAVARCH_KMSG": str(second / KMSG),
                "NAVARCH_NVML_STATE": str(second / NVML_STATE),
                "NAVARCH_STATE_DIR": str(second / "state"),
                "NAVARCH_EXIT_WITHOUT": str(second),
            }
            other = msgspec.structs.replace(start, environment=start.environment | changed)
            async with agent(other, OTHER, network.through("second")):
                event = await node_event(rig, MachineRefused, node, lambda _: True)
                assert isinstance(event, MachineRefused)
                names = {event.machine.hostname, event.refused.hostname}
                assert names == {(await record_of(rig, node)).hostname, OTHER}
                assert event.refused.hostname == OTHER
                write_fault(second / KMSG, node, GONE, 1)
                await asyncio.sleep(CONDEMNED_WITHIN_SECONDS)  # nothing happens meanwhile
                record = await record_of(rig, node)
                assert (record.state, record.health) == ("active", "healthy")
            found, report = await rig.differences()
            assert not found, report


@pytest.mark.parametrize("boots", [False, True], ids=["its agent restarts", "it boots"])
async def test_a_renamed_host_stays_the_node_that_it_was(tmp_path: Path, *, boots: bool) -> None:
    """The workload system knows a node by the name at admission, which stays in the record."""
    async with Rig(tmp_path / "fleet", Shape(provider="local")) as rig:
        node = await rig.oldest()
        place, start = start_of(rig, node)
        before = await record_of(rig, node)
        changed = {"NAVARCH_EXIT_WITHOUT": str(tmp_path)}
        if boots:
            changed["NAVARCH_BOOT_ID"] = "11111111-2222-3333-4444-555555555555"
        renamed = msgspec.structs.replace(start, environment=start.environment | changed)
        pid = int((place / PID).read_text())
        os.kill(pid, signal.SIGTERM)
        async with agent(renamed, "renamed"):
            await node_event(
                rig,
                Registered,
                node,
                lambda event: isinstance(event, Registered) and event.hostname == "renamed",
            )
            found, report = await rig.differences()
            assert not found, report
            after = await record_of(rig, node)
            assert (after.state, after.health) == ("active", "healthy")
            assert after.hostname == before.hostname
            assert after.identity is not None
            assert after.identity.machine.hostname == "renamed"
            assert after.identity.refused == ()
