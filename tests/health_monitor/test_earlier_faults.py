"""A machine's faults from when its name was another node's are judged once it is adopted."""

import msgspec
import pytest

from schemas.duration import Duration
from schemas.messages import encode
from schemas.node_events import Terminated
from schemas.node_records import NodeRecord, node_key
from schemas.saga_params import LaunchSpec
from schemas.settings import AgentSettings, PoolSpec, Settings
from schemas.topology import HEALTH, NODES
from tests.health_monitor.conftest import NOW, make_fault

GONE = NodeRecord(
    pool="training",
    node="training-7",
    state="terminated",
    launch=LaunchSpec(fleet="", provider="p", instance_type="t"),
    boot_id="boot-2",
    changed_at=NOW,
)
"""The second machine had registered before the cloud reported the first gone."""
ADOPTED = msgspec.structs.replace(GONE, state="active", boot_id="")
KEY = node_key("training", "training-7")


def settings(nodes: str) -> Settings:
    """Return settings of a pool whose nodes others make, or Navarch."""
    pool = PoolSpec(provider="p", instance_type="t", nodes=nodes, min_nodes=0, max_nodes=9)
    agent = AgentSettings(heartbeat_interval=Duration(0.5), heartbeat_ttl=Duration(2))
    return Settings(pools={"training": pool}, agent=agent)


@pytest.mark.parametrize(
    ("nodes", "before", "after", "status"),
    [
        ("adopted", (), (), "healthy"),
        ("adopted", ("boot-2",), (), "unhealthy"),  # it took the health of the first with it
        ("adopted", (), ("boot-2",), "unhealthy"),  # a late fact of a node that is gone, it seems
        ("adopted", ("boot-1",), (), "healthy"),  # of the first machine
        ("launched", (), ("boot-2",), "unhealthy"),  # people adopted what its launch left
    ],
)
async def test_faults_of_the_boot_that_registers_are_judged(
    world, start, bus, nodes, before, after, status
):
    """Faults of the first machine's boot are not judged."""
    await start(settings(nodes))
    await world.register("training-7", "boot-1")
    for number, boot in enumerate(before):
        await world.publish(make_fault(f"before-{number}", boot_id=boot))
    await world.settled()
    await bus.put(NODES, KEY, encode(GONE))
    await world.publish(Terminated(id="gone", time=NOW, pool="training", node="training-7"))
    await world.settled()
    for number, boot in enumerate(after):
        await world.publish(make_fault(f"after-{number}", boot_id=boot))
    await world.settled()
    assert await bus.get(HEALTH, KEY) is None
    await bus.put(NODES, KEY, encode(ADOPTED))
    await world.register("training-7", "boot-2")
    await world.settled()
    record = await world.health("training-7")
    assert (record.status, len(record.recent)) == (status, int(status == "unhealthy"))


@pytest.mark.parametrize(
    ("nodes", "boots", "expected"),
    [
        pytest.param("adopted", (), ("healthy", []), id="another machine"),
        pytest.param("adopted", ("boot-2",), ("unhealthy", ["late-0"]), id="which is faulty too"),
        pytest.param("launched", (), ("unhealthy", ["first"]), id="its names are not given again"),
    ],
)
async def test_the_health_of_a_node_that_is_gone_is_not_that_of_the_next_of_its_name(
    world, start, bus, nodes, boots, expected
):
    """The bus has refused the event of its end so far."""
    await start(settings(nodes))
    await world.register("training-7", "boot-1")
    await world.publish(make_fault("first", boot_id="boot-1"))
    for number, boot in enumerate(boots):
        await world.publish(make_fault(f"late-{number}", boot_id=boot))
    await world.settled()
    made = LaunchSpec(fleet="" if nodes == "adopted" else "f", provider="p", instance_type="t")
    gone = msgspec.structs.replace(GONE, boot_id="boot-1", launch=made)
    await bus.put(NODES, KEY, encode(gone))
    await world.register("training-7", "boot-2")
    await world.settled()
    record = await world.health("training-7")
    assert (record.status, [each.id for each in record.recent]) == expected
