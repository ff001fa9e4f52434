"""NATS outage: no node beats after it, and none is replaced because of that."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.duration import Duration
from schemas.fleet_queries import Page
from schemas.instance_records import InstanceRecord
from schemas.messages import decoder, encode
from schemas.node_events import FACTS, Lost, Registered, Returned
from schemas.node_records import HeartbeatRecord, NodeRecord, node_key
from schemas.pool_records import PoolRecord, pool_key
from schemas.saga_params import LaunchSpec
from schemas.settings import (
    AgentSettings,
    BudgetSpec,
    HealthSpec,
    PluginSettings,
    PoolSpec,
    Settings,
)
from schemas.topology import EVENTS, HEALTH, HEARTBEATS, NODES, POOLS, SAGAS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.health_monitor.service import build as health_monitor
from services.pool_manager.service import build as pool_manager
from tests.support.inprocess import Running, eventually

NOW = datetime(2026, 11, 21, 1, 30, tzinfo=UTC)
NODES_COUNT = 500
TTL_SECONDS = 4
"""Enough for all heartbeats and the server's stop before the first heartbeat expires."""
LONG_SECONDS = 600
NAMES = [f"training-{number}" for number in range(NODES_COUNT)]
SETTINGS = Settings(
    agent=AgentSettings(heartbeat_interval=Duration(1), heartbeat_ttl=Duration(TTL_SECONDS)),
    providers={"test": PluginSettings(type="fake")},
    pools={
        "training": PoolSpec(
            provider="test",
            instance_type="t",
            min_nodes=NODES_COUNT,
            max_nodes=NODES_COUNT,
            budget=BudgetSpec(max_unavailable="100%", max_replacements="unlimited"),
            health=HealthSpec(lost_after=Duration(0.5)),
        )
    },
)

nodes = decoder(NodeRecord)


async def fleet(bus: NatsBus) -> None:
    """Record 500 nodes in service, whose agents have registered."""
    record = PoolRecord(name="training", spec=SETTINGS.pools["training"], desired=NODES_COUNT)
    await bus.create(POOLS, pool_key("training"), encode(record))

    async def one(name: str) -> None:
        node = NodeRecord(pool="training", node=name, state="active", admitted_at=NOW)
        await bus.create(NODES, node_key("training", name), encode(node))
        first = Registered(
            id=f"registered-{name}", time=NOW, pool="training", node=name, instance=name
        )
        await bus.publish(
            subjects.node_event("training", name, FACTS[Registered]), encode(first), msg_id=first.id
        )

    await asyncio.gather(*map(one, NAMES))


async def beat(bus: NatsBus, names: list[str], ttl_seconds: int) -> None:
    """Write one heartbeat of each node."""

    async def one(name: str) -> None:
        record = HeartbeatRecord(pool="training", node=name, time=NOW)
        key = node_key("training", name)
        await bus.put(HEARTBEATS, key, encode(record), ttl_seconds=ttl_seconds)

    await asyncio.gather(*map(one, names))


async def provisioner(bus: NatsBus) -> None:
    """Answer with every instance as the provisioner would."""
    launch = LaunchSpec(fleet="default", provider="test", instance_type="t")
    items = tuple(
        msgspec.Raw(
            encode(
                InstanceRecord(
                    pool="training",
                    instance=name,
                    state="running",
                    provider="test",
                    token=name,
                    launch=launch,
                    intended_at=NOW,
                )
            )
        )
        for name in NAMES
    )

    async def answer(_: bytes, __: Any) -> bytes:
        return encode(Page(items=items))

    await bus.serve("provisioner", "provisioner-1", {subjects.query("instances"): answer})


async def count(bus: NatsBus, kind: type[Any]) -> int:
    """Return how many events of a type are stored."""
    return len(await bus.read(EVENTS.name, subjects.node_event_wildcard(FACTS[kind])))


async def lost(bus: NatsBus) -> int:
    """Return how many nodes are recorded as lost while their instance is present."""
    records: list[NodeRecord] = [
        nodes.decode(each.value) for each in await bus.entries(NODES, "training.>")
    ]
    return sum(each.lost and each.provider_state == "present" for each in records)


async def incidents(bus: NatsBus) -> list[tuple[str, str]]:
    """Return fault kind and status of every stored incident event."""
    stored = await bus.read(EVENTS.name, subjects.pool_event_wildcard("incident"))
    found = [msgspec.json.decode(each.data) for each in stored]
    return [(each["kind"], each["status"]) for each in found]


@pytest.mark.slow
async def test_outage_of_the_server_replaces_no_node(server: EmbeddedServer, bus: NatsBus) -> None:
    """The server forgets all heartbeats; every node is lost, since none beats in time, and returns.

    The silence lasts ten times `lost_after`, with a budget for all nodes and verification.
    """
    await fleet(bus)
    await provisioner(bus)
    async with (
        Running(server.url, "health-monitor", health_monitor, SETTINGS),
        Running(server.url, "pool-manager", pool_manager, SETTINGS),
    ):

        async def registered() -> bool:
            return len(await bus.entries(HEALTH, "training.>")) == NODES_COUNT

        await eventually(registered)
        await beat(bus, NAMES, TTL_SECONDS)
        await server.stop()
        await asyncio.sleep(TTL_SECONDS + 0.5)  # the outage itself
        await server.start()

        async def all_lost() -> bool:
            return bus.connected and await lost(bus) == NODES_COUNT

        await eventually(all_lost)

        async def opened() -> bool:
            return ("silence", "opened") in await incidents(bus)

        await eventually(opened)
        await asyncio.sleep(1)  # twice `lost_after`: any wrong replacement would start by now
        await beat(bus, NAMES, LONG_SECONDS)

        async def all_back() -> bool:
            return await count(bus, Returned) == NODES_COUNT and not await lost(bus)

        await eventually(all_back)

        async def closed() -> bool:
            return ("silence", "closed") in await incidents(bus)

        await eventually(closed)

    assert NODES_COUNT == await count(bus, Lost)
    assert [("silence", "opened"), ("silence", "closed")] == await incidents(bus)
    assert 0 == await bus.last_sequence(SAGAS.name)


@pytest.mark.slow
async def test_single_silent_node_is_verified_and_replaced(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """One of 500: verified, present, silent too long: one saga, with the reason."""
    await fleet(bus)
    await provisioner(bus)
    async with (
        Running(server.url, "health-monitor", health_monitor, SETTINGS),
        Running(server.url, "pool-manager", pool_manager, SETTINGS),
    ):

        async def registered() -> bool:
            return len(await bus.entries(HEALTH, "training.>")) == NODES_COUNT

        await eventually(registered)
        await beat(bus, NAMES, LONG_SECONDS)
        await beat(bus, NAMES[:1], 1)

        async def begun() -> list[Any]:
            return await bus.read(SAGAS.name, subjects.saga_step_wildcard("saga", "started"))

        [stored] = await eventually(begun)
    started = msgspec.json.decode(stored.data)
    assert ("replace", NAMES[0]) == (started["kind"], started["params"]["node"])
    assert started["params"]["reason"].endswith("its instance exists")
    assert [] == await incidents(bus)
