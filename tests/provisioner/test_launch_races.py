"""Another replica, an undo or a sweep acts between two steps of a launch."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.launch_offers import Choice, Offer, Offering
from schemas.messages import decoder, encode
from schemas.offering_records import BLOCKED, SPEND_KEY, BlockRecord, SpendRecord
from schemas.stream_specs import BucketSpec
from schemas.topology import INSTANCES, OFFERINGS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.clock import SystemClock
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.provider_client.provider import Instance, ProvisionRequest
from services.provisioner.provider_client.provider_errors import ProviderError
from services.provisioner.providers.fake import FakeProvider
from services.provisioner.removal.sweeper import Sweeper
from services.saga.participant import Command, StepFailure
from tests.provisioner.provisioner_parts import (
    QUICK,
    Held,
    Killed,
    Life,
    Mortal,
    providers,
    provision,
    record_fleet,
    recorded,
    steps,
    until,
)
from tests.provisioner.test_offering_allocator import BOTH, Market, clear, until_waits

ONE = Choice(offers=(Offer(provider="fake", instance_type="big"),))
ON_DEMAND_FIRST = Choice(
    offers=(
        Offer(provider="fake", instance_type="big", market="on-demand"),
        Offer(provider="fake", instance_type="big", market="spot"),
    )
)
KEY = "web.web-1"


class Gated:
    """A provider at which a launch from one market is held, and may fail when it is released."""

    def __init__(
        self, real: FakeProvider, market: str = "", error: ProviderError | None = None
    ) -> None:
        """`error`: of the first call; empty market: every call is held."""
        self._real = real
        self._market = market
        self._error = error
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def provision(self, asked: ProvisionRequest) -> Instance:
        """Launch it once released."""
        if self._market in ("", asked.market):
            self.entered.set()
            await self.go_on.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        return await self._real.provision(asked)


class Stuck:
    """A bus that does not answer when an instance's record is changed."""

    def __init__(self, real: NatsBus) -> None:
        self._real = real
        self.entered = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Everything else passes."""
        return getattr(self._real, name)

    async def update(self, bucket: BucketSpec, *rest: Any, **options: Any) -> int:
        """Wait for ever on a write of an instance's record."""
        if bucket is not INSTANCES:
            return await self._real.update(bucket, *rest, **options)
        self.entered.set()
        await asyncio.Event().wait()
        raise AssertionError


async def blocks(bus: NatsBus) -> list[BlockRecord]:
    """Return the blocks of offerings."""
    read = decoder(BlockRecord)
    return [read.decode(each.value) for each in await bus.entries(OFFERINGS, BLOCKED)]


async def block_due(bus: NatsBus, market: Market, choice: Choice = ONE) -> None:
    """Have an offering blocked, with its probe due."""
    market.order("fake", "QUOTA")
    with pytest.raises(StepFailure):
        await market.steps().provision(provision("web-9", choice=choice))
    for entry in await bus.entries(OFFERINGS, BLOCKED):
        block = decoder(BlockRecord).decode(entry.value)
        await bus.put(OFFERINGS, entry.key, encode(replace(block, probe_at=block.since)))


async def cancelled(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks and wait for their end."""
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def again(choice: Choice, node: str = "web-1") -> Command:
    """A launch whose command is delivered again."""
    first = provision(node, choice=choice)
    return Command(saga=first.saga, step=first.step, inputs=first.inputs, id="x", deliveries=2)


def sweeper(bus: Any, provider: FakeProvider) -> Sweeper:
    """Return one replica's sweep of one provider."""
    parts, store = steps(bus, provider), InstanceStore(bus)
    return Sweeper(bus, SystemClock(), store, providers(provider), parts.remover, QUICK)


def lost_answer(**more: Any) -> ProviderError:
    """Return the error that is raised where an answer is lost."""
    return ProviderError("TRANSIENT", "no answer", **more)


# --- the offering that is requested next ---------------------------------------------------------


async def test_a_launch_in_doubt_goes_on_though_its_offering_was_refused_to_another_replica(
    bus: NatsBus,
) -> None:
    """The launch in doubt chooses again, as its record names no offering any more."""
    market = Market(bus)
    first = Gated(market.providers["fake"], error=lost_answer())
    one = asyncio.create_task(market.steps(fake=first).provision(provision("web-1", choice=BOTH)))
    await first.entered.wait()
    for name in market.providers:
        market.order(name, "CAPACITY")
    two = asyncio.create_task(market.steps().provision(provision("web-1", choice=BOTH)))
    await until_waits(bus)
    await clear(bus)
    first.go_on.set()
    assert await one == await two
    found = await market.existing()
    assert len(found["fake"]) + len(found["dear"]) == 1


async def test_a_refusal_blocks_the_offering_that_refused_it(bus: NatsBus) -> None:
    """The launch continues after a doubt with what another replica has chosen since."""
    market = Market(bus)
    first = Gated(market.providers["fake"], error=lost_answer())
    second = Gated(market.providers["dear"])
    one = asyncio.create_task(market.steps(fake=first).provision(provision("web-1", choice=BOTH)))
    await first.entered.wait()
    market.order("fake", "CAPACITY")
    two = asyncio.create_task(market.steps(dear=second).provision(provision("web-1", choice=BOTH)))
    await second.entered.wait()
    market.order("dear", "QUOTA")
    first.go_on.set()

    async def refused() -> bool:
        return "QUOTA" in {each.kind for each in await blocks(bus)}

    await until(refused)
    await cancelled(one, two)
    assert {(each.kind, each.provider) for each in await blocks(bus)} == {
        ("CAPACITY", "fake"),
        ("QUOTA", "dear"),
    }


async def test_a_launch_whose_record_is_lost_does_not_repeat_a_refused_request(
    bus: NatsBus,
) -> None:
    """A launch whose record is lost goes on to the next offering and writes its record again."""
    market = Market(bus)
    held = Gated(market.providers["fake"])
    one = asyncio.create_task(market.steps(fake=held).provision(provision("web-1", choice=BOTH)))
    await held.entered.wait()
    market.order("fake", "QUOTA", times=3)
    await bus.delete(INSTANCES, KEY)
    held.go_on.set()
    assert (await one).provider == "dear"
    assert market.providers["fake"].calls("provision") == ["web-1"]
    assert (await recorded(bus)).state == "running"


async def test_a_launch_without_tokens_goes_on_though_its_record_is_lost(bus: NatsBus) -> None:
    """A launch without tokens waits for the lease; its request is counted in a new record."""
    market = Market(bus, idempotent=False)
    held = Held(market.providers["fake"], "list")
    one = asyncio.create_task(market.steps(fake=held).provision(again(ONE)))
    await held.entered.wait()
    await bus.delete(INSTANCES, KEY)
    market.order("fake", "TRANSIENT")
    held.go_on.set()
    async with asyncio.timeout(20):
        await one
    assert (await recorded(bus)).state == "running"
    assert await market.existing() == {"fake": ["web-1"], "dear": []}


async def test_what_an_earlier_delivery_launched_elsewhere_is_adopted_without_its_record(
    bus: NatsBus,
) -> None:
    """The first provider that the launch names has not refused this delivery."""
    market = Market(bus, idempotent=False)
    market.order("fake", "QUOTA", times=9)
    replica = market.steps()
    await replica.provision(provision("web-0", choice=BOTH))
    made = await replica.provision(provision("web-1", choice=BOTH))
    await bus.delete(INSTANCES, KEY)
    assert (await replica.provision(again(BOTH))).provider_id == made.provider_id
    assert await market.existing() == {"fake": [], "dear": ["web-0", "web-1"]}


async def test_a_launch_requests_nothing_that_another_replica_has_passed_over(bus: NatsBus) -> None:
    """A launch that waited for a list makes no machine that would be removed at once."""
    market = Market(bus)
    held = Held(market.providers["fake"], "list")
    one = asyncio.create_task(market.steps(fake=held).provision(provision("web-1", choice=BOTH)))
    await held.entered.wait()
    market.order("fake", "CAPACITY")
    outputs = await market.steps().provision(provision("web-1", choice=BOTH))
    held.go_on.set()
    assert await one == outputs
    assert outputs.provider == "dear"
    assert market.providers["fake"].calls("provision") == ["web-1"]


# --- what is recorded of an instance -------------------------------------------------------------


async def test_a_launch_keeps_its_market_though_another_replica_requests_another(
    bus: NatsBus,
) -> None:
    """Price and market are those of the request that was accepted."""
    market = Market(bus)
    first = Gated(market.providers["fake"], "on-demand")
    second = Gated(market.providers["fake"], "spot")
    asked = provision("web-1", choice=ON_DEMAND_FIRST)
    one = asyncio.create_task(market.steps(fake=first).provision(asked))
    await first.entered.wait()
    market.order("fake", "CAPACITY")
    two = asyncio.create_task(market.steps(fake=second).provision(asked))
    await second.entered.wait()
    first.go_on.set()
    outputs = await one
    assert (outputs.market, outputs.dollars_per_hour) == ("on-demand", 3.0)
    second.go_on.set()
    assert await two == outputs
    record = await recorded(bus)
    assert (record.offering and record.offering.market, record.dollars_per_hour) == (
        "on-demand",
        3.0,
    )


async def test_an_adopted_instance_keeps_the_offering_that_it_was_launched_from(
    bus: NatsBus,
) -> None:
    """A lost answer and a refused repetition leave the instance its offering.

    The offering that was to be requested next is not probed.
    """
    market = Market(bus, idempotent=False, list_lag_calls=1)
    spot = Choice(offers=ON_DEMAND_FIRST.offers[1:])
    await block_due(bus, market, spot)
    market.order("fake", "TRANSIENT", after_success=True)
    market.order("fake", "CAPACITY")
    outputs = await market.steps().provision(provision("web-1", choice=ON_DEMAND_FIRST))
    assert (outputs.market, outputs.dollars_per_hour) == ("on-demand", 3.0)
    assert [(each.kind, each.market, each.probe) for each in await blocks(bus)] == [
        ("CAPACITY", "on-demand", ""),
        ("QUOTA", "spot", ""),
    ]
    assert market.providers["fake"].calls("provision") == ["web-9", "web-1", "web-1"]


async def test_a_sweep_that_adopts_records_where_and_how_it_was_launched(bus: NatsBus) -> None:
    """The launch was refused since, by every provider, and waits for capacity."""
    await record_fleet(bus)
    market = Market(bus, idempotent=False, list_lag_calls=1)
    market.order("fake", "TRANSIENT", after_success=True)
    for name in market.providers:
        market.order(name, "CAPACITY", times=99)
    launching = asyncio.create_task(market.steps().provision(provision("web-1", choice=BOTH)))
    await until_waits(bus)
    await sweeper(bus, market.providers["fake"]).sweep()
    record = await recorded(bus)
    await cancelled(launching)
    assert (record.state, record.provider) == ("running", "fake")
    assert record.offering == Offering(provider="fake", instance_type="big")
    assert record.dollars_per_hour == 3.0


async def test_a_launch_that_gives_up_while_another_replica_has_launched_it_succeeds(
    bus: NatsBus,
) -> None:
    """A launch that gives up succeeds if another replica made it: a failure would undo it.

    A failure would also end its gang.
    """
    market = Market(bus)
    error = lost_answer(retry_after=1000.0)
    first = Gated(market.providers["fake"], error=error)
    one = asyncio.create_task(market.steps(fake=first).provision(provision("web-1", choice=ONE)))
    await first.entered.wait()
    outputs = await market.steps().provision(provision("web-1", choice=ONE))
    first.go_on.set()
    assert await one == outputs


# --- probes and reservations ---------------------------------------------------------------------


async def test_a_launch_that_is_undone_leaves_its_probe_to_others(bus: NatsBus) -> None:
    """A launch that had not requested anything gives up its probe when it is undone."""
    market = Market(bus)
    await block_due(bus, market)
    held = Held(market.providers["fake"], "list")
    one = asyncio.create_task(market.steps(fake=held).provision(provision("web-1", choice=ONE)))
    await held.entered.wait()
    assert [each.probe for each in await blocks(bus)] == [KEY]
    await market.steps().provision_undo(provision("web-1"))
    held.go_on.set()
    with pytest.raises(StepFailure):
        await one
    assert [each.probe for each in await blocks(bus)] == [""]


async def test_a_launch_that_is_cancelled_while_it_records_leaves_its_probe_to_others(
    bus: NatsBus,
) -> None:
    """The block is claimed before the offering is recorded."""
    market = Market(bus)
    await block_due(bus, market)
    stuck = Stuck(bus)
    one = asyncio.create_task(market.steps(stuck).provision(provision("web-1", choice=ONE)))
    await stuck.entered.wait()
    await cancelled(one)
    assert [each.probe for each in await blocks(bus)] == [""]


async def test_a_probe_that_another_replica_finishes_ends_the_block(bus: NatsBus) -> None:
    """The replica that claimed it was killed; others do not wait until the claim expires."""
    market = Market(bus)
    await block_due(bus, market)
    mortal = Mortal(market.providers["fake"], Life(3), {"provision", "list"})
    with pytest.raises(Killed):
        await market.steps(fake=mortal).provision(provision("web-1", choice=ONE))
    assert [each.probe for each in await blocks(bus)] == [KEY]
    await market.steps().provision(provision("web-1", choice=ONE))
    assert await blocks(bus) == []


async def test_a_refusal_leaves_what_another_replica_has_reserved_for_the_launch(
    bus: NatsBus,
) -> None:
    """A reservation of another replica is the price of what is requested now, so it stays."""
    market = Market(bus)
    capped = replace(BOTH, spend_cap=100.0)
    first, second = (Gated(each) for each in market.providers.values())
    one = asyncio.create_task(market.steps(fake=first).provision(provision("web-1", choice=capped)))
    await first.entered.wait()
    market.order("fake", "CAPACITY")
    two = asyncio.create_task(
        market.steps(dear=second).provision(provision("web-1", choice=capped))
    )
    await second.entered.wait()
    market.order("fake", "QUOTA")
    first.go_on.set()

    async def refused() -> bool:
        return "QUOTA" in {each.kind for each in await blocks(bus)}

    await until(refused)
    entry = await bus.get(OFFERINGS, SPEND_KEY)
    await cancelled(one, two)
    assert entry is not None
    reserved = decoder(SpendRecord).decode(entry.value).reserved
    assert {key: each.dollars_per_hour for key, each in reserved.items()} == {KEY: 5.0}
