"""Launches of a gang on the bus: all in one zone, or none; and no instance stays."""

import asyncio
import dataclasses
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from schemas.launch_offers import Choice, Offer
from schemas.messages import decoder
from schemas.offering_records import BLOCKED, BlockRecord, PlacementRecord, placement_key
from schemas.step_data import ProvisionOutputs
from schemas.topology import INSTANCES, OFFERINGS
from services.bus.nats.nats_bus import NatsBus
from services.bus.record_bucket import RecordBucket
from services.primitives.errors import Retry
from services.provisioner.instances.instance_store import InstanceStore
from services.provisioner.saga_step_handlers import SagaStepHandlers
from services.saga.participant import Command, StepFailure
from tests.provisioner.provisioner_parts import (
    Killed,
    Life,
    Mortal,
    lapsed,
    provision,
    recorded,
    until,
)
from tests.provisioner.test_offering_allocator import Market

ZONES = Choice(
    offers=(Offer(provider="fake", instance_type="h100-8x", zones=("a", "b")),),
    together="zone",
    required=True,
)


def member(number: int, gang: str = "g1", size: int = 3, gather: float = 20.0) -> Command:
    """Return the launch of a gang's node; without a gang, of a single one."""
    gang_of: dict[str, Any] = {}
    if gang:
        gang_of = {"gang": gang, "gang_size": size, "gather_seconds": gather}
    return provision(f"web-{number}", choice=ZONES, **gang_of)


async def launched(replicas: list[SagaStepHandlers], commands: list[Command]) -> list[Any]:
    """Return the results of the launches, each at another replica."""
    calls = [replicas[n % len(replicas)].provision(each) for n, each in enumerate(commands)]
    return list(await asyncio.gather(*calls, return_exceptions=True))


async def undo(steps: SagaStepHandlers, commands: list[Command]) -> None:
    """Undo failed launches, as their sagas do next."""
    for each in commands:
        await steps.provision_undo(each)


async def placement(bus: NatsBus) -> PlacementRecord:
    """Return the recorded placement of the pool."""
    found = (await RecordBucket(bus, OFFERINGS, PlacementRecord).read(placement_key("web"))).record
    assert found is not None
    return found


async def zones(market: Market) -> list[str]:
    """The zones of the machines that exist."""
    return sorted(each.zone for each in await market.providers["fake"].list())


async def test_a_gang_that_finds_no_room_is_given_back_and_the_next_goes_elsewhere(
    bus: NatsBus,
) -> None:
    """A gang over two replicas that finds two of three machines gives them back.

    Each launch says so, and the next goes elsewhere.
    """
    market = Market(bus)
    replicas = [market.steps(), market.steps()]
    first = [member(number, gather=1.0) for number in (1, 2)]
    late = member(3, gather=1.0)
    running = asyncio.ensure_future(launched(replicas, first))
    while len(await zones(market)) < 2:
        await asyncio.sleep(0.01)
    market.order("fake", "CAPACITY", times=100, zone="a")
    ended = [*await launched(replicas, [late]), *await running]
    assert all(isinstance(each, StepFailure) for each in ended)
    assert {each.error for each in ended} == {"CAPACITY"}
    assert "fake a had 2 of 3 nodes that must be together" in ended[1].reason
    await undo(replicas[1], [*first, late])
    assert await zones(market) == []
    placed = await launched(replicas, [member(number, "g2") for number in (4, 5, 6)])
    assert [type(each) for each in placed] == [ProvisionOutputs] * 3, placed
    assert await zones(market) == ["b", "b", "b"]
    assert ((found := await placement(bus)).state, found.tried) == ("placed", ())
    # What is launched alone later goes there, too; the undo of a launch ends no gang that is whole.
    market.providers["fake"].clear_faults()
    await replicas[0].provision(member(7, gang=""))
    await undo(replicas[0], [member(6, "g2")])
    assert await zones(market) == ["b", "b", "b"]
    assert (await placement(bus)).state == "placed"


async def test_the_undo_of_one_launch_ends_the_gang_that_waits_for_it(bus: NatsBus) -> None:
    """An operator cancelled it: the others do not wait until their time is over."""
    market = Market(bus)
    steps = market.steps()
    commands = [member(number, gather=60.0) for number in (1, 2)]
    running = asyncio.ensure_future(launched([steps], commands))
    while len(await zones(market)) < 2:
        await asyncio.sleep(0.01)
    await undo(steps, [member(3)])
    async with asyncio.timeout(30):
        ended = await running
    assert all("the launch of web-3 was undone" in each.reason for each in ended)


async def test_a_gang_waits_for_its_first_launch_to_probe_a_quota(bus: NatsBus) -> None:
    """The quota was raised: one launch finds out, and the others had failed with it meanwhile."""
    market = Market(bus)
    market.order("fake", "QUOTA")
    alone = member(1, gang="")
    [refused] = await launched([market.steps()], [alone])
    assert refused.error == "QUOTA"
    await undo(market.steps(), [alone])
    [entry] = await bus.entries(OFFERINGS, BLOCKED)
    block = decoder(BlockRecord).decode(entry.value)
    due = replace(block, probe_at=block.since)
    await bus.put(OFFERINGS, entry.key, json.encode(due))
    replicas = [market.steps(), market.steps()]
    placed = await launched(replicas, [member(number, "g2") for number in (2, 3, 4)])
    assert [type(each) for each in placed] == [ProvisionOutputs] * 3, placed
    assert await bus.entries(OFFERINGS, BLOCKED) == []


@pytest.mark.parametrize("garbage", [b"x", b"[]", b'{"owner": 5}'])
async def test_an_unreadable_place_is_decided_again(bus: NatsBus, garbage: bytes) -> None:
    """The gang is in one zone, and what is launched later goes there."""
    market = Market(bus)
    replicas = [market.steps(), market.steps()]
    await bus.put(OFFERINGS, placement_key("web"), garbage)
    placed = await launched(replicas, [member(number) for number in (1, 2, 3)])
    assert [type(each) for each in placed] == [ProvisionOutputs] * 3, placed
    assert len(set(await zones(market))) == 1
    await bus.put(OFFERINGS, placement_key("web"), garbage)
    await replicas[0].provision(member(4, gang=""))
    assert len(set(await zones(market))) == 1


async def test_a_gang_waits_for_a_launch_whose_record_is_lost(bus: NatsBus) -> None:
    """The command of a lost record is delivered again and adopts the machine.

    A failure would give all of the gang's machines back.
    """
    market = Market(bus)
    steps = market.steps()
    one, two = (member(number, size=2) for number in (1, 2))
    waiting = asyncio.ensure_future(steps.provision(one))

    async def runs() -> bool:
        found = await InstanceStore(bus).get("web.web-1")
        return found is not None and found.state == "running"

    await until(runs)
    await bus.delete(INSTANCES, "web.web-1")
    with pytest.raises(Retry):
        await waiting
    placed = await launched([steps, market.steps()], [two, dataclasses.replace(one, deliveries=2)])
    assert [type(each) for each in placed] == [ProvisionOutputs] * 2, placed
    assert len(await zones(market)) == 2


async def test_killed_anywhere_a_gang_is_whole_or_nothing(bus: NatsBus) -> None:
    """One launch of two dies at each point; repeated at another replica, both end alike."""
    for point in range(1, 200, 9):
        market, life, killed = Market(bus, idempotent=False), Life(point), False
        gang, numbers = f"g{point}", (1000 + point, 2000 + point)
        await bus.delete(OFFERINGS, placement_key("web"))
        mortal = market.steps(Mortal(bus, life), fake=Mortal(market.providers["fake"], life))
        one, two = (member(number, gang, 2) for number in numbers)
        other = asyncio.ensure_future(market.steps().provision(two))
        try:
            await mortal.provision(one)
        except Killed:
            killed = True
            await lapsed(bus, f"web-{numbers[0]}")
            await market.steps().provision(one)
        await other
        found = await zones(market)
        assert len(found) == 2
        assert len(set(found)) == 1
        assert (await placement(bus)).state == "placed"
        assert (await recorded(bus, f"web-{numbers[0]}")).state == "running"
        await undo(market.steps(), [one, two])
        if not killed:
            assert point > 12
            return
    pytest.fail("the launch has more points than this test tries")
