"""Nodes that others make are adopted when they join, and retired when they leave."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.enums import NOT_LISTED
from schemas.messages import encode
from schemas.node_events import FACTS, ProviderNotice, Registered, Terminated, Verdict
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.pool_records import (
    FLEET_KEY,
    AwaitedSuccessor,
    FleetRecord,
    OpenSaga,
    PoolRecord,
    pool_key,
)
from schemas.settings import FleetBudgetSpec, PoolSpec
from schemas.subjects import node_event, pool_event
from schemas.topology import EVENTS, HEARTBEATS, INSTANCES, NODES, POOLS
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.memory.transport import PerfectLink
from services.bus.port import Bus
from services.bus.topology_setup import set_up
from services.pool_manager.node_adoption import NodeAdoption
from services.pool_manager.node_rebuilder import NodeRebuilder
from services.pool_manager.planner.node_counts import Nodes
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.planner.sizing.successors import expect
from services.pool_manager.pool_store import Store
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Capabilities, Instance, ProvisionRequest
from services.provisioner.removal.sweeper import Sweeper
from services.runtime.event_publisher import publish_event
from tests.provisioner.provisioner_parts import QUICK, providers, steps

NOW = datetime.now(UTC)
SPEC = PoolSpec(provider="eks", min_nodes=0, max_nodes=9, nodes="adopted")


class Group:
    """A provider whose instances others make."""

    name = "eks"
    capabilities = Capabilities(adopts=True)

    def __init__(self) -> None:
        self.instances: dict[str, Instance] = {}

    def join(self, name: str, provider_id: str, **about: Any) -> None:
        """A node joins."""
        about = {"status": "running", **about}
        self.instances[name] = Instance(name=name, provider_id=provider_id, pool="web", **about)

    async def provision(self, request: ProvisionRequest) -> Instance:
        """Fail the test: adoption never launches."""
        raise AssertionError(request)

    async def terminate(self, provider_id: str) -> None:
        """Fail the test: adoption never terminates."""
        raise AssertionError(provider_id)

    async def list(self) -> list[Instance]:
        """Return the instances that have joined."""
        return list(self.instances.values())

    async def close(self) -> None:
        """Hold nothing that must be closed."""


@pytest.fixture
def server() -> MemoryServer:
    """Return the server of the bus."""
    return MemoryServer(SystemClock())


@pytest.fixture
async def bus(server: MemoryServer) -> AsyncIterator[Bus]:
    """Yield a bus with a pool of adopted nodes, and the pool-manager's adoption."""
    connected = MemoryBus(server, PerfectLink())
    await set_up(connected, SystemClock(), replicas=1)
    await connected.put(POOLS, FLEET_KEY, encode(FleetRecord(id="f-00000a")))
    await connected.put(
        POOLS, pool_key("web"), encode(PoolRecord(name="web", spec=SPEC, desired=0))
    )
    store = Store(connected, FleetBudgetSpec())
    watching = asyncio.create_task(store.nodes.run())

    async def reconcile(pool: str) -> None:
        """Decide on the size alone."""
        await store.nodes.caught_up()
        nodes, now = Nodes(store.nodes_of(pool)), datetime.now(UTC)
        decided: list[PoolPlan] = []

        def sized(record: PoolRecord) -> PoolRecord:
            snapshot = PoolSnapshot(fleet="f", record=record, nodes=nodes, revision=1)
            decided.append(expect(snapshot, now))
            return decided[-1].record

        await store.change_pool(pool, sized)
        for event in decided[-1].events:
            await publish_event(connected, event)

    rebuilder = NodeRebuilder(connected, SystemClock(), store)
    adoption = NodeAdoption(connected, SystemClock(), store, rebuilder.last_events, reconcile, 0.0)
    await connected.serve("pool-manager", "", adoption.endpoints())
    yield connected
    watching.cancel()
    await connected.close()
    server.close()


def sweeper(bus: Bus, group: Group) -> Sweeper:
    """Return one replica's sweep of a pool in observe mode."""
    remover = steps(bus, group).remover
    calls, store = providers(group), InstanceStore(bus)
    return Sweeper(bus, SystemClock(), store, calls, remover, QUICK, lambda _: True, fleet_name="f")


async def node(bus: Bus, name: str) -> NodeRecord | None:
    """Return the record of a node, if there is one."""
    return await Store(bus, FleetBudgetSpec()).fresh_node("web", name)


async def decide_replacement(store: Store) -> None:
    """The pool has a saga about node a that has no log yet."""
    opened = {"replace-a-1": OpenSaga(kind="replace", node="a", since=NOW)}
    await store.change_pool("web", lambda record: replace(record, open=opened))


async def desired(bus: Bus) -> int:
    """Return how many nodes the pool expects."""
    found = await Store(bus, FleetBudgetSpec()).pool("web")
    assert found is not None
    return found[0].desired


async def test_nodes_join_and_leave(bus: Bus) -> None:
    """Nodes join and leave in observe mode too, since only records change.

    What an agent said before is applied.
    """
    group = Group()
    sweeping = sweeper(bus, group)
    registered = Registered(
        id="r", pool="web", node="ip-10-0-0-1", time=datetime.now(UTC), instance="i", hostname="h"
    )
    await publish_event(bus, registered)
    group.join("ip-10-0-0-1", "aws:///us-east-1a/i-1", address="10.0.0.1")
    group.join("ip-10-0-0-2", "aws:///us-east-1a/i-2")
    group.join("ip-10-0-0-3", "aws:///us-east-1a/i-3", status="stopping")
    for _ in range(2):
        await sweeping.sweep()
    found = await node(bus, "ip-10-0-0-1")
    assert found is not None
    assert (found.state, found.hostname, await desired(bus)) == ("active", "h", 2)
    assert await node(bus, "ip-10-0-0-3") is None
    assert (await sweeping.sweep())[0].due == ()

    del group.instances["ip-10-0-0-1"]
    await asyncio.sleep(QUICK.sweep_grace_seconds)
    await sweeping.sweep()
    found = await node(bus, "ip-10-0-0-1")
    assert found is not None
    assert (found.state, await desired(bus)) == ("terminated", 1)
    ended = await bus.read(EVENTS.name, node_event("web", "ip-10-0-0-1", FACTS[Terminated]))
    assert len(ended) == 1
    # The same address, another machine: what the earlier one's agent said is not about it.
    group.join("ip-10-0-0-1", "aws:///us-east-1a/i-9")
    await sweeping.sweep()
    found = await node(bus, "ip-10-0-0-1")
    assert found is not None
    assert (found.state, found.hostname, await desired(bus)) == ("active", "", 2)


async def test_a_node_whose_record_is_lost_is_retired_once_it_is_rebuilt(bus: Bus) -> None:
    """A node without a record is retired once it is rebuilt, so that its end is published.

    Else the next machine of its name would be judged by its faults.
    """
    group = Group()
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1")
    await sweeping.sweep()
    await bus.delete(NODES, "web.a")
    del group.instances["a"]
    outcomes = (await sweeping.sweep())[1]
    assert any("being rebuilt" in each for each in outcomes)
    record = await InstanceStore(bus).get("web.a")
    assert record is not None
    assert record.state == "running"


async def test_the_verdict_on_a_machine_that_was_never_adopted_is_not_on_the_next_of_its_name(
    bus: Bus,
) -> None:
    """A machine that left before a sweep saw it leaves no verdict to the next of its name."""
    about: Any = {"pool": "web", "node": "a", "time": datetime.now(UTC)}
    await publish_event(bus, Registered(id="r", instance="i", boot_id="boot-1", **about))
    verdict = Verdict(id="v", status="unhealthy", action="replace", reason="XID 79", **about)
    await publish_event(bus, verdict)
    group = Group()
    group.join("a", "aws:///us-east-1a/i-2", created_at=datetime.now(UTC))
    await sweeper(bus, group).sweep()
    found = await node(bus, "a")
    assert found is not None
    assert (found.state, found.health, found.boot_id) == ("active", "unknown", "")
    record = await InstanceStore(bus).get("web.a")
    assert record is not None
    assert record.created_at == group.instances["a"].created_at


@pytest.mark.parametrize(
    ("registered", "beats", "lost"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
async def test_an_agent_that_fell_silent_before_its_adoption_is_missed(
    bus: Bus, registered: bool, beats: bool, lost: bool
) -> None:
    """The health-monitor took its silence for that of an earlier node of its name."""
    about: Any = {"pool": "web", "node": "a", "time": datetime.now(UTC)}
    group = Group()
    group.join("a", "aws:///us-east-1a/i-2", created_at=datetime.now(UTC))
    if registered:
        await publish_event(bus, Registered(id="r", instance="i", boot_id="boot-1", **about))
    if beats:
        await bus.put(HEARTBEATS, "web.a", encode(HeartbeatRecord(instance="i", **about)))
    await sweeper(bus, group).sweep()
    found = await node(bus, "a")
    assert found is not None
    assert (found.state, found.lost, found.lost_at is not None) == ("active", lost, lost)


async def test_what_an_agent_said_before_the_end_of_the_earlier_node_of_its_name_is_applied(
    bus: Bus,
) -> None:
    """A machine that died before it was adopted is known by its agent's message alone."""
    group = Group()
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1", created_at=NOW)
    await sweeping.sweep()
    about: Any = {"pool": "web", "node": "a"}
    first = Registered(id="r-1", instance="i-1", boot_id="boot-1", time=NOW, **about)
    await publish_event(bus, first)
    made_at = datetime.now(UTC)
    group.join("a", "aws:///us-east-1a/i-2", created_at=made_at)
    second = Registered(id="r-2", instance="i-2", boot_id="boot-2", time=made_at, **about)
    await publish_event(bus, second)
    notice = ProviderNotice(id="n", notice="n", boot_id="boot-2", time=made_at, **about)
    await publish_event(bus, notice)
    for _ in range(2):
        await sweeping.sweep()
    found = await node(bus, "a")
    assert found is not None
    assert (found.state, found.boot_id, found.lost) == ("active", "boot-2", True)
    assert list(found.notices) == ["n"]
    assert len(await bus.read(EVENTS.name, node_event("web", "a", FACTS[Terminated]))) == 1


@pytest.mark.parametrize("named_before", [False, True])
@pytest.mark.parametrize("named_again", [False, True])
async def test_a_node_whose_machine_left_before_it_was_recorded_is_retired(
    bus: Bus, server: MemoryServer, named_before: bool, named_again: bool
) -> None:
    """The bus refused the machine's record, and nothing else says that there was one."""
    group = Group()
    sweeping = sweeper(bus, group)
    if named_before:
        group.join("a", "aws:///us-east-1a/i-0", created_at=NOW)
        await sweeping.sweep()
        del group.instances["a"]
        await sweeping.sweep()
    server.refusing["KV_INSTANCES"] = 1
    group.join("a", "aws:///us-east-1a/i-1", created_at=datetime.now(UTC))
    await sweeping.sweep()
    found = await node(bus, "a")
    assert found is not None
    assert found.state == "active"
    del server.refusing["KV_INSTANCES"]
    del group.instances["a"]
    if named_again:
        group.join("a", "aws:///us-east-1a/i-2", created_at=datetime.now(UTC))
    for _ in range(3):
        await sweeping.sweep()
    assert await bus.read(EVENTS.name, node_event("web", "a", FACTS[Terminated]))
    found = await node(bus, "a")
    assert found is not None
    record = await InstanceStore(bus).get("web.a")
    assert record is not None
    now = ("active", "running", "aws:///us-east-1a/i-2")
    expected = now if named_again else ("terminated", "terminated", "")
    assert (found.state, record.state, record.provider_id) == expected
    assert await desired(bus) == named_again
    assert (await sweeping.sweep())[0].differences == ()


async def test_a_name_that_another_machine_has_is_retired_first(bus: Bus) -> None:
    """A machine that was exchanged between two sweeps is retired before its name is used."""
    group = Group()
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1")
    await sweeping.sweep()
    group.join("a", "aws:///us-east-1a/i-2")
    for _ in range(2):
        await sweeping.sweep()
    record = await InstanceStore(bus).get("web.a")
    assert record is not None
    assert (record.state, record.provider_id) == ("running", "aws:///us-east-1a/i-2")


async def test_a_name_that_is_given_again_begins_no_saga_twice(bus: Bus) -> None:
    """The sagas about the earlier node of the name are not about it, and have other numbers."""
    group, store = Group(), Store(bus, FleetBudgetSpec())
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1")
    await sweeping.sweep()
    await store.change_node(
        "web", "a", lambda found: found and replace(found, sagas=3, saga_entry=8)
    )
    group.join("a", "aws:///us-east-1a/i-2")
    for _ in range(2):
        await sweeping.sweep()
    found = await node(bus, "a")
    assert found is not None
    assert (found.state, found.sagas, found.saga_entry) == ("active", 3, 8)
    # The earlier record expires after a week, and the sagas' logs after a month.
    await bus.delete(NODES, node_key("web", "a"))
    await bus.delete(INSTANCES, node_key("web", "a"))
    await sweeping.sweep()
    found = await node(bus, "a")
    assert found is not None
    assert (found.state, found.sagas) == ("active", 3)


async def test_one_that_is_adopted_twice_succeeds_one_node(bus: Bus) -> None:
    """The provisioner ended before it had recorded the instance, and asks again."""
    group, store = Group(), Store(bus, FleetBudgetSpec())
    awaited = {
        name: AwaitedSuccessor(saga=f"replace-{name}-1", since=NOW, began_at=NOW) for name in "ab"
    }
    await store.change_pool("web", lambda record: replace(record, awaited=awaited))
    group.join("c", "aws:///us-east-1a/i-1")
    await sweeper(bus, group).sweep()
    await bus.delete(INSTANCES, node_key("web", "c"))
    await sweeper(bus, group).sweep()
    found = await store.pool("web")
    assert found is not None
    assert list(found[0].awaited) == ["b"]
    published = await bus.read(EVENTS.name, pool_event("web", "node-replaced"))
    assert len(published) == 1


async def test_what_is_decided_about_a_node_is_done_before_its_name_is_given_again(
    bus: Bus,
) -> None:
    """The saga's log cannot be written yet: it would begin about the successor of that name."""
    group, store = Group(), Store(bus, FleetBudgetSpec())
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1")
    await sweeping.sweep()
    await decide_replacement(store)
    group.join("a", "aws:///us-east-1a/i-2")
    for _ in range(2):
        _, [outcome] = await sweeping.sweep()
        assert "replace-a-1 is about this node" in outcome
        record = await InstanceStore(bus).get("web.a")
        assert record is not None
        assert (record.provider_id, record.error) == ("aws:///us-east-1a/i-1", NOT_LISTED)
    await store.change_node("web", "a", lambda found: found and replace(found, state="terminated"))
    await bus.delete(INSTANCES, node_key("web", "a"))
    _, [outcome] = await sweeping.sweep()
    assert "replace-a-1 is about an earlier node" in outcome
    await store.change_pool("web", lambda record: replace(record, open={}))
    await sweeping.sweep()
    record = await InstanceStore(bus).get("web.a")
    assert record is not None
    assert record.provider_id == "aws:///us-east-1a/i-2"


async def test_one_that_was_not_listed_for_a_time_is_itself(bus: Bus) -> None:
    """A saga about it kept it from being retired, and its provider lists it again."""
    group, store = Group(), Store(bus, FleetBudgetSpec())
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1")
    await sweeping.sweep()
    await decide_replacement(store)
    machine = group.instances.pop("a")
    await asyncio.sleep(QUICK.sweep_grace_seconds)
    await sweeping.sweep()
    group.instances["a"] = machine
    errors = []
    for _ in range(2):
        record = await InstanceStore(bus).get("web.a")
        assert record is not None
        errors.append((record.state, record.error))
        await sweeping.sweep()
    assert errors == [("running", NOT_LISTED), ("running", "")]
    assert (await sweeping.sweep())[0].differences == ()


@pytest.mark.parametrize("recorded", [{"state": "leaving", "saga": "replace-a-1"}, {}])
async def test_the_end_of_a_node_is_recorded_before_its_name_is_given_again(
    bus: Bus, recorded: dict[str, Any]
) -> None:
    """A node whose instance is gone keeps its name until its record has ended.

    The bus refuses the record's change, which would end the next node of the name.
    """
    group, store = Group(), Store(bus, FleetBudgetSpec())
    sweeping = sweeper(bus, group)
    group.join("a", "aws:///us-east-1a/i-1", created_at=NOW)
    await sweeping.sweep()
    await store.change_node("web", "a", lambda found: found and replace(found, **recorded))
    opened = {} if recorded else {"replace-a-1": OpenSaga(kind="replace", node="a", since=NOW)}
    await store.change_pool("web", lambda record: replace(record, open=opened))
    await InstanceStore(bus).change(
        node_key("web", "a"), lambda found: found and replace(found, state="terminated")
    )
    group.join("a", "aws:///us-east-1a/i-2", created_at=datetime.now(UTC))
    _, [outcome] = await sweeping.sweep()
    assert "replace-a-1 is about an earlier node" in outcome
    await store.change_pool("web", lambda record: replace(record, open={}))
    await store.change_node(
        "web", "a", lambda found: found and replace(found, state="terminated", saga="")
    )
    await sweeping.sweep()
    found = await node(bus, "a")
    assert found is not None
    assert (found.state, found.saga) == ("active", "")
