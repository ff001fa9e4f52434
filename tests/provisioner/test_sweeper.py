"""The sweep on the real bus: what crashes left behind is found, and nothing else is touched."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.enums import NodeState
from schemas.messages import encode
from schemas.node_records import NodeRecord
from schemas.pool_records import FLEET_KEY, FleetRecord
from schemas.saga_log_entries import StepSucceeded
from schemas.subjects import pool_event_wildcard
from schemas.sweeps import SweepRequest
from schemas.termination_orders import Authority
from schemas.topology import EVENTS, INSTANCES, NODES, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.primitives.errors import Unavailable, UnreadableRecord
from services.provisioner.instances.instance_decisions import intended_record, mark_terminating
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.providers.fake import FakeFault, FakeProvider
from services.provisioner.removal.sweeper import WHOLE_SECONDS, Sweeper
from tests.provisioner.provisioner_parts import (
    FLEET,
    QUICK,
    answer_to,
    fake,
    launch,
    providers,
    provision,
    request,
    running,
    serve_pool_manager,
    start_step,
    steps,
    until,
)

BY = Authority(kind="saga", saga="scale-down-web-1")


@pytest.fixture
async def fleet(bus: NatsBus) -> NatsBus:
    """A bus that knows which fleet it carries."""
    await bus.put(POOLS, FLEET_KEY, encode(FleetRecord(id=FLEET)))
    await serve_pool_manager(bus)
    return bus


def sweeper(bus: NatsBus, provider: FakeProvider) -> Sweeper:
    """Return one replica's sweep."""
    parts = steps(bus, provider)
    store = InstanceStore(bus)
    return Sweeper(bus, SystemClock(), store, providers(provider), parts.remover, QUICK)


class LaterClock(SystemClock):
    """A clock that can be put forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        """The machine's, and what the test adds."""
        return super().monotonic() + self.ahead


class Failing:
    """A bus whose writes to buckets fail on request."""

    def __init__(self, real: NatsBus) -> None:
        """Wrap a bus."""
        self._real = real
        self.fails = True

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        if name in {"create", "update"} and self.fails:
            raise Unavailable("no leader")
        return getattr(self._real, name)


async def names(provider: FakeProvider) -> list[str]:
    """Return the names of the instances at the provider."""
    return sorted(each.name for each in await provider.list())


async def test_a_sweep_removes_what_no_record_knows_and_spares_other_fleets(fleet: NatsBus) -> None:
    """The instance of our fleet without a record goes, of three; it leaves a record."""
    provider = fake()
    await steps(fleet, provider).provision(provision("web-1"))
    await provider.provision(request("web-2"))
    await provider.provision(request("web-3", fleet="another"))
    await sweeper(fleet, provider).sweep()
    assert await names(provider) == ["web-1", "web-3"]
    record = await InstanceStore(fleet).get("web.web-2")
    assert record is not None
    assert (record.state, record.provider_id) == ("terminated", "fake-000002")


async def test_without_a_fleet_id_nothing_at_a_provider_is_touched(bus: NatsBus) -> None:
    """A bus that does not know its fleet concludes nothing from tags."""
    provider = fake()
    await provider.provision(request("web-2", fleet=""))
    await provider.provision(request("web-3"))
    assert (await sweeper(bus, provider).sweep())[0].due == ()
    assert await names(provider) == ["web-2", "web-3"]


async def test_a_plan_touches_nothing(fleet: NatsBus) -> None:
    """The dry run says what a sweep would do."""
    provider = fake()
    await provider.provision(request("web-2"))
    plan = await sweeper(fleet, provider).plan()
    assert [each.kind for each in plan.due] == ["remove-unexpected"]
    assert await names(provider) == ["web-2"]
    assert await fleet.entries(INSTANCES) == []


async def test_a_lost_record_of_a_living_node_is_restored(fleet: NatsBus) -> None:
    """The node goes on, and its instance is known again."""
    provider = fake()
    await steps(fleet, provider).provision(provision("web-1"))
    await fleet.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1")))
    await fleet.delete(INSTANCES, "web.web-1")
    await sweeper(fleet, provider).sweep()
    record = await InstanceStore(fleet).get("web.web-1")
    assert record is not None
    assert (record.state, record.provider_id) == ("running", "fake-000001")
    assert await names(provider) == ["web-1"]


async def test_a_sweep_finishes_an_abandoned_removal(fleet: NatsBus) -> None:
    """A leak stays visible and is tried again until it is gone; it is published once."""
    provider = fake()
    parts = steps(fleet, provider)
    await parts.provision(provision("web-1"))
    provider.inject_fault(FakeFault(call="terminate", kind="INVALID", times=3))
    store = InstanceStore(fleet)
    await store.change(
        "web.web-1", lambda each: each and mark_terminating(each, SystemClock().now(), BY)
    )
    sweeping = sweeper(fleet, provider)
    for _ in range(3):
        await sweeping.sweep()
        record = await store.get("web.web-1")
        assert record is not None
        assert record.state == "leaked"
    await sweeping.sweep()
    record = await store.get("web.web-1")
    assert record is not None
    assert (record.state, await names(provider)) == ("terminated", [])
    stored = await fleet.read(EVENTS.name, pool_event_wildcard("instance-leaked"))
    assert len(stored) == 1


@pytest.mark.parametrize(
    ("state", "expected"), [("terminated", "terminated"), ("launching", "intended")]
)
async def test_the_launch_of_a_node_that_is_gone_ends(
    fleet: NatsBus, state: NodeState, expected: str
) -> None:
    """INSTANCES was set back to before its undo, and no saga is left that would end it."""
    provider, store = fake(), InstanceStore(fleet)
    await store.create(
        intended_record("web", "web-1", launch(), "scale-up-web-1", SystemClock().now())
    )
    await fleet.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1", state=state)))
    await sweeper(fleet, provider).sweep()
    record = await store.get("web.web-1")
    assert record is not None
    assert record.state == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [("terminated", "orphaned"), ("active", "running"), ("leaving", "running")],
)
async def test_the_instance_of_a_node_that_is_gone_is_an_orphan(
    fleet: NatsBus, state: NodeState, expected: str
) -> None:
    """INSTANCES was set back to before its removal; or NODES is wrong, and the machine serves."""
    provider, store = fake(), InstanceStore(fleet)
    await steps(fleet, provider).provision(provision("web-1"))
    await fleet.put(NODES, "web.web-1", encode(NodeRecord(pool="web", node="web-1", state=state)))
    sweeping = sweeper(fleet, provider)
    for _ in range(2):
        await sweeping.sweep(SweepRequest())
    record = await store.get("web.web-1")
    assert record is not None
    assert (record.state, await names(provider)) == (expected, ["web-1"])
    stored = await fleet.read(EVENTS.name, pool_event_wildcard("instance-leaked"))
    assert len(stored) == (expected == "orphaned")
    assert all(b"navarch sweep --terminate web-1" in each.data for each in stored)


async def test_nodes_of_running_instances_are_read_at_an_interval(fleet: NatsBus) -> None:
    """All of NODES is read at an interval; on request each sweep reads it."""
    provider = fake()
    parts, store = steps(fleet, provider), InstanceStore(fleet)
    clock = LaterClock()
    sweeping = Sweeper(fleet, clock, store, providers(provider), parts.remover, QUICK)
    await parts.provision(provision("web-1"))
    gone = NodeRecord(pool="web", node="web-1", state="terminated")
    await sweeping.sweep()
    await fleet.put(NODES, "web.web-1", encode(gone))
    found = [(await sweeping.sweep())[0].due]
    found += [(await sweeping.plan()).due]
    clock.ahead = WHOLE_SECONDS
    found += [(await sweeping.sweep())[0].due]
    kinds = [[each.kind for each in due] for due in found]
    assert kinds == [[], ["orphan-departed"], ["orphan-departed"]]


async def test_an_instance_that_appears_after_its_removal_was_confirmed_goes(
    fleet: NatsBus,
) -> None:
    """A launch that was undone and took effect late is not forgotten."""
    provider = fake()
    await steps(fleet, provider).provision_undo(provision("web-1"))
    await provider.provision(request("web-1"))
    await sweeper(fleet, provider).sweep()
    assert await names(provider) == []


async def test_a_provider_that_cannot_be_listed_is_left_for_the_next_sweep(fleet: NatsBus) -> None:
    """Nothing is concluded from a list that failed."""
    provider = fake(faults=(FakeFault(call="list", kind="THROTTLE"),))
    await provider.provision(request("web-2"))
    sweeping = sweeper(fleet, provider)
    assert (await sweeping.sweep())[0].due == ()
    await sweeping.sweep()
    assert await names(provider) == []


async def test_of_two_replicas_one_sweeps(fleet: NatsBus) -> None:
    """The holder of the lease sweeps when it gets it; the other lists nothing."""
    one, two = fake(), fake()
    await one.provision(request("web-1"))
    await two.provision(request("web-2"))

    async def swept() -> bool:
        return "" in one.calls("list") + two.calls("list")

    async with running(fleet, one), running(fleet, two, replica="provisioner-2"):
        await until(swept)
    assert [bool(each.calls("list")) for each in (one, two)].count(True) == 1


async def test_a_bus_that_fails_in_a_sweep_ends_neither_the_sweep_nor_the_service(
    fleet: NatsBus,
) -> None:
    """A change that could not be recorded is left for the next sweep, which makes it."""
    provider = fake()
    await provider.provision(request("web-1"))
    failing = Failing(fleet)
    sweeping = sweeper(failing, provider)
    await sweeping.sweep()
    assert await names(provider) == ["web-1"]
    failing.fails = False
    await sweeping.sweep()
    assert await names(provider) == []


async def test_an_unreadable_fleet_record_stops_the_sweep_and_not_the_service(
    fleet: NatsBus,
) -> None:
    """No instance can be judged without the fleet's ID, so nothing is removed."""
    provider = fake()
    await provider.provision(request("web-1"))
    await fleet.put(POOLS, FLEET_KEY, b"garbage")
    async with running(fleet, provider):
        sequence = await start_step(fleet, provision("web-2"))
        done, _ = await answer_to(fleet, "scale-up-web-2", sequence)
        assert isinstance(done, StepSucceeded)
    with pytest.raises(UnreadableRecord):
        await sweeper(fleet, provider).sweep()
    assert await names(provider) == ["web-1", "web-2"]


async def test_an_instance_with_an_unreadable_record_is_left_alone(fleet: NatsBus) -> None:
    """An instance is neither unexpected nor gone until an operator repairs its record."""
    provider = fake()
    await provider.provision(request("web-1"))
    await provider.provision(request("web-2"))
    await fleet.put(INSTANCES, "web.web-1", b"garbage")
    await sweeper(fleet, provider).sweep()
    assert await names(provider) == ["web-1"]


async def test_in_observe_mode_nothing_is_removed_and_one_event_is_published(
    fleet: NatsBus,
) -> None:
    """An instance without a record stays; only the first sweep publishes it, with the reason."""
    provider = fake()
    await provider.provision(request("web-2"))
    parts = steps(fleet, provider)
    store, clock = InstanceStore(fleet), SystemClock()
    observing = Sweeper(
        fleet, clock, store, providers(provider), parts.remover, QUICK, lambda pool: pool == "web"
    )
    await observing.sweep()
    await observing.sweep()
    [event] = await fleet.read(EVENTS.name, pool_event_wildcard("instance-leaked"))

    assert ["web-2"] == await names(provider)
    assert b"no record of it; it would be removed, but the mode is observe" in event.data


async def test_an_instance_that_does_not_run_is_recorded_as_down_until_it_does(
    fleet: NatsBus,
) -> None:
    """The record has the time and the provider's status, which the pool-manager needs."""
    provider = fake()
    await steps(fleet, provider).provision(provision("web-1"))
    listed = await provider.list()
    sweeping, store = sweeper(fleet, provider), InstanceStore(fleet)
    found = []
    for status in ("stopped", "stopped", "running"):
        provider.list = partial(_listing, [replace(each, status=status) for each in listed])
        await sweeping.sweep()
        record = await store.get("web.web-1")
        assert record is not None
        found.append((record.state, record.down_reason, record.down_since))
    assert [each[:2] for each in found] == [
        *[("running", "its provider lists it as stopped")] * 2,
        ("running", ""),
    ]
    assert (found[0][2] is not None, found[0][2], found[2][2]) == (True, found[1][2], None)


async def _listing(instances: list[Instance]) -> list[Instance]:
    return instances
