"""A record that every pool needs and that cannot be read is named, with the command that helps."""

import asyncio

import msgspec
import pytest

from schemas.fleet_budget import FLEET_BUDGET_KEY
from schemas.pool_records import FLEET_KEY
from schemas.settings import FleetBudgetSpec
from schemas.topology import POOLS
from services.bus.nats.embedded_server import EmbeddedServer
from services.bus.nats.nats_bus import NatsBus
from tests.pool_manager.fleet import peers
from tests.pool_manager.test_isolation import failures, reporting, serving, two_pools
from tests.support.inprocess import Running, eventually

__all__ = ["peers"]

pytestmark = pytest.mark.usefixtures("peers")


async def test_the_failure_of_an_unreadable_fleet_budget_ends_when_the_record_is_removed(
    server: EmbeddedServer, bus: NatsBus
) -> None:
    """Both pools wait for it, and both get their nodes afterwards."""
    await bus.create(POOLS, FLEET_BUDGET_KEY, b'{"claims": {"training": 1e400}}')
    settings = msgspec.structs.replace(two_pools(), budget=FleetBudgetSpec(max_unavailable=1))
    async with Running(server.url, "pool-manager", reporting, settings):
        [found] = await eventually(lambda: failures(bus))
        assert found["about"] == "POOLS fleet-budget"
        assert "nats kv del POOLS fleet-budget" in found["remedy"]
        await bus.delete(POOLS, FLEET_BUDGET_KEY)
        await eventually(serving(bus, "other", 3))
        await eventually(serving(bus, "training", 3))

        async def over() -> bool:
            return not await failures(bus)

        await eventually(over)


async def test_an_unreadable_fleet_record_at_the_start_is_logged_with_its_remedy(
    server: EmbeddedServer, bus: NatsBus, caplog: pytest.LogCaptureFixture
) -> None:
    """The pool-manager waits for it, and begins when the record is removed."""
    await bus.create(POOLS, FLEET_KEY, b'{"id": 7}')
    running = Running(server.url, "pool-manager", reporting, two_pools())
    starting = asyncio.ensure_future(running.__aenter__())

    async def named() -> bool:
        return "nats kv del POOLS fleet`" in caplog.text

    await eventually(named)
    assert not starting.done()
    await bus.delete(POOLS, FLEET_KEY)
    await starting
    try:
        await eventually(serving(bus, "training", 3))
        assert await failures(bus) == []
    finally:
        await running.__aexit__()
