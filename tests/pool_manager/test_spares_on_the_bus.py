"""Hot spares on a real server with scripted peers: how long a gap lasts."""

import asyncio
from datetime import UTC, datetime

from schemas import subjects
from schemas.messages import encode
from schemas.node_records import HeartbeatRecord, node_key
from schemas.topology import HEARTBEATS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, nodes, peers, pools, settings, settled, spot
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

POOL = settings(min_nodes=2, spares=1)
SECONDS_MAX = 5.0


async def spare(bus: NatsBus) -> str:
    """Return the name of the one spare, or empty."""
    found = [view.id for view in await nodes(bus) if view.spare and view.status == "active"]
    return found[0] if found else ""


async def stored_at(bus: NatsBus, fact: str, node: str) -> datetime | None:
    """Return when an event about a node was stored."""
    found = await bus.read("EVENTS", subjects.node_event_wildcard(fact))
    return next((each.time for each in found if f".{node}." in each.subject), None)


async def test_spare_is_cordoned_before_it_is_admitted(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A new pool: two nodes in service, and one that the workload system never got."""
    async with Running(server.url, "pool-manager", build, POOL):
        await eventually(settled(bus, 3))
        name = await spare(bus)
        [pool] = await pools(bus)
        views = {view.id: view for view in await nodes(bus)}

    assert {name: 1} == peers.count("reserve")
    assert {} == peers.count("open")
    assert (True, True) == (views[name].spare, views[name].cordoned)
    assert (2, 1, 1, 0) == (pool.desired, pool.spares, pool.spares_ready, pool.cordoned)


async def test_spare_is_in_service_seconds_after_the_cordon(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """While the unhealthy node drains, the spare serves; the launched node is the new spare."""
    async with Running(server.url, "pool-manager", build, POOL):
        await eventually(settled(bus, 3))
        old = await spare(bus)
        failing = next(view.id for view in await nodes(bus) if not view.spare)
        peers.hold["drain"] = asyncio.Event()
        peers.calls.clear()
        await peers.make_unhealthy("training", failing)
        promoted = await eventually(lambda: stored_at(bus, "promoted", old))
        cordoned = await stored_at(bus, "cordoned", failing)
        active = [view for view in await nodes(bus) if view.status == "active"]
        serving = {view.id for view in active if not view.cordoned}
        peers.hold["drain"].set()
        [event] = await eventually(lambda: events(bus, "node-replaced"))
        await eventually(settled(bus, 3))
        new = await spare(bus)

    assert cordoned is not None
    assert 0 <= (promoted - cordoned).total_seconds() < SECONDS_MAX
    assert old in serving
    assert 2 == len(serving)
    assert (failing, old, new) == (event["old_node"], event["promoted"], event["new_node"])
    assert ["cordon", "promote", "drain", "terminate", "provision", "bootstrap", "reserve"] == [
        step for step, _ in peers.calls
    ]
    assert 3 == peers.most_instances


async def test_spare_that_the_cloud_takes_is_replaced(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The spare is cordoned and beats; neither makes its notice a matter of silence."""
    async with Running(server.url, "pool-manager", build, POOL):
        await eventually(settled(bus, 3))
        old = await spare(bus)
        beat = HeartbeatRecord(pool="training", node=old, boot_id="b1", time=datetime.now(UTC))
        await bus.put(HEARTBEATS, node_key("training", old), encode(beat))
        await peers.publish(spot(old, 120))
        [event] = await eventually(lambda: events(bus, "node-replaced"), within_seconds=10)
        await eventually(settled(bus, 3))
        new = await spare(bus)

    assert (old, new) == (event["old_node"], event["new_node"])


async def test_growing_pool_promotes_its_spare_first(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The spare is in service without a launch; the new spare follows when one succeeds."""
    async with Running(server.url, "pool-manager", build, POOL):
        await eventually(settled(bus, 3))
        old = await spare(bus)
        peers.hold["provision"] = asyncio.Event()
        await ask(bus, "scale", nodes=3)
        await eventually(lambda: stored_at(bus, "promoted", old))
        serving = [view for view in await nodes(bus) if view.status == "active" and not view.spare]
        peers.hold["provision"].set()
        await eventually(settled(bus, 4))

        assert 3 == len(serving)
        assert await spare(bus) not in ("", old)


async def test_operators_cannot_uncordon_a_spare(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The refusal names the right command; the spare stays one."""
    async with Running(server.url, "pool-manager", build, POOL):
        await eventually(settled(bus, 3))
        name = await spare(bus)
        await ask(bus, "uncordon", node=name)
        [refused] = await eventually(lambda: events(bus, "request-refused"))

    assert "wrong-state" == refused["refusal"]
    assert "navarch scale training" in refused["reason"]
    assert {} == peers.count("uncordon")


async def test_spare_is_promoted_once_despite_a_crash(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """Both replicas die while the spare is uncordoned; two others complete the saga."""
    running = [
        Running(server.url, "pool-manager", build, POOL, replica=number) for number in range(4)
    ]
    async with running[0], running[1]:
        await eventually(settled(bus, 3))
        old = await spare(bus)
        failing = next(view.id for view in await nodes(bus) if not view.spare)
        peers.hold["promote"] = asyncio.Event()
        await peers.make_unhealthy("training", failing)
        await eventually(lambda: count(peers, "promote"))
    peers.hold["promote"].set()
    async with running[2], running[3]:
        [event] = await eventually(lambda: events(bus, "node-replaced"))
        await eventually(settled(bus, 3))
        promoted = await bus.read("EVENTS", subjects.node_event_wildcard("promoted"))
        [new] = [view.id for view in await nodes(bus) if view.spare and view.status == "active"]

    assert (old, new) == (event["promoted"], event["new_node"])
    assert 1 == len(promoted)
    assert {failing: 1} == peers.count("terminate")
    assert 3 == len(peers.instances)


async def count(peers: Peers, step: str) -> int:
    """Return how often a step was requested."""
    return sum(peers.count(step).values())
