"""A pool with `remediation: ladder` brings a node from a kernel log line back to health.

Real services and agents; the local provider simulates the GPU reset and the reboot.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import groupby

import pytest
import pytest_asyncio

from schemas import subjects
from schemas.messages import decoder
from schemas.node_events import Remediated
from schemas.node_records import NodeRecord, node_key
from schemas.pool_events import NodeReplaced
from schemas.stored_messages import decode_stored
from schemas.topology import EVENTS, NODES
from services.cli.fleet_discovery import LOCAL_FOLDER
from services.provisioner.providers.local_gpus import kmsg_record
from tests.whole_fleet.fleet import WAIT_SECONDS, Fleet, serving_fleet

_node = decoder(NodeRecord)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

LADDER = """
  ladder:
    min_nodes: 2
    max_nodes: 3
    gpu_count: 2
    health:
      remediation: ladder
      lost_after: 1s
    budget:
      max_unavailable: 1
      max_replacements: unlimited
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """Yield a fleet of two nodes with two GPUs each."""
    async with serving_fleet(tmp_path_factory.mktemp("ladder"), LADDER) as running:
        yield running


def write_xid_95(fleet: Fleet, node: NodeRecord) -> None:
    """Write XID 95 to the node's kernel log: its remedy is a GPU reset."""
    kmsg = fleet.kmsg(node.node)
    sequence = kmsg.read_bytes().count(b"\n") + 1
    text = f"NVRM: Xid (PCI:{node.gpus[1].pci}): 95, pid=7, name=python, Uncontained: LTC TAG"
    with kmsg.open("ab") as log:
        log.write(kmsg_record(sequence, sequence, text))


async def remediated(fleet: Fleet, node: str, after: int) -> tuple[Remediated, int]:
    """Wait for the next end of a reset or reboot; return it and its sequence."""
    stored = await fleet.first(
        EVENTS.name,
        subjects.node_event("ladder", node, "remediated"),
        after,
        lambda message: isinstance(message, Remediated),
    )
    message = decode_stored(stored)
    assert isinstance(message, Remediated)
    return message, stored.sequence


async def recovered(fleet: Fleet, name: str) -> NodeRecord:
    """A node once it has a new verdict after its uncordon and no open saga."""
    async with (
        asyncio.timeout(WAIT_SECONDS),
        aclosing(fleet.bus.watch(NODES, node_key("ladder", name))) as watching,
    ):
        async for entry in watching:
            record: NodeRecord = _node.decode(entry.value)
            if not record.saga and record.health == "healthy":
                return record
    raise AssertionError("the bus stopped")


async def test_ladder_tries_the_mildest_remedy_first(fleet: Fleet) -> None:
    """A reset helps; the same fault again is reset again, then rebooted, and at last replaced."""
    first = (await fleet.active("ladder", 2))[0]
    sequence = (await fleet.last_sequences())[EVENTS.name]
    seen = []
    for _ in range(3):
        write_xid_95(fleet, first)
        outcome, sequence = await remediated(fleet, first.node, sequence)
        now = await recovered(fleet, first.node)
        seen.append((outcome.remediation, outcome.outcome, outcome.attempt, outcome.attempts_max))
        assert ("healthy", False, "active") == (now.health, now.cordoned, now.state)
        assert (now.boot_id != first.boot_id) == (outcome.remediation == "reboot")

    assert [
        ("reset-gpu", "recovered", 1, 3),
        ("reset-gpu", "recovered", 2, 3),
        ("reboot", "recovered", 3, 3),
    ] == seen
    assert ["reset-gpu", "reset-gpu", "reboot"] == [each.kind for each in now.attempts]
    replaced = await fleet.bus.read(EVENTS.name, subjects.pool_event("ladder", "node-replaced"))
    assert [] == replaced

    write_xid_95(fleet, first)
    end = await fleet.replaced(first.node, sequence)
    assert isinstance(end, NodeReplaced)
    assert "a GPU reset has not helped, 2 times; a reboot has not helped, once" in end.reason
    # The workload system received each cordon, drain and uncordon.
    orders = [path for path, _ in groupby(e.path for e in fleet.workload.orders_about(first.node))]
    assert ["/cordon", "/drain", "/uncordon"] * 3 + ["/cordon", "/drain"] == orders


async def test_node_without_its_agent_is_rebooted_by_its_provider(fleet: Fleet) -> None:
    """A node whose agent is killed is silent, and returns with another boot of its instance."""
    node = (await fleet.active("ladder", 2))[-1]
    sequence = (await fleet.last_sequences())[EVENTS.name]
    home = fleet.serving.directory / LOCAL_FOLDER / node.node
    os.kill(int((home / "pid").read_text()), signal.SIGKILL)
    outcome, _ = await remediated(fleet, node.node, sequence)
    now = await recovered(fleet, node.node)

    assert ("reboot", "recovered", "silence") == (
        outcome.remediation,
        outcome.outcome,
        outcome.fault_signature,
    )
    assert ("healthy", False, False) == (now.health, now.cordoned, now.lost)
    assert now.boot_id not in ("", node.boot_id)
    (by,) = [
        entry.outputs["by"]
        for entry in map(
            decode_stored, await fleet.bus.read("SAGAS", subjects.saga_tree(outcome.saga))
        )
        if getattr(entry, "step", "") == "reboot" and hasattr(entry, "outputs")
    ]
    assert "local" == by
