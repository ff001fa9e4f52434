"""Killed at every point between two effects, and begun again: never one instance too many."""

import asyncio

import pytest

from services.bus.nats.nats_bus import NatsBus
from services.provisioner.providers.fake import FakeFault, FakeProvider
from services.saga.participant import StepFailure
from tests.provisioner.provisioner_parts import (
    Held,
    Killed,
    Life,
    Mortal,
    fake,
    lapsed,
    provision,
    recorded,
    steps,
    terminate,
)

POINTS_MAX = 60


async def made(provider: FakeProvider, node: str) -> list[str]:
    """Return the IDs of the instances of a node."""
    return [each.provider_id for each in await provider.list() if each.name == node]


@pytest.mark.parametrize("idempotent", [True, False], ids=["token", "no-token"])
async def test_a_launch_killed_anywhere_makes_one_instance(
    bus: NatsBus, *, idempotent: bool
) -> None:
    """Redelivered after a crash at any point, the launch adopts what it had made."""
    provider = fake(idempotent=idempotent)
    for point in range(1, POINTS_MAX):
        node, life = f"web-{point}", Life(point)
        mortal = steps(Mortal(bus, life), Mortal(provider, life))
        killed = False
        try:
            await mortal.provision(provision(node))
        except Killed:
            killed = True
            await lapsed(bus, node)
            outputs = await steps(bus, provider).provision(provision(node))
            assert [outputs.provider_id] == await made(provider, node)
        record = await recorded(bus, node)
        assert ("running", [record.provider_id]) == (record.state, await made(provider, node))
        if not killed:
            break
    else:
        pytest.fail("the launch has more points than this test tries")
    assert point > 5


async def test_a_launch_killed_twice_makes_one_instance(bus: NatsBus) -> None:
    """A launch whose second try is killed as well makes one instance."""
    provider = fake(idempotent=False)
    for first in range(1, 8):
        for second in range(1, 8):
            node = f"web-{first}-{second}"
            for point in (first, second):
                life = Life(point)
                try:
                    await steps(Mortal(bus, life), Mortal(provider, life)).provision(
                        provision(node)
                    )
                except Killed:
                    await lapsed(bus, node)
            await steps(bus, provider).provision(provision(node))
            assert len(await made(provider, node)) == 1


async def test_a_removal_killed_anywhere_is_completed(bus: NatsBus) -> None:
    """Redelivered after a crash at any point, the removal ends with a confirmed absence."""
    provider = fake()
    for point in range(1, POINTS_MAX):
        node, life = f"web-{point}", Life(point)
        await steps(bus, provider).provision(provision(node))
        killed = False
        try:
            await steps(Mortal(bus, life), Mortal(provider, life)).terminate(terminate(node))
        except Killed:
            killed = True
            record = await recorded(bus, node)
            if record.state == "terminated":
                assert await made(provider, node) == []
            await steps(bus, provider).terminate(terminate(node))
        assert (await recorded(bus, node)).state == "terminated"
        assert await made(provider, node) == []
        if not killed:
            break
    else:
        pytest.fail("the removal has more points than this test tries")


async def test_a_launch_killed_anywhere_and_then_undone_leaves_nothing(bus: NatsBus) -> None:
    """The undo is right wherever the launch stopped, and a late redelivery makes nothing."""
    provider = fake(idempotent=False)
    for point in range(1, POINTS_MAX):
        node, life = f"web-{point}", Life(point)
        killed = False
        try:
            await steps(Mortal(bus, life), Mortal(provider, life)).provision(provision(node))
        except Killed:
            killed = True
        await steps(bus, provider).provision_undo(provision(node))
        assert (await recorded(bus, node)).state == "terminated"
        with pytest.raises(StepFailure):
            await steps(bus, provider).provision(provision(node))
        assert await made(provider, node) == []
        if not killed:
            return
    pytest.fail("the launch has more points than this test tries")


async def test_an_undo_before_its_launch_wins(bus: NatsBus) -> None:
    """An instance that the launch makes after its undo has ended is removed at once."""
    provider = fake()
    held = Held(provider)
    launching = asyncio.create_task(steps(bus, held).provision(provision("web-1")))
    await held.entered.wait()
    await steps(bus, provider).provision_undo(provision("web-1"))
    assert (await recorded(bus, "web-1")).state == "terminated"
    held.go_on.set()
    with pytest.raises(StepFailure):
        await launching
    assert len(provider.calls("provision")) == 1
    assert await made(provider, "web-1") == []
    assert (await recorded(bus, "web-1")).state == "terminated"


async def test_an_undo_before_the_launch_keeps_it_from_happening(bus: NatsBus) -> None:
    """A launch that arrives after its undo asks the provider for nothing."""
    provider = fake()
    await steps(bus, provider).provision_undo(provision("web-1"))
    with pytest.raises(StepFailure):
        await steps(bus, provider).provision(provision("web-1"))
    assert provider.calls("provision") == []


@pytest.mark.parametrize("kind", ["TRANSIENT", "NETWORK"])
async def test_a_lost_answer_is_adopted(bus: NatsBus, kind: str) -> None:
    """A launch that took effect and failed is found by listing, not made again."""
    provider = fake(
        idempotent=False, faults=(FakeFault(call="provision", kind=kind, after_success=True),)
    )
    outputs = await steps(bus, provider).provision(provision("web-1"))
    assert await made(provider, "web-1") == [outputs.provider_id]
    assert len(provider.calls("provision")) == 1


async def test_a_silent_provider_is_given_up_and_what_it_made_is_removed(bus: NatsBus) -> None:
    """A launch that ends out of time and in doubt fails, and no unrecorded instance exists."""
    provider = fake(faults=(FakeFault(call="provision", hang=True, after_success=True),))
    with pytest.raises(StepFailure) as failure:
        await steps(bus, provider).provision(provision("web-1", timeout_seconds=0.05))
    assert failure.value.error == "TRANSIENT"
    assert await made(provider, "web-1") == []
    assert (await recorded(bus, "web-1")).state == "terminated"
