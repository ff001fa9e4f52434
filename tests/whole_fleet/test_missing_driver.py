"""Nodes in service whose driver is not loaded any more, from NVML's answer to the person who comes.

Real services and agents; a reboot by the local provider ends what is not broken for good.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import Remediated
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import OperatorNeeded
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.provisioner.providers.local_gpus import BROKEN
from services.provisioner.providers.local_host import NVML_STATE
from tests.whole_fleet.fleet import WAIT_SECONDS, Fleet, serving_fleet

_node = decoder(NodeRecord)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOL = """
  plain:
    min_nodes: 2
    max_nodes: 3
    gpu_count: 2
    windows: [{name: always, kind: service, start: "0 0 * * *", duration: 24h}]
    budget: {max_unavailable: 1, max_replacements: unlimited}
"""
HASTY = "    variables: {NAVARCH_DRIVER_WAIT: 2s}"
NOT_LOADED = "fail * 9"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Two nodes of a pool that replaces what is unhealthy, whose agents wait for two seconds."""
    directory = tmp_path_factory.mktemp("driver")
    async with serving_fleet(directory, POOL, local=HASTY) as running:
        yield running


def unload(fleet: Fleet, node: str, end: str = "") -> None:
    """Have NVML answer that the driver is not loaded; `end`: also after a reboot."""
    state = fleet.serving.directory / LOCAL_FOLDER / node / NVML_STATE
    text = state.read_text("utf-8")
    state.write_text(f"{text}{NOT_LOADED} {end}\n", "utf-8")


def load(fleet: Fleet, node: str) -> None:
    """Have NVML answer again."""
    state = fleet.serving.directory / LOCAL_FOLDER / node / NVML_STATE
    lines = state.read_text("utf-8").splitlines()
    kept = [each for each in lines if not each.startswith(NOT_LOADED)]
    state.write_text("\n".join([*kept, ""]), "utf-8")


async def at_work(fleet: Fleet, name: str) -> NodeRecord:
    """The node once it is healthy, in service and without a saga."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        aclosing(fleet.bus.watch(NODES, node_key("plain", name))) as watching,
    ):
        async for entry in watching:
            record: NodeRecord = _node.decode(entry.value)
            if not (record.saga or record.cordoned) and record.health == "healthy":
                return record
    raise AssertionError("the bus stopped")


async def remediated(fleet: Fleet, node: str, after: int) -> Remediated:
    """The next end of the node's reset or reboot."""
    subject = subjects.node_event("plain", node, "remediated")
    stored = await fleet.first(EVENTS.name, subject, after, lambda e: isinstance(e, Remediated))
    message = decode_stored(stored)
    assert isinstance(message, Remediated)
    return message


async def test_a_reboot_loads_the_driver_and_nothing_is_replaced(fleet: Fleet) -> None:
    """A pool that replaces what is unhealthy does so, too: the node is degraded."""
    node = (await fleet.active("plain", 2))[0]
    after = (await fleet.last_sequences())[EVENTS.name]
    unload(fleet, node.node)
    outcome = await remediated(fleet, node.node, after)
    now = await at_work(fleet, node.node)
    assert (outcome.remediation, outcome.outcome) == ("reboot", "recovered")
    assert now.boot_id != node.boot_id
    assert len(now.gpus) == 2


async def test_where_a_reboot_does_not_help_a_person_is_asked(fleet: Fleet) -> None:
    """The node is kept, out of service, until its driver is there: then it works by itself."""
    node = (await fleet.active("plain", 2))[1]
    after = (await fleet.last_sequences())[EVENTS.name]
    unload(fleet, node.node, BROKEN)
    subject = subjects.pool_event("plain", "operator-needed")
    stored = await fleet.first(EVENTS.name, subject, after, lambda e: isinstance(e, OperatorNeeded))
    asked = decode_stored(stored)
    assert isinstance(asked, OperatorNeeded)
    assert (asked.node, asked.cordoned) == (node.node, True)
    assert "driver is not loaded" in asked.reason
    assert f"navarch replace {node.node}" in asked.remedy
    assert (await remediated(fleet, node.node, after)).outcome == "failed"
    load(fleet, node.node)
    assert (await at_work(fleet, node.node)).boot_id != node.boot_id
    for fact, count in (("node-replaced", 0), ("operator-needed", 1)):
        events = await fleet.bus.read(EVENTS.name, subjects.pool_event("plain", fact))
        assert len(events) == count
