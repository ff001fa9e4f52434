"""Adopted nodes are forgotten on an operator's order, and come back by no other way."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agent import fleet_join
from schemas.enums import FORGOTTEN
from schemas.instance_records import InstanceRecord
from schemas.join_tokens import (
    LEAVE,
    ForgetAnswer,
    NodeOfPool,
)
from schemas.node_records import NodeRecord
from schemas.operations import FORGET, PLAN_FORGET
from schemas.saga_params import LaunchSpec
from schemas.settings import FleetBudgetSpec
from schemas.sweeps import SweepRequest
from services.bus.nats.nats_bus import NatsBus
from services.fleet_client.fleet_client import FleetClient
from services.pool_manager.pool_store import Store
from services.primitives.errors import NavarchError
from services.provisioner.removal.sweep_actions import LEFT
from tests.provisioner.join_site import Partition, Site, join_site


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Serve as the provisioner and the pool-manager, each with its own credentials."""
    async with join_site(tmp_path) as found:
        yield found


async def forget(site: Site, node: str = "gpu-01", pool: str = "slurm") -> ForgetAnswer:
    """Have the operator forget a node."""
    return await site.operator.perform(FORGET, NodeOfPool(pool=pool, node=node))


async def test_a_forgotten_node_does_not_come_back_by_itself(site: Site) -> None:
    """Record, agent and token end, and a sweep adopts it again by an operator's word alone."""
    partition = Partition()
    async with site.sweeping(partition) as sweeper:
        await sweeper.sweep()
        token = await site.token(pool="slurm")
        await site.join(token, "one")
        asked = NodeOfPool(pool="slurm", node="gpu-01")
        planned = await site.operator.perform(PLAN_FORGET, asked)
        kept = await site.store.get("slurm.gpu-01")
        found = await forget(site)
        again = await forget(site)
        for _ in range(2):
            await sweeper.sweep()
        record, node = await site.store.get("slurm.gpu-01"), await site.node("gpu-01", "slurm")
        with pytest.raises(NavarchError, match="was revoked"):
            await site.join(token, "thief")
        with pytest.raises(NavarchError, match=r"forgotten; .*navarch sweep --adopt gpu-01"):
            await site.token(pool="slurm")
        await sweeper.sweep(SweepRequest(adopt=("gpu-01",)))
        back, after = await site.store.get("slurm.gpu-01"), await site.node("gpu-01", "slurm")
        await site.token(pool="slurm")

    assert planned == found == again
    assert (True, True, "machines") == (found.is_listed, found.has_agent, found.provider)
    assert None not in (kept, record, node, back, after)
    assert ("running", "") == (kept.state, kept.error)
    assert ("terminated", "terminated", FORGOTTEN) == (node.state, record.state, record.error)
    assert ("running", "", "active") == (back.state, back.agent_key, after.state)


async def test_a_machine_that_joined_is_forgotten_as_it_leaves(site: Site) -> None:
    """Nothing lists it: a token alone brings it back."""
    await site.join(await site.token(), "one")
    found = await forget(site, pool="gpu")
    record, node = await site.store.get("gpu.gpu-01"), await site.node()
    with pytest.raises(NavarchError, match="no machine gpu-01 has joined pool gpu"):
        await forget(site, pool="gpu")

    assert not found.is_listed
    assert None not in (record, node)
    assert ("terminated", LEFT, "terminated") == (record.state, record.error, node.state)
    fleet_join.leave(site.place("one"))
    assert "joined as gpu-01" in await site.join(await site.token(), "one")


async def test_a_launched_node_is_not_forgotten(site: Site) -> None:
    """A machine without a record would go on to cost money; `leave` says the same."""
    await site.join(await site.token(), "one")
    joined = await site.store.get("gpu.gpu-01")
    assert joined is not None
    launch = LaunchSpec(provider="machines", instance_type="x", fleet="f")
    launched = msgspec.structs.replace(joined, pool="web", launch=launch)
    assert await site.store.create(launched)
    asked = NodeOfPool(pool="web", node="gpu-01")
    for order in (FORGET, PLAN_FORGET):
        with pytest.raises(NavarchError, match=r"launches its nodes.*`navarch terminate gpu-01`"):
            await site.operator.perform(order, asked)
    with pytest.raises(NavarchError, match="`navarch terminate gpu-01`"):
        await site.operator.order(LEAVE, asked)

    assert await site.store.get("web.gpu-01") == launched


async def test_a_node_with_a_saga_is_not_forgotten(site: Site) -> None:
    """A refused order is not carried out by a sweep later."""
    partition = Partition()
    async with site.sweeping(partition) as sweeper:
        await sweeper.sweep()
        store = Store(site.bus, FleetBudgetSpec())

        def draining(found: NodeRecord | None) -> NodeRecord | None:
            return found and msgspec.structs.replace(found, saga="drain-gpu-01-1")

        await store.change_node("slurm", "gpu-01", draining)
        with pytest.raises(NavarchError, match="navarch saga cancel drain-gpu-01-1"):
            await forget(site)
        await sweeper.sweep()
    record = await site.store.get("slurm.gpu-01")

    assert record is not None
    assert ("running", "") == (record.state, record.error)


async def test_a_sweep_ends_what_a_killed_process_began_to_forget(site: Site) -> None:
    """The mark is written first; the node's record is still there."""
    partition = Partition()
    async with site.sweeping(partition) as sweeper:
        await sweeper.sweep()

        def marked(record: InstanceRecord) -> InstanceRecord:
            return msgspec.structs.replace(record, error=FORGOTTEN)

        await site.store.amend("slurm.gpu-01", marked, "running")
        for _ in range(2):
            await sweeper.sweep()
    record, node = await site.store.get("slurm.gpu-01"), await site.node("gpu-01", "slurm")

    assert None not in (record, node)
    assert ("terminated", "terminated", FORGOTTEN) == (record.state, node.state, record.error)


async def test_a_viewer_forgets_nothing(site: Site) -> None:
    """The server refuses the order before a service sees it."""
    await site.join(await site.token(), "one")
    bus = await NatsBus.connect(site.secured.options("viewer"))
    viewer = FleetClient(bus, user="viewer")
    with pytest.raises(NavarchError):
        await viewer.perform(FORGET, NodeOfPool(pool="gpu", node="gpu-01"))
    await bus.close()
    record = await site.store.get("gpu.gpu-01")

    assert record is not None
    assert record.state == "running"
