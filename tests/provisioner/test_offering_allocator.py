"""Launches on the bus that may take several offerings: failover, fallback, caps; one instance."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.enums import ProviderErrorKind
from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from schemas.launch_offers import Choice, Offer
from schemas.messages import decoder
from schemas.offering_records import BLOCKED, SPEND_KEY, BlockRecord
from schemas.pool_events import LaunchRefused, LaunchWaiting, pool_codec
from schemas.subjects import pool_event_wildcard
from schemas.topology import EVENTS, OFFERINGS
from services.bus.nats.nats_bus import NatsBus
from services.primitives.errors import UnreadableRecord
from services.provisioner.provider_client.provider import Environment
from services.provisioner.provider_client.provider_calls import (
    ProviderCalls,
    Providers,
    ProviderTraits,
)
from services.provisioner.providers.fake import FakeFault, FakeProvider
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import (
    FLEET,
    QUICK,
    Held,
    Killed,
    Life,
    Mortal,
    forget_instances,
    lapsed,
    provision,
    recorded,
    step_handlers,
    terminate,
    until,
)

TYPES = InstanceTypes(
    types={
        "fake": {"big": TypeSpec(gpus=8, gpu="H100", dollars_per_hour=3.0)},
        "dear": {"big": TypeSpec(gpus=8, gpu="H100", dollars_per_hour=5.0)},
    },
    abstract={"h100-8x": {"fake": ("big",), "dear": ("big",)}},
)
BOTH = Choice(
    offers=(
        Offer(provider="fake", instance_type="h100-8x"),
        Offer(provider="dear", instance_type="h100-8x"),
    )
)


class Market:
    """Makes two providers, and the steps of any number of replicas over them."""

    def __init__(self, bus: NatsBus, **options: Any) -> None:
        """`options`: of both providers."""
        self.bus = bus
        self.providers = {name: self._provider(name, **options) for name in ("fake", "dear")}

    def _provider(self, name: str, **options: Any) -> FakeProvider:
        environment = Environment(name=name, fleet=FLEET, nats_url="", data_dir=Path())
        return FakeProvider(options=FakeProvider.Options(**options), environment=environment)

    def steps(self, bus: Any = None, *, fleet_cap: float = 0.0, **instead: Any) -> SagaStepHandlers:
        """One replica; `instead`: replaces a provider."""
        return step_handlers(
            bus or self.bus, self._calls(**instead), types=TYPES, fleet_cap=fleet_cap
        )

    def _calls(self, **instead: Any) -> Providers:
        return Providers(
            {
                name: ProviderCalls(each, call_timeout_seconds=QUICK.call_timeout_seconds)
                for name, each in {**self.providers, **instead}.items()
            }
        )

    def traits(self) -> dict[str, ProviderTraits]:
        """Return the providers' traits that a choice between them needs."""
        return self._calls().traits()

    def order(self, provider: str, kind: ProviderErrorKind, times: int = 1, **more: Any) -> None:
        """Have launches at a provider fail."""
        self.providers[provider].inject_fault(
            FakeFault(call="provision", kind=kind, times=times, **more)
        )

    async def existing(self) -> dict[str, list[str]]:
        """Return the names of instances, by provider."""
        found = {name: await each.list() for name, each in self.providers.items()}
        return {name: sorted(each.name for each in all_) for name, all_ in found.items()}


async def published(bus: NatsBus, fact: str) -> list[Any]:
    """Return the events of this fact."""
    stored = await bus.read(EVENTS.name, pool_event_wildcard(fact))
    return [pool_codec.decode(each.data) for each in stored]


@pytest.mark.parametrize("kind", ["CAPACITY", "QUOTA", "UNSUPPORTED", "AUTH", "INVALID"])
async def test_what_one_provider_surely_refuses_the_next_is_asked(
    bus: NatsBus, kind: ProviderErrorKind
) -> None:
    """The same launch asks the next provider; later launches and other replicas skip the first."""
    market = Market(bus)
    market.order("fake", kind, times=5)
    outputs = await market.steps().provision(provision("web-1", choice=BOTH))
    assert (outputs.provider, outputs.instance_type) == ("dear", "big")
    assert outputs.dollars_per_hour == 5.0
    await market.steps().provision(provision("web-2", choice=BOTH))
    assert await market.existing() == {"fake": [], "dear": ["web-1", "web-2"]}
    assert market.providers["fake"].calls("provision") == ["web-1"]
    record = await recorded(bus, "web-1")
    assert (record.provider, record.offering and record.offering.provider) == ("dear", "dear")


async def test_what_may_have_come_about_is_not_asked_for_elsewhere(bus: NatsBus) -> None:
    """A lost answer is looked for where it was asked, until there is no doubt."""
    market = Market(bus, idempotent=False)
    market.order("fake", "TRANSIENT", times=2, after_success=False)
    market.order("fake", "TRANSIENT", after_success=True)
    outputs = await market.steps().provision(provision("web-1", choice=BOTH))
    assert outputs.provider == "fake"
    assert await market.existing() == {"fake": ["web-1"], "dear": []}
    assert market.providers["dear"].calls("provision") == []


async def test_killed_anywhere_a_launch_that_moves_on_makes_one_instance(bus: NatsBus) -> None:
    """A launch is killed between any two effects while one provider refuses and the next works."""
    for point in range(1, 120):
        market = Market(bus, idempotent=False)
        market.order("fake", "CAPACITY", times=3)
        node, life, killed = f"web-{point}", Life(point), False
        await clear(bus)
        await forget_instances(bus)
        mortal = {name: Mortal(each, life) for name, each in market.providers.items()}
        try:
            await market.steps(Mortal(bus, life), **mortal).provision(provision(node, choice=BOTH))
        except Killed:
            killed = True
            await lapsed(bus, node)
            outputs = await market.steps().provision(provision(node, choice=BOTH))
            record = await recorded(bus, node)
            assert (record.state, record.provider_id) == ("running", outputs.provider_id)
        existing = await market.existing()
        assert len(existing["fake"]) + len(existing["dear"]) == 1
        if not killed:
            assert point > 12
            return
    pytest.fail("the launch has more points than this test tries")


async def clear(bus: NatsBus) -> None:
    """Forget what is exhausted."""
    for entry in await bus.entries(OFFERINGS, BLOCKED):
        await bus.delete(OFFERINGS, entry.key)


async def test_a_slow_first_provider_that_succeeds_too_late_is_taken_back(bus: NatsBus) -> None:
    """Another replica has gone on to the next provider meanwhile: one instance stays, recorded."""
    market = Market(bus)
    slow = Held(market.providers["fake"])
    first = asyncio.create_task(market.steps(fake=slow).provision(provision("web-1", choice=BOTH)))
    await slow.entered.wait()
    market.order("fake", "CAPACITY")
    second = await market.steps().provision(provision("web-1", choice=BOTH))
    slow.go_on.set()
    assert await first == second
    assert second.provider == "dear"
    assert await market.existing() == {"fake": [], "dear": ["web-1"]}


async def test_an_undo_removes_it_wherever_it_is(bus: NatsBus) -> None:
    """The undo is made at the provider of the recorded choice, not at the pool's first."""
    market = Market(bus)
    market.order("fake", "CAPACITY")
    await market.steps().provision(provision("web-1", choice=BOTH))
    await market.steps().provision_undo(provision("web-1"))
    assert await market.existing() == {"fake": [], "dear": []}


async def test_spot_gives_way_to_on_demand_after_its_wait(bus: NatsBus) -> None:
    """Not before; and an event reports the wait."""
    spot = Offer(provider="fake", instance_type="big", market="spot")
    market = Market(bus)
    market.order("fake", "CAPACITY")
    choice = Choice(offers=(spot,), fallback_seconds=0.5)
    given = provision("web-1", choice=choice, timeout_seconds=30.0)
    outputs = await market.steps().provision(given)
    assert outputs.market == "on-demand"
    record = await recorded(bus, "web-1")
    assert record.running_at is not None
    assert (record.running_at - record.intended_at).total_seconds() >= 0.5
    [waits] = await published(bus, "launch-waiting")
    assert isinstance(waits, LaunchWaiting)
    assert "fake big spot (CAPACITY: ordered for provision)" in waits.reason


CAPS: dict[str, tuple[dict[str, Any], float, str, str]] = {
    "the pool's": ({"spend_cap": 7.0}, 0.0, "above-pool-cap", "pool web costs $6 of its spend_cap"),
    "the fleet's": ({}, 7.0, "above-fleet-cap", "the fleet costs $6 of its spend_cap of $7"),
}


@pytest.mark.parametrize("garbage", [b"x", b"[]", b'{"reserved": 5}', b'{"reserved": {"a": []}}'])
async def test_unreadable_reservations_hold_launches_under_a_cap_alone(
    bus: NatsBus, garbage: bytes
) -> None:
    """Launches under a cap wait for the operator, as the reserved sum is unknown; others go on."""
    await bus.put(OFFERINGS, SPEND_KEY, garbage)
    market = Market(bus)
    offers = (Offer(provider="fake", instance_type="big"),)
    capped = provision("web-1", choice=Choice(offers=offers, spend_cap=7.0))
    with pytest.raises(UnreadableRecord, match=SPEND_KEY):
        await market.steps().provision(capped)
    await market.steps().provision(provision("web-2", choice=Choice(offers=offers)))
    await bus.delete(OFFERINGS, SPEND_KEY)
    await market.steps().provision(capped)
    assert len((await market.existing())["fake"]) == 2


@pytest.mark.parametrize("garbage", [b"x", b"[]", b'{"probe_at": "never"}'])
async def test_an_unreadable_block_is_written_over(bus: NatsBus, garbage: bytes) -> None:
    """The provider says again what it blocks: no launch waits for an operator."""
    market = Market(bus)
    for name in ("web-1", "web-2"):
        market.order("fake", "CAPACITY")
        await market.steps().provision(provision(name, choice=BOTH))
        [entry] = await bus.entries(OFFERINGS, BLOCKED)
        assert decoder(BlockRecord).decode(entry.value).failures == 1
        await bus.put(OFFERINGS, entry.key, garbage)
    assert await market.existing() == {"fake": [], "dear": ["web-1", "web-2"]}


@pytest.mark.parametrize(("choice", "fleet", "word", "text"), CAPS.values(), ids=CAPS)
async def test_a_cap_is_kept_by_launches_at_once_at_two_replicas(
    bus: NatsBus, choice: dict[str, Any], fleet: float, word: str, text: str
) -> None:
    """Two of six are launched, in any order; the others are refused with the reason."""
    market = Market(bus)
    offers = (Offer(provider="fake", instance_type="big"),)
    replicas = [market.steps(fleet_cap=fleet) for _ in range(2)]
    found = await asyncio.gather(
        *(
            replicas[number % 2].provision(
                provision(f"web-{number}", choice=Choice(offers=offers, **choice))
            )
            for number in range(6)
        ),
        return_exceptions=True,
    )
    refused = [each for each in found if isinstance(each, StepFailure)]
    assert [each.error for each in refused] == [word] * 4
    assert len((await market.existing())["fake"]) == 2
    events = [
        each for each in await published(bus, "launch-refused") if isinstance(each, LaunchRefused)
    ]
    assert {each.refusal for each in events} == {word}
    assert len(events) == 4
    assert text in events[0].reason
    again = provision("web-0", choice=Choice(offers=offers, **choice))
    if isinstance(found[0], StepFailure):
        with pytest.raises(StepFailure) as failure:
            await market.steps().provision(again)
        assert failure.value.error == word


async def test_room_under_a_cap_comes_back_with_what_is_gone(bus: NatsBus) -> None:
    """A terminated instance costs nothing more, though its reservation is still written."""
    market = Market(bus)
    choice = Choice(offers=(Offer(provider="fake", instance_type="big"),), spend_cap=4.0)
    await market.steps().provision(provision("web-1", choice=choice))
    with pytest.raises(StepFailure, match="its spend_cap of \\$4"):
        await market.steps().provision(provision("web-2", choice=choice))
    await market.steps().terminate(terminate("web-1"))
    await market.steps().provision(provision("web-3", choice=choice))
    assert (await market.existing())["fake"] == ["web-3"]


async def test_what_costs_more_than_it_may_is_not_asked_for(bus: NatsBus) -> None:
    """The cheaper one is; without it the launch is refused, and nothing was asked."""
    market = Market(bus)
    dear, cheap = (
        Offer(provider=name, instance_type="big", max_price=4.0) for name in ("dear", "fake")
    )
    outputs = await market.steps().provision(
        provision("web-1", choice=Choice(offers=(dear, cheap)))
    )
    assert outputs.provider == "fake"
    with pytest.raises(StepFailure) as failure:
        await market.steps().provision(provision("web-2", choice=Choice(offers=(dear,))))
    assert failure.value.error == "above-max-price"
    assert market.providers["dear"].calls("provision") == []


async def until_waits(bus: NatsBus) -> None:
    """Wait until a launch has published that it waits."""

    async def waits() -> bool:
        return bool(await published(bus, "launch-waiting"))

    await until(waits)


async def test_a_launch_that_is_cancelled_leaves_its_try_to_others(bus: NatsBus) -> None:
    """A claim of a cancelled launch is free at once, not only when its time is over."""
    market = Market(bus)
    only = Choice(offers=(Offer(provider="fake", instance_type="big"),))
    market.order("fake", "CAPACITY")
    waiting = asyncio.create_task(
        market.steps().provision(provision("web-1", choice=only, timeout_seconds=60.0))
    )
    await until_waits(bus)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    [entry] = await bus.entries(OFFERINGS, BLOCKED)
    assert b'"probe":' not in entry.value or b'"probe":""' in entry.value


async def test_a_launch_that_waits_costs_nothing_under_a_cap(bus: NatsBus) -> None:
    """A refused offering is not paid for, so a waiting launch keeps no room from others."""
    market = Market(bus)
    market.order("fake", "CAPACITY", times=9)
    only = Choice(offers=(Offer(provider="fake", instance_type="big"),), spend_cap=6.0)
    waiting = asyncio.create_task(
        market.steps().provision(provision("web-1", choice=only, timeout_seconds=60.0))
    )
    await until_waits(bus)
    other = Choice(offers=(Offer(provider="dear", instance_type="big"),), spend_cap=6.0)
    await market.steps().provision(provision("web-2", choice=other))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await market.existing() == {"fake": [], "dear": ["web-2"]}
