"""One pool, node or record that cannot be processed stops nothing else."""

from typing import Any

import msgspec
import pytest

from schemas import subjects
from schemas.fleet_events import ServiceFailure, fleet_codec
from schemas.pool_records import pool_key
from schemas.settings import Settings
from schemas.topology import EVENTS, POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from services.pool_manager import reconciler
from services.pool_manager.planner.pool_snapshot import PoolPlan, PoolSnapshot
from services.pool_manager.service import build
from services.runtime.process import Context, Service, built, with_failures
from tests.pool_manager.fleet import nodes, peers, settings
from tests.support.inprocess import Running, eventually

__all__ = ["peers"]

pytestmark = pytest.mark.usefixtures("peers")


async def reporting(context: Context) -> Service:
    """The pool-manager as its process runs it."""
    return with_failures(context, await built(build, context))


def two_pools() -> Settings:
    """Return settings of the pool `training` of three, and of `other`, the same."""
    spec = settings().pools["training"]
    return msgspec.structs.replace(settings(), pools={"training": spec, "other": spec})


def serving(bus: NatsBus, pool: str, count: int) -> Any:
    """Return a check whether a pool has so many nodes in service."""

    async def look() -> bool:
        found = [each for each in await nodes(bus) if each.pool == pool]
        return sum(each.status == "active" for each in found) == count

    return look


async def failures(bus: NatsBus) -> list[dict[str, Any]]:
    """Return what fails now, as `status` asks."""
    reply = await bus.request(subjects.query("failures-pool-manager"), b"", timeout_seconds=30)
    found: list[dict[str, Any]] = msgspec.json.decode(reply.data)
    return found


async def published_failures(bus: NatsBus) -> list[tuple[str, str]]:
    """Return the published service failures."""
    stored = await bus.read(EVENTS.name, subjects.fleet_event("service-failure"))
    found = [fleet_codec.decode(each.data) for each in stored]
    return [(each.about, each.status) for each in found if isinstance(each, ServiceFailure)]


async def test_a_pool_record_that_cannot_be_read_stops_no_other_pool(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """A broken record stops no other pool, at start or later; its repair ends the report."""
    await bus.create(POOLS, pool_key("training"), b'{"desired": "many"}')
    async with Running(server.url, "pool-manager", reporting, two_pools()):
        await eventually(serving(bus, "other", 3))
        [found] = await eventually(lambda: failures(bus))
        assert found["about"] == "POOLS pool.training"
        assert "nats kv get POOLS pool.training" in found["remedy"]
        await bus.delete(POOLS, pool_key("training"))

        async def over() -> bool:
            return not await failures(bus)

        await eventually(over)
        await eventually(lambda: ended(bus, "POOLS pool.training"))
    assert await published_failures(bus) == [
        ("POOLS pool.training", "failing"),
        ("POOLS pool.training", "recovered"),
    ]


async def ended(bus: NatsBus, about: str) -> bool:
    """Return whether a failure's end was published."""
    return (about, "recovered") in await published_failures(bus)


async def test_a_decision_that_raises_stops_no_other_pool(
    server: EmbeddedServer, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process goes on, and the pool's failure is reported."""
    plan = reconciler.plan

    def broken(snapshot: PoolSnapshot, *rest: Any) -> PoolPlan:
        if snapshot.record.name == "training":
            raise OverflowError("date value out of range")
        return plan(snapshot, *rest)

    monkeypatch.setattr(reconciler, "plan", broken)
    async with Running(server.url, "pool-manager", reporting, two_pools()):
        await eventually(serving(bus, "other", 3))
        [found] = await failures(bus)
    assert (found["failure"], found["about"]) == ("decision-failed", "pool training")
    assert "OverflowError: date value out of range" in found["reason"]
