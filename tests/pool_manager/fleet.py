"""A pool of three on a real server with scripted peers, shared by the pool-manager's tests."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.agent_settings import AgentSettings
from schemas.duration import Duration
from schemas.fleet_queries import NodeView, Page, PoolView
from schemas.node_events import ProviderNotice
from schemas.settings import BudgetSpec, HealthSpec, PluginSettings, PoolSpec, Settings
from services.bus.nats.nats_bus import NatsBus
from tests.support.peers import Peers


def settings(**changes: Any) -> Settings:
    """Return the settings of a pool of three with room for three more."""
    spec = msgspec.structs.replace(
        PoolSpec(
            provider="test",
            instance_type="h100-8x",
            min_nodes=3,
            max_nodes=6,
            gpu_count=8,
            budget=BudgetSpec(max_quarantined=0, max_unavailable=1),
            health=HealthSpec(lost_after=Duration(300)),
        ),
        **changes,
    )
    return Settings(
        providers={"test": PluginSettings(type="fake")},
        pools={"training": spec},
        # Scripted agents send no heartbeats; a pool-manager that finds nodes waits for them.
        agent=AgentSettings(heartbeat_interval=Duration(1), heartbeat_ttl=Duration(3)),
    )


@pytest.fixture
async def peers(bus: NatsBus) -> AsyncIterator[Peers]:
    """The other services, scripted."""
    async with Peers(bus) as started:
        yield started


async def nodes(bus: NatsBus) -> list[NodeView]:
    """The nodes, as the query returns them."""
    reply = await bus.request(subjects.query("nodes"), b"{}", timeout_seconds=30)
    page = msgspec.json.decode(reply.data, type=Page)
    return [msgspec.json.decode(item, type=NodeView) for item in page.items]


async def pools(bus: NatsBus) -> list[PoolView]:
    """The pools, as the query returns them."""
    reply = await bus.request(subjects.query("pools"), b"{}", timeout_seconds=30)
    page = msgspec.json.decode(reply.data, type=Page)
    return [msgspec.json.decode(item, type=PoolView) for item in page.items]


def settled(bus: NatsBus, count: int) -> Callable[[], Any]:
    """Return a check for `count` admitted nodes and no open saga, which returns their names."""

    async def look() -> list[str] | None:
        found = await pools(bus)
        names = [view.id for view in await nodes(bus) if view.status == "active"]
        done = all(not pool.open_sagas for pool in found)
        return names if found and len(names) == count and done else None

    return look


async def events(bus: NatsBus, fact: str) -> list[dict[str, Any]]:
    """Return every stored pool event of one type."""
    found = await bus.read("EVENTS", subjects.pool_event_wildcard(fact))
    return [msgspec.json.decode(each.data) for each in found]


async def ask(bus: NatsBus, verb: str, **payload: Any) -> None:
    """Publish a request to the pool, as an operator does."""
    body = msgspec.json.encode({"by": "test", **payload})
    await bus.publish(subjects.pool_request("training", verb), body)


def under_way(peers: Peers, step: str) -> Any:
    """Return a check whether a peer performs the step now."""

    async def look() -> bool:
        return bool(peers.count(step))

    return look


def spot(name: str, seconds: float, *, withdrawn: bool = False) -> ProviderNotice:
    """A spot notice as the agent publishes it."""
    now = datetime.now(UTC)
    return ProviderNotice(
        id=f"{name}-{'withdrawn' if withdrawn else 'announced'}",
        time=now,
        pool="training",
        node=name,
        notice="spot-1",
        deadline=None if withdrawn else now + timedelta(seconds=seconds),
        message="AWS takes the spot instance back",
        withdrawn=withdrawn,
    )
