"""Stops on a real server with scripted peers: orders, copies, restarts, open sagas."""

import asyncio
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.messages import encode
from schemas.operations import RESUME, STOP
from schemas.stops import PLACES, ResumeRequest, StopRequest, StopsAnswer
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.protocol.endpoint_replies import reply_data
from services.pool_manager.service import build
from services.primitives.errors import AnswerError
from tests.pool_manager.fleet import ask, events, peers, pools, settings, settled, under_way
from tests.pool_manager.test_request_dry_run import dry_run
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers

__all__ = ["peers"]

WEB = {"provider": "test", "instance_type": "h100-8x", "min_nodes": 1, "max_nodes": 2}


async def order(bus: NatsBus, name: str, request: msgspec.Struct) -> StopsAnswer:
    """Give an order as ada."""
    subject = subjects.order(name, "ada")
    reply = await bus.request(subject, encode(request), timeout_seconds=30)
    return msgspec.json.decode(reply_data(reply), type=StopsAnswer)


async def stop(bus: NatsBus, **about: Any) -> StopsAnswer:
    """Stop the fleet, or a part of it."""
    return await order(bus, STOP.name, StopRequest(reason="a wrong image", **about))


async def resume(bus: NatsBus, **about: Any) -> StopsAnswer:
    """End a stop."""
    return await order(bus, RESUME.name, ResumeRequest(**about))


async def stops(bus: NatsBus) -> StopsAnswer:
    """Return every stop, and what waits."""
    reply = await bus.request(subjects.query("stops"), b"{}", timeout_seconds=30)
    return msgspec.json.decode(reply_data(reply), type=StopsAnswer)


async def news(bus: NatsBus) -> list[tuple[str, str]]:
    """Return what was published of stops."""
    found = await bus.read("EVENTS", subjects.fleet_event("automation-stopped"))
    each = [msgspec.json.decode(one.data) for one in found]
    return [(one["scope"], one["status"]) for one in each]


def waits_for(bus: NatsBus, kind: str, node: str) -> Any:
    """Return whether a saga of this kind about a node waits for the stop."""

    async def look() -> bool:
        found = await stops(bus)
        return (kind, node) in {(each.kind, each.node) for each in found.waiting}

    return look


async def begun(bus: NatsBus) -> int:
    """Return how many sagas have begun."""
    return len(await bus.read("SAGAS", subjects.saga_step_wildcard("saga", "started")))


async def test_nothing_begins_until_the_resume(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """An unhealthy node is recorded, shown as waiting, and replaced after the resume."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        count = await begun(bus)
        answer = await stop(bus)
        assert ["fleet"] == [each.scope for each in answer.stops]
        assert "ada" == answer.stops[0].by
        await peers.make_unhealthy("training", before[0])
        await eventually(waits_for(bus, "replace", before[0]))
        assert count == await begun(bus)
        assert [1] == [each.unhealthy for each in await pools(bus)]
        await resume(bus)
        assert () == (await stops(bus)).stops
        [event] = await eventually(lambda: events(bus, "node-replaced"))
    assert before[0] == event["old_node"]
    assert [("fleet", "stopped"), ("fleet", "resumed")] == await news(bus)


@pytest.mark.usefixtures("peers")
async def test_a_pool_that_is_applied_later_obeys(server: EmbeddedServer, bus: NatsBus) -> None:
    """The pool is recorded, and launches nothing until the resume."""
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(settled(bus, 3))
        count = await begun(bus)
        await stop(bus)
        body = msgspec.json.encode({"spec": WEB})
        await bus.publish(subjects.pool_request("web", "apply"), body)
        await eventually(waits_for(bus, "scale-up", ""))
        assert count == await begun(bus)
        await resume(bus)
        await eventually(settled(bus, 4))


async def test_a_restarted_service_obeys(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The first decision of the new process is made under the stop."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await stop(bus)
    count = await begun(bus)
    await peers.make_unhealthy("training", before[0])
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(waits_for(bus, "replace", before[0]))
    assert count == await begun(bus)


@pytest.mark.parametrize("place", PLACES, ids=[each[0].name for each in PLACES])
@pytest.mark.parametrize("damage", ["removed", "garbage"])
async def test_one_copy_stops_alone(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, place: Any, damage: str
) -> None:
    """A restarted process reads the other, and writes the lost one again."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await stop(bus)
    if damage == "removed":
        await bus.purge(f"KV_{place[0].name}", f"$KV.{place[0].name}.{place[1]}")
    else:
        await bus.put(*place, b"garbage")
    count = await begun(bus)
    await peers.make_unhealthy("training", before[0])
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(waits_for(bus, "replace", before[0]))

        async def restored() -> bool:
            copies = [await bus.get(*each) for each in PLACES]
            return None not in copies and 1 == len({each.value for each in copies if each})

        await eventually(restored)
    assert count == await begun(bus)


async def test_the_last_known_state_holds_where_no_copy_can_be_read(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A running process goes on to stop, and writes both copies again."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await stop(bus)
        for bucket, key in PLACES:
            await bus.put(bucket, key, b"garbage")
        count = await begun(bus)
        await peers.make_unhealthy("training", before[0])
        await eventually(waits_for(bus, "replace", before[0]))
        assert count == await begun(bus)


async def test_a_process_that_can_read_no_copy_begins_nothing(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """An operator says what holds then."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
    for bucket, key in PLACES:
        await bus.put(bucket, key, b"garbage")
    count = await begun(bus)
    await peers.make_unhealthy("training", before[0])
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(waits_for(bus, "replace", before[0]))
        assert ["neither POOLS" in each.reason for each in (await stops(bus)).stops] == [True]
        assert count == await begun(bus)
        await resume(bus)
        await eventually(lambda: events(bus, "node-replaced"))


async def test_an_open_saga_waits_before_its_pivot_and_goes_on(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """`running`: its drain under way may end, and nothing is terminated until the resume."""
    peers.hold["drain"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await peers.make_unhealthy("training", before[0])
        await eventually(under_way(peers, "drain"))
        await stop(bus, running=True)
        peers.hold["drain"].set()

        async def drained() -> bool:
            found = await bus.read("SAGAS", subjects.saga_step_wildcard("drain", "succeeded"))
            return bool(found)

        await eventually(drained)
        # A second look, after a request whose answer comes behind what is held.
        await ask(bus, "cordon", node=before[1])
        await eventually(lambda: _cordoned(peers, before[1]))
        assert not peers.count("terminate")
        await resume(bus)
        await eventually(lambda: events(bus, "node-replaced"))
    assert {before[0]: 1} == peers.count("terminate")


async def _cordoned(peers: Peers, node: str) -> bool:
    return node in peers.count("cordon")


@pytest.mark.usefixtures("peers")
async def test_an_operators_replacement_goes_on(server: EmbeddedServer, bus: NatsBus) -> None:
    """The saga goes on under the stop, to its end."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await stop(bus, running=True)
        await ask(bus, "replace", node=before[0])
        [event] = await eventually(lambda: events(bus, "node-replaced"))
    assert before[0] == event["old_node"]


@pytest.mark.usefixtures("peers")
@pytest.mark.parametrize(
    ("name", "request_", "words"),
    [
        (
            STOP.name,
            StopRequest(pool="trianing", reason="x"),
            "no pool 'trianing'",
        ),
        (STOP.name, StopRequest(provider="awss", reason="x"), "no provider 'awss': known: t"),
        (RESUME.name, ResumeRequest(), "fleet is not stopped; stopped: pool.training"),
        (RESUME.name, ResumeRequest(provider="test"), "provider.test is not stopped"),
        (RESUME.name, ResumeRequest(pool="mine"), "pool.mine is not stopped; stopped: nothing"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    server: EmbeddedServer,
    bus: NatsBus,
    name: str,
    request_: msgspec.Struct,
    words: str,
) -> None:
    """The refusal says what would make some, and the stop that is in force stays."""
    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(settled(bus, 3))
        await stop(bus, pool="training")
        with pytest.raises(AnswerError, match=words):
            await order(bus, name, request_)
        assert ["pool.training"] == [each.scope for each in (await stops(bus)).stops]


async def test_a_dry_run_names_the_stop(server: EmbeddedServer, bus: NatsBus, peers: Peers) -> None:
    """Operators' requests pass it, and automation does not."""
    async with Running(server.url, "pool-manager", build, settings(min_nodes=1)):
        [name] = await eventually(settled(bus, 1))
        await stop(bus)
        reply = await dry_run(bus, "replace", name)

    assert reply.accepted
    assert not peers.count("terminate")
    [gate] = [each for each in reply.gates if not each.passed]
    assert ("stop", True) == (gate.name, gate.automation_only)
    assert "fleet is stopped by ada" in gate.detail
