"""Cloud notices on a real server, with scripted peers."""

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.fleet_queries import NodeView, Page, Query
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_events import Lost, ProviderNotice, Terminated
from schemas.node_records import DRAINED_BEFORE_SECONDS, NodeRecord
from schemas.saga_log_entries import StepStarted
from schemas.saga_params import LaunchSpec
from schemas.settings import BudgetSpec
from schemas.topology import POOL_NODE_EVENTS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.bus.protocol.endpoint_replies import reply_data
from services.pool_manager import service
from services.pool_manager.service import build
from tests.pool_manager.fleet import (
    ask,
    events,
    nodes,
    peers,
    settings,
    settled,
    spot,
    under_way,
)
from tests.support.inprocess import Running, eventually
from tests.support.peers import Peers
from tests.support.settling import arriving, is_settled

__all__ = ["peers"]


async def two(found: Awaitable[list[Any]]) -> bool:
    """Return whether the pool has two nodes."""
    return len(await found) == 2


async def test_notice_starts_a_replacement_while_the_node_drains(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The new node launches while the old one drains, whatever the pool's order."""
    peers.hold["drain"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        peers.calls.clear()
        await peers.publish(spot(before[0], 120))

        async def four() -> bool:
            return 4 == len(await bus.read("EVENTS", subjects.node_event_wildcard("admitted")))

        await eventually(four)
        assert not peers.count("terminate")
        peers.hold["drain"].set()
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))
        after_ = await eventually(settled(bus, 3))

    steps = [step for step, _ in peers.calls]
    assert ["cordon", "vacate", "provision", "bootstrap", "drain", "terminate"] == steps
    assert before[0] == replaced["old_node"]
    assert before[0] not in after_
    assert "AWS takes the spot instance back" == replaced["reason"]


async def test_withdrawn_notice_uncordons_the_node(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The launch under way is undone, the node uncordoned; no launch counts as failed."""
    peers.hold["provision"] = asyncio.Event()
    peers.hold["provision"].set()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        peers.hold["provision"].clear()
        peers.calls.clear()
        await peers.publish(spot(before[0], 120))

        async def launching() -> bool:
            return bool(peers.count("provision"))

        await eventually(launching)
        await peers.publish(spot(before[0], 0, withdrawn=True))
        [cancelled] = await eventually(lambda: events(bus, "saga-cancelled"))
        await eventually(lambda: bus.read("EVENTS", subjects.node_event_wildcard("uncordoned")))
        after_ = await eventually(settled(bus, 3))
        views = {each.id: each for each in await nodes(bus)}

    assert sorted(before) == sorted(after_)
    assert "the cloud has withdrawn its notice" == cancelled["reason"]
    assert not views[before[0]].cordoned
    assert [] == await events(bus, "saga-failed")


async def test_a_node_that_the_cloud_restarts_is_drained_kept_and_given_back(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The node is not replaced: it returns with another boot, whose checks pass."""
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        node = before[0]
        peers.calls.clear()
        reboot = msgspec.structs.replace(spot(node, 60), effect="reboot", boot_id="b1")
        await peers.publish(reboot)
        await eventually(lambda: bus.read("EVENTS", subjects.node_event_wildcard("drained")))

        async def view() -> NodeView:
            return next(each for each in await nodes(bus) if each.id == node)

        async def is_drained() -> bool:
            return not (await view()).saga

        await eventually(is_drained)
        assert (await view()).cordoned
        await peers.register("training", node, boot="b2")
        await eventually(lambda: bus.read("EVENTS", subjects.node_event_wildcard("uncordoned")))
        after_ = await eventually(settled(bus, 3))
        assert not (await view()).cordoned

    assert [step for step, _ in peers.calls] == ["cordon", "drain", "uncordon"]
    assert sorted(before) == sorted(after_)


async def test_notice_shortens_a_drain_under_way(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """An operator's replacement waits for an hour's drain when a notice of seconds arrives."""
    peers.hold["drain"] = asyncio.Event()
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await ask(bus, "replace", node=before[0])

        await eventually(under_way(peers, "drain"))
        await peers.publish(spot(before[0], DRAINED_BEFORE_SECONDS + 0.5))
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))
        drained = await bus.read("EVENTS", subjects.node_event_wildcard("drained"))

    assert before[0] == replaced["old_node"]
    assert msgspec.json.decode(drained[0].data)["expired"]


async def test_notice_shortens_an_unhealthy_nodes_drain_only_when_due(
    server: EmbeddedServer, bus: NatsBus, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain keeps its full time until a notice is due, so a withdrawal changes nothing.

    A drain that starts after the notice's time ends at once, without waiting for a periodic plan.
    """
    monkeypatch.setattr(service, "RESYNC_SECONDS", 3600.0)
    drains: list[StepStarted] = []

    async def draining(count: int) -> bool:
        found = await bus.read("SAGAS", subjects.saga_step_wildcard("drain", "started"))
        drains[:] = [msgspec.json.decode(each.data, type=StepStarted) for each in found]
        return len(drains) == count

    peers.hold["drain"] = asyncio.Event()
    wide = settings(budget=BudgetSpec(max_unavailable=3), replace_order="terminate_first")
    async with Running(server.url, "pool-manager", build, wide):
        before = await eventually(settled(bus, 3))
        await peers.publish(spot(before[0], 86_400))
        await peers.make_unhealthy("training", before[0])
        await eventually(lambda: draining(1))
        [first] = drains
        assert first.deadline is not None
        assert wide.pools["training"].drain_timeout == (first.deadline - first.time).total_seconds()
        peers.hold["cordon"] = asyncio.Event()
        await peers.make_unhealthy("training", before[1])

        async def cordoning() -> bool:
            return peers.count("cordon")[before[1]] == 1

        await eventually(cordoning)
        await peers.publish(spot(before[1], DRAINED_BEFORE_SECONDS))
        await eventually(lambda: is_settled(bus, "EVENTS", POOL_NODE_EVENTS.name))
        peers.hold["cordon"].set()
        await eventually(lambda: draining(2))
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))
        peers.hold["drain"].set()

    assert before[1] == replaced["old_node"]


async def test_unhealthy_node_regains_its_drain_time_when_a_notice_is_withdrawn(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """The replacement goes on because of the fault, and the drain keeps its full time.

    The other node's notice remains: its drain ends at the time that both notices had.
    """
    peers.hold["drain"] = asyncio.Event()
    wide = settings(budget=BudgetSpec(max_unavailable=3))
    async with Running(server.url, "pool-manager", build, wide):
        before = await eventually(settled(bus, 3))
        for name in before[:2]:
            await peers.publish(spot(name, DRAINED_BEFORE_SECONDS + 1.5))

        async def draining() -> bool:
            return {each for step, each in peers.calls if step == "drain"} == set(before[:2])

        await eventually(draining)
        await peers.make_unhealthy("training", before[0])
        await peers.publish(spot(before[0], 0, withdrawn=True))
        await eventually(lambda: events(bus, "node-replaced"))
        ended = await bus.read("SAGAS", subjects.saga_step_wildcard("drain", "expired"))
        peers.hold["drain"].set()
        await eventually(lambda: two(events(bus, "node-replaced")))

    [cut] = [msgspec.json.decode(each.data) for each in ended]
    assert cut["saga"].startswith(f"replace-{before[1]}")
    assert [] == await events(bus, "saga-cancelled")


async def test_drain_ends_when_the_instance_is_gone(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """A node that falls silent while draining is verified with the provider, and not waited for."""
    peers.hold["drain"] = asyncio.Event()
    launch = LaunchSpec(fleet="f", provider="test", instance_type="t")

    async def answer(data: bytes, _: Any) -> bytes:
        [name] = msgspec.json.decode(data, type=Query).names
        record = InstanceRecord(
            pool="training",
            instance=name,
            state="terminated",
            provider="test",
            token="t",
            launch=launch,
            intended_at=datetime.now(UTC),
        )
        return encode(Page(items=(msgspec.Raw(encode(record)),)))

    await bus.serve("provisioner", "one that answers", {subjects.query("instances"): answer})
    async with Running(server.url, "pool-manager", build, settings()):
        before = await eventually(settled(bus, 3))
        await ask(bus, "replace", node=before[0], mode="wait")

        await eventually(under_way(peers, "drain"))
        about = {"time": datetime.now(UTC), "pool": "training", "node": before[0]}
        await peers.publish(Lost(id=f"lost-{before[0]}", **about))
        [replaced] = await eventually(lambda: events(bus, "node-replaced"))
        log = await bus.read("SAGAS", subjects.saga_entry(replaced["saga"], "drain", "expired"))

    assert before[0] == replaced["old_node"]
    assert "its instance is gone" == msgspec.json.decode(log[0].data)["reason"]


async def test_an_adopted_node_has_every_notice_that_came_before(
    server: EmbeddedServer, bus: NatsBus, peers: Peers
) -> None:
    """An agent published each notice once; those of an earlier node of its name are not its own."""
    about = {"time": datetime.now(UTC), "pool": "training", "node": "joins"}

    def notice(name: str, *, withdrawn: bool = False) -> ProviderNotice:
        ident = f"{name}-{withdrawn}"
        return msgspec.structs.replace(
            spot("joins", 3_600, withdrawn=withdrawn), id=ident, notice=name
        )

    async with Running(server.url, "pool-manager", build, settings()):
        await eventually(settled(bus, 3))
        await peers.publish(notice("old"))
        await arriving(bus)
        await peers.publish(Terminated(id="ended", **about))
        for each in (notice("a"), notice("b"), notice("b", withdrawn=True)):
            await peers.publish(each)
        instance = InstanceRecord(
            pool="training",
            instance="joins",
            state="running",
            provider="test",
            token="t",
            launch=LaunchSpec(fleet="", provider="test", instance_type="t"),
            intended_at=datetime.now(UTC),
            running_at=datetime.now(UTC),
        )
        answer = await bus.request(
            subjects.query("adopt-node"), encode(instance), timeout_seconds=10
        )

    adopted = decoder(NodeRecord).decode(reply_data(answer))
    assert {"a": False, "b": True} == {
        name: each.withdrawn for name, each in adopted.notices.items()
    }
