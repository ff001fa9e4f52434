"""Holds and observe mode on a real server with scripted peers."""

import msgspec
import pytest

from schemas import subjects
from schemas.node_events import NodeHeld, Released, node_codec
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager.service import build
from tests.pool_manager.fleet import ask, events, nodes, peers, pools, settings, settled
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers
from tests.support.settling import settled as dealt_with

__all__ = ["peers"]


async def facts(bus: NatsBus, fact: str) -> list[NodeHeld | Released]:
    """Return every stored node event of one type."""
    found = await bus.read("EVENTS", subjects.node_event_wildcard(fact))
    return [node_codec.decode(each.data) for each in found]  # type: ignore[misc]


async def test_held_node_is_replaced_after_its_release(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The hold is published and shown; the unhealthy node stays until it is released."""
    async with Running(server.url, "pool-manager", build, settings()):
        [name, *_] = await eventually(settled(bus, 3))
        await ask(bus, "hold", node=name, reason="bisecting", **{"for": "2h"})
        [accepted] = await eventually(lambda: events(bus, "request-accepted"))
        await peers.make_unhealthy("training", name)
        await dealt_with(bus, "EVENTS", "pool-node-events")
        [view] = [each for each in await nodes(bus) if each.id == name]

        assert ("unhealthy", "", "test") == (view.health, view.saga, view.held_by)
        assert {} == peers.count("cordon")

        await ask(bus, "release", node=name)
        await eventually(lambda: events(bus, "node-replaced"))
        [held], [released] = await facts(bus, "held"), await facts(bus, "released")

    assert ("hold", name) == (accepted["verb"], accepted["node"])
    assert isinstance(held, NodeHeld)
    assert ("bisecting", "test", "test") == (held.reason, held.by, released.by)


async def test_expired_hold_is_published_and_the_node_replaced(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A timer ends the hold of one second, and the waiting repair starts."""
    async with Running(server.url, "pool-manager", build, settings()):
        [name, *_] = await eventually(settled(bus, 3))
        await ask(bus, "hold", node=name, reason="a second", **{"for": "1s"})
        await eventually(lambda: events(bus, "request-accepted"))
        await peers.make_unhealthy("training", name)
        await eventually(lambda: events(bus, "node-replaced"))
        [released] = await eventually(lambda: facts(bus, "released"))

    assert "its time is over" == released.reason


@pytest.mark.parametrize(
    ("payload", "refusal"),
    [
        ({"for": "2h"}, "invalid-request"),
        ({"for": "2h", "reason": ""}, "invalid-request"),
        ({"for": "2h", "reason": " "}, "invalid-request"),
        ({"for": "0s", "reason": "x"}, "invalid-request"),
        ({"for": "169h", "reason": "x"}, "invalid-request"),
        ({"for": "2h", "reason": "x", "node": "unknown"}, "unknown-node"),
    ],
)
@pytest.mark.usefixtures("peers")
async def test_hold_without_reason_or_end_is_refused(
    server: EmbeddedServer, bus: NatsBus, payload: dict[str, str], refusal: str
) -> None:
    """Every refusal says what is valid; the node is not held."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [name] = await eventually(settled(bus, 1))
        await ask(bus, "hold", **{"node": name, **payload})
        [refused] = await eventually(lambda: events(bus, "request-refused"))
        [view] = await nodes(bus)

    assert (refusal, "") == (refused["refusal"], view.held_until)


async def test_observe_mode_performs_nothing(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """An unhealthy node is published once, shown, and left alone; operators are refused."""
    async with Running(server.url, "pool-manager", build, settings()):
        [name, *_] = await eventually(settled(bus, 3))
    peers.calls.clear()
    observing = msgspec.structs.replace(settings(), mode="observe")
    async with Running(server.url, "pool-manager", build, observing):
        await peers.make_unhealthy("training", name)
        [would_start] = await eventually(lambda: events(bus, "would-start"))
        await ask(bus, "cordon", node=name)
        [refused] = await eventually(lambda: events(bus, "request-refused"))
        await ask(bus, "hold", node=name, reason="the pool is looked at again", **{"for": "1h"})
        await dealt_with(bus, "REQUESTS", "pool-requests")
        [pool] = await pools(bus)
        again = await events(bus, "would-start")

    assert ("replace", name) == (would_start["kind"], would_start["node"])
    assert [would_start] == again
    assert "observing" == refused["refusal"]
    assert ("observe", ()) == (pool.mode, pool.observed_actions)
    assert [] == peers.calls
