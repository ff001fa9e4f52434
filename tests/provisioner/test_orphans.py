"""Orphans: a lost store costs no healthy node, and operators see what it leaves behind."""

import asyncio
from datetime import datetime, timedelta

import pytest

from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_events import pool_codec
from schemas.pool_records import FLEET_KEY, FleetRecord, PoolRecord, pool_key
from schemas.settings import FleetBudgetSpec, PoolSpec
from schemas.subjects import pool_event_wildcard
from schemas.sweeps import SweepRequest
from schemas.topology import EVENTS, INSTANCES, NODES, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.bus.topology_setup import set_up
from services.operator_text import event_text
from services.pool_manager.node_adoption import NodeAdoption
from services.pool_manager.node_rebuilder import NodeRebuilder
from services.pool_manager.pool_store import Store
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.removal.sweep_decisions import is_of_fleet
from services.provisioner.removal.sweeper import Sweeper
from tests.provisioner.provisioner_parts import (
    QUICK,
    fake,
    providers,
    request,
    serve_pool_manager,
    step_handlers,
    steps,
)

NAME = "fleet-one"
FLEET = f"{NAME}-00000b"
EARLIER = f"{NAME}-00000a"


@pytest.fixture
async def fleet(bus: NatsBus) -> NatsBus:
    """A new store, which has given its fleet another ID."""
    await bus.put(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
    return bus


def sweeper(bus: NatsBus, provider: FakeProvider) -> Sweeper:
    """Return the sweep of one replica."""
    remover = steps(bus, provider).remover
    calls, store = providers(provider), InstanceStore(bus)
    return Sweeper(bus, SystemClock(), store, calls, remover, QUICK, fleet_name=NAME)


async def names(provider: FakeProvider) -> list[str]:
    """Return the names that the provider lists."""
    return sorted(each.name for each in await provider.list())


async def test_instances_of_a_lost_store_are_shown_and_left_alone(fleet: NatsBus) -> None:
    """Each is recorded as orphaned and published once; the plan names the commands."""
    provider = fake()
    await provider.provision(request("web-1", fleet=EARLIER))
    await provider.provision(request("web-2", fleet="fleet-one-blue"))
    sweeping = sweeper(fleet, provider)
    for _ in range(2):
        await sweeping.sweep()
    record = await InstanceStore(fleet).get("web.web-1")
    assert record is not None
    assert (record.state, record.provider_id) == ("orphaned", "fake-000001")
    assert "navarch sweep --adopt web-1" in record.error
    assert await InstanceStore(fleet).get("web.web-2") is None
    assert await names(provider) == ["web-1", "web-2"]
    assert len(await fleet.read(EVENTS.name, pool_event_wildcard("instance-leaked"))) == 1


class Ahead(SystemClock):
    """A clock that is days ahead."""

    days = 0

    def now(self) -> datetime:
        """Return the time by then."""
        return super().now() + timedelta(days=self.days)


async def test_an_orphan_is_published_each_day_with_its_price(fleet: NatsBus) -> None:
    """An orphan costs money for as long as no operator acts; within a day it is published once."""
    provider, clock = fake(dollars_per_hour=2.5), Ahead()
    await provider.provision(request("web-1", fleet=EARLIER))
    calls = providers(provider)
    remover = step_handlers(fleet, calls, clock=clock).remover
    sweeping = Sweeper(fleet, clock, InstanceStore(fleet), calls, remover, QUICK, fleet_name=NAME)
    for clock.days in (0, 0, 1, 1, 2):
        await sweeping.sweep()
    stored = await fleet.read(EVENTS.name, pool_event_wildcard("instance-leaked"))
    events = [pool_codec.decode(each.data) for each in stored]
    assert len({each.id for each in events}) == len(events) == 3
    assert [event_text.describe(each).detail.count("$2.5 an hour") for each in events] == [1, 1, 1]


async def test_an_orphan_is_terminated_on_command_only(fleet: NatsBus) -> None:
    """The command names one; the other stays."""
    provider = fake()
    for name in ("web-1", "web-2"):
        await provider.provision(request(name, fleet=EARLIER))
    sweeping = sweeper(fleet, provider)
    await sweeping.sweep()
    await sweeping.sweep(SweepRequest(terminate=("web-2",)))
    assert await names(provider) == ["web-1"]


async def test_an_adopted_orphan_is_a_node_of_its_pool_again(fleet: NatsBus) -> None:
    """The pool-manager records the node, then its instance is recorded as running."""
    provider = fake()
    await provider.provision(request("web-1", fleet=EARLIER))
    spec = PoolSpec(provider="fake", instance_type="h100", min_nodes=1, max_nodes=9)
    pool = PoolRecord(name="web", spec=spec, desired=1)
    await fleet.put(POOLS, pool_key("web"), encode(pool))
    store = Store(fleet, FleetBudgetSpec())

    async def reconcile(_: str) -> None:
        """Nothing to decide here."""

    rebuilder = NodeRebuilder(fleet, SystemClock(), store)
    adoption = NodeAdoption(fleet, SystemClock(), store, rebuilder.last_events, reconcile, 0.0)
    await fleet.serve("pool-manager", "", adoption.endpoints())
    watching = asyncio.create_task(store.nodes.run())
    sweeping = sweeper(fleet, provider)
    await sweeping.sweep()
    assert (await sweeping.sweep(SweepRequest(adopt=("web-1",))))[1] == ["done"]
    record, node = (
        await InstanceStore(fleet).get("web.web-1"),
        await store.fresh_node("web", "web-1"),
    )
    assert record is not None
    assert node is not None
    assert (record.state, node.state) == ("running", "active")
    assert (await sweeping.sweep())[0].due == ()
    assert len(await store.staying_nodes("web")) == 1
    watching.cancel()


async def test_lost_records_condemn_no_instance_that_may_have_had_one(fleet: NatsBus) -> None:
    """INSTANCES and NODES are created again: what ran before is an orphan, and is not removed."""
    provider = fake()
    await provider.provision(request("web-1", fleet=FLEET))
    for bucket in (INSTANCES, NODES):
        await fleet.admin(f"STREAM.DELETE.KV_{bucket.name}", {})
    await set_up(fleet, SystemClock(), replicas=1)
    await serve_pool_manager(fleet)
    await provider.provision(request("web-2", fleet=FLEET))
    await sweeper(fleet, provider).sweep()
    record = await InstanceStore(fleet).get("web.web-1")
    assert record is not None
    assert record.state == "orphaned"
    assert await names(provider) == ["web-1"]


async def test_a_pool_recorded_again_counts_the_nodes_in_service(fleet: NatsBus) -> None:
    """The desired size is not below them: no node is surplus because POOLS was lost."""
    for name, state in (("web-1", "active"), ("web-2", "registered"), ("web-3", "terminated")):
        record = NodeRecord(pool="web", node=name, state=state)
        await fleet.put(NODES, f"web.{name}", encode(record))
    assert len(await Store(fleet, FleetBudgetSpec()).staying_nodes("web")) == 2


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        (FLEET, True),
        (EARLIER, True),
        (NAME, False),
        (f"{NAME}-blue-00000a", False),
        ("fleet-two-00000a", False),
        ("", False),
    ],
)
def test_a_fleet_is_recognised_by_its_name_and_the_suffix_of_a_store(
    tag: str, *, expected: bool
) -> None:
    """Fleets whose names begin alike are distinguished."""
    assert is_of_fleet(tag, FLEET, NAME) is expected
