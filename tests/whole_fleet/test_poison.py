"""No message and no record, whatever its fields contain, stops a service or another pool."""

import asyncio
from collections.abc import AsyncIterator

import nats
import pytest
import pytest_asyncio

from schemas.topology import EVENTS
from tests.redteam.hostile import UNSAFE
from tests.support.settling import without_shares
from tests.whole_fleet.fleet import Fleet, serving_fleet
from tests.whole_fleet.poison import poison

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

POOLS = """
  poison:
    min_nodes: 1
    max_nodes: 1
  control:
    min_nodes: 1
    max_nodes: 2
"""
AT_ONCE = 64


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    """A pool that is poisoned, and one that is not."""
    async with serving_fleet(tmp_path_factory.mktemp("poison"), POOLS) as running:
        yield running


async def test_the_rest_of_the_fleet_goes_on(fleet: Fleet) -> None:
    """Every field at its extremes: no process ends, and the other pool replaces its node."""
    (poisoned,) = await fleet.active("poison", 1)
    (healthy,) = await fleet.active("control", 1)
    pids = fleet.pids
    await without_shares(fleet.bus)
    client = await nats.connect(fleet.url)
    stream, room = client.jetstream(), asyncio.Semaphore(AT_ONCE)

    async def publish(subject: str, data: bytes) -> None:
        async with room:
            await stream.publish(subject, data, timeout=60)

    async with asyncio.TaskGroup() as group:
        for each in poison("poison", poisoned.node):
            group.create_task(publish(each.subject, each.data))
    await client.close()
    sequences = await fleet.last_sequences()
    fleet.break_gpu(healthy)
    await fleet.replaced(healthy.node, sequences[EVENTS.name])

    assert fleet.pids == pids
    for path in ("/livez", "/readyz"):
        answers = {name: answer.status_code for name, answer in (await fleet.get(path)).items()}
        assert answers == dict.fromkeys(set(pids) - {"nats-server"}, 200)
    shown = [*fleet.log]
    for answer in (await fleet.get("/metrics")).values():
        shown += answer.text.split("\n")
    assert [] == [line for line in shown if UNSAFE.search(line)]
    assert [] == [line for line in fleet.log if line.startswith("navarch:")]
