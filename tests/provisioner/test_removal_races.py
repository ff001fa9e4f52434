"""A launch goes on while an undo, a removal or a sweep judges what it has made."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.launch_offers import Offering
from schemas.messages import encode
from schemas.node_records import HeartbeatRecord
from schemas.stream_specs import BucketSpec
from schemas.topology import HEARTBEATS, POOLS
from services.bus.nats.nats_bus import NatsBus
from services.bus.port import Entry
from services.provisioner.instances.instance_decisions import settle
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance
from services.provisioner.providers.fake import FakeProvider
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import (
    Held,
    fake,
    provision,
    record_fleet,
    recorded,
    request,
    steps,
)
from tests.provisioner.test_launch_races import KEY, ONE, Gated, again, cancelled, sweeper
from tests.provisioner.test_offering_allocator import BOTH, Market


class Late:
    """A provider whose second list is late: it shows what was there when it was requested."""

    def __init__(self, real: FakeProvider) -> None:
        self._real = real
        self._lists = 0
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def list(self) -> list[Instance]:
        """Return the instances that were there before the wait."""
        found = await self._real.list()
        self._lists += 1
        if self._lists == 2:
            self.entered.set()
            await self.go_on.wait()
        return found


class Meanwhile:
    """A bus on which something happens after a sweep has read the records."""

    def __init__(self, real: NatsBus, happens: Callable[[], Awaitable[object]]) -> None:
        self._real = real
        self._happens: Callable[[], Awaitable[object]] | None = happens

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def entries(self, bucket: BucketSpec, keys: str = ">") -> list[Entry]:
        """The pools are read after the records of instances."""
        happens, found = self._happens, await self._real.entries(bucket, keys)
        if bucket is POOLS and happens is not None:
            self._happens = None
            await happens()
        return found


async def test_a_launch_accepted_after_the_last_refusal_elsewhere_is_removed_where_it_is(
    bus: NatsBus,
) -> None:
    """The record names the provider that refused last."""
    market = Market(bus)
    first = Gated(market.providers["fake"])
    one = asyncio.create_task(market.steps(fake=first).provision(provision("web-1", choice=BOTH)))
    await first.entered.wait()
    for name in market.providers:
        market.order(name, "QUOTA")
    with pytest.raises(StepFailure):
        await market.steps().provision(provision("web-1", choice=BOTH))
    first.go_on.set()
    with pytest.raises(StepFailure):
        await one
    assert await market.existing() == {"fake": [], "dear": []}
    record = await recorded(bus)
    assert (record.state, record.provider) == ("terminated", "fake")


async def test_a_launch_leaves_an_instance_alone_that_its_undo_has_left_to_an_operator(
    bus: NatsBus,
) -> None:
    """The store was restored: the node is in service, whatever its launch has found since."""
    provider = fake()
    await provider.provision(request("web-1"))
    held = Held(provider, "list")
    one = asyncio.create_task(steps(bus, held).provision(again(ONE)))
    await held.entered.wait()
    now = datetime.now(UTC)
    beat = HeartbeatRecord(pool="web", node="web-1", time=now, admitted_at=now)
    await bus.put(HEARTBEATS, KEY, encode(beat))
    await steps(bus, provider).provision_undo(provision("web-1"))
    held.go_on.set()
    with pytest.raises(StepFailure, match="orphaned"):
        await one
    assert provider.calls("terminate") == []
    assert (await recorded(bus)).state == "orphaned"


async def test_a_sweep_removes_nothing_that_a_launch_has_recorded_since(bus: NatsBus) -> None:
    """A launch whose record was lost adopts its instance, and the sweep spares it."""
    await record_fleet(bus)
    provider = fake()
    await provider.provision(request("web-1"))

    async def adopt() -> None:
        await steps(bus, provider).provision(again(ONE))

    await sweeper(Meanwhile(bus, adopt), provider).sweep()
    assert provider.calls("terminate") == []
    assert (await recorded(bus)).state == "running"


async def test_a_sweep_removes_no_surplus_that_a_launch_has_recorded_since(bus: NatsBus) -> None:
    """The record named another provider, which has refused it meanwhile."""
    await record_fleet(bus)
    provider, store = fake(), InstanceStore(bus)
    await steps(bus, provider).provision(provision("web-1"))
    ran = await recorded(bus)
    elsewhere = Offering(provider="dear", instance_type="big")
    intended = replace(
        ran, state="intended", provider="dear", provider_id="", offering=elsewhere, running_at=None
    )
    await store.change(KEY, lambda _: intended)

    async def adopt() -> None:
        await store.change(KEY, lambda _: ran)

    await sweeper(Meanwhile(bus, adopt), provider).sweep()
    assert provider.calls("terminate") == []


async def test_a_removal_is_not_confirmed_by_a_list_from_before_the_launch(bus: NatsBus) -> None:
    """The launch was accepted meanwhile, and its replica died before it removed the instance."""
    provider, store = fake(), InstanceStore(bus)
    held = Gated(provider)
    launching = asyncio.create_task(steps(bus, held).provision(provision("web-1")))
    await held.entered.wait()
    late = Late(provider)
    removing = asyncio.create_task(steps(bus, late).provision_undo(provision("web-1")))
    await late.entered.wait()
    made = await provider.provision(request("web-1"))
    now = datetime.now(UTC)
    await store.change(KEY, lambda found: found and settle(found, made, now, provider.name).record)
    await cancelled(launching)
    late.go_on.set()
    await removing
    assert await provider.list() == []
    assert (await recorded(bus)).state == "terminated"
