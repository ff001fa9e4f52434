"""The server's time, on hosts whose own clock is wrong."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest

from schemas.topology import EVERY_STREAM, LEASES
from services.bus.memory.memory_bus import MemoryBus
from services.bus.memory.memory_server import MemoryServer
from services.bus.port import Bus
from services.primitives.clock import SystemClock
from services.runtime.process_metrics import Instruments
from services.runtime.server_clock import ServerClock


class Shifted(SystemClock):
    """A host's clock that is wrong."""

    def __init__(self, seconds: float) -> None:
        self.shift = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self.shift


@pytest.mark.parametrize("seconds", [-3600.0, -60.0, 0.0, 60.0])
async def test_it_shows_the_servers_time_whatever_the_hosts_clock_says(
    any_bus: Bus, seconds: float
) -> None:
    """Never behind what the server has stamped, nor ahead by more than asking took."""
    clock = ServerClock(any_bus, Shifted(seconds), Instruments())
    began = asyncio.get_running_loop().time()
    await clock.known()
    await any_bus.put(LEASES, "stamp", b"")
    stamped = await any_bus.get(LEASES, "stamp")
    now = clock.now()
    took = timedelta(seconds=asyncio.get_running_loop().time() - began)

    assert stamped is not None
    assert stamped.time <= now <= stamped.time + took


async def test_a_step_of_the_hosts_clock_does_not_move_it(memory_bus: MemoryBus) -> None:
    """The server's time goes on by seconds that never go back."""
    host = Shifted(0.0)
    clock = ServerClock(memory_bus, host, Instruments())
    await clock.known()
    before = clock.now()
    host.shift = timedelta(days=-1)
    after = clock.now()

    assert timedelta() <= after - before < timedelta(minutes=1)


async def test_without_a_server_it_is_the_hosts_own_time(memory_bus: MemoryBus) -> None:
    """A clock that has reached no server takes nothing for known."""
    clock = ServerClock(memory_bus, SystemClock(), Instruments())
    await memory_bus.close()

    assert await clock.measure() is False
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)


async def test_it_is_known_while_the_store_takes_no_writes(
    memory_server: MemoryServer, memory_bus: MemoryBus
) -> None:
    """A service that starts on a full disk works and alerts, as far as it needs no writes."""
    memory_server.refusing = {each.name: 1 for each in EVERY_STREAM}
    clock = ServerClock(memory_bus, Shifted(3600.0), Instruments())

    assert await clock.measure() is True
    assert abs(clock.now() - memory_server.clock.now()) < timedelta(seconds=5)


async def test_a_host_whose_clock_is_wrong_is_logged_once(
    memory_bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once; a metric shows it for as long as the clock is wrong."""
    instruments = Instruments()
    clock = ServerClock(memory_bus, Shifted(-60.0), instruments)
    with caplog.at_level(logging.WARNING):
        await clock.known()
        await clock.known()

    (message,) = caplog.messages
    assert (
        "this host's clock is 60.0 s behind the server's; Navarch goes by the server's" == message
    )
    ahead = instruments.registry.get_sample_value("navarch_clock_ahead_seconds")
    assert ahead == pytest.approx(-60.0, abs=1.0)
