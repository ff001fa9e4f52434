"""A pool that is made smaller gives up its launches, on a real server; nodes at work stay."""

import asyncio

from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, peers, settings, settled, under_way
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]


async def test_launches_are_given_up_and_no_node_at_work_leaves(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Two nodes work, four are wanted for a moment, and two again while the new ones are made."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=2)):
        before = await eventually(settled(bus, 2))
        peers.calls.clear()
        peers.hold["provision"] = asyncio.Event()
        await ask(bus, "scale", nodes=4)

        async def launching() -> bool:
            return len(peers.count("provision")) == 2

        await eventually(launching)
        await ask(bus, "scale", nodes=2)

        async def given_up() -> bool:
            return len(await events(bus, "saga-cancelled")) == 2

        await eventually(given_up)
        peers.hold["provision"].set()
        after = await eventually(settled(bus, 2))

    assert sorted(before) == sorted(after)
    assert set(before) == peers.instances
    assert {"provision", "undo-provision"} == {step for step, _ in peers.calls}


async def test_a_launch_that_is_not_wanted_any_more_is_not_made(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The old node of a replacement is going when the pool is made smaller by one."""
    peers.hold["terminate"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings(min_nodes=2)):
        await eventually(settled(bus, 2))
        await ask(bus, "scale", nodes=3)
        before = await eventually(settled(bus, 3))
        peers.calls.clear()
        await peers.make_unhealthy("training", before[0])
        await eventually(under_way(peers, "terminate"))
        await ask(bus, "scale", nodes=2)

        async def scaled() -> bool:
            return len(await events(bus, "scaled")) == 2

        await eventually(scaled)
        peers.hold["terminate"].set()
        after = await eventually(settled(bus, 2))

    assert sorted(before[1:]) == sorted(after)
    assert not peers.count("provision")
    assert {before[0]} == set(peers.count("cordon"))
