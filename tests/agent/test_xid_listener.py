"""Listening to NVML's events: it gives way, begins again, and holds nothing up."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from agent.observations import GpuInventory, XidEvent
from agent.sources.blocking_calls import ProbeThread
from agent.sources.nvml import NvmlUnavailable
from agent.sources.xid_listener import XidListener
from services.primitives.clock import SystemClock

EVENT = XidEvent(index=0, pci="0000:1b:00", code=79)


class Session:
    """An event set that does what the test says, and notes what it was asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.count = 1
        self.failures = 0
        self.events: list[XidEvent] = []
        self.hangs = threading.Event()
        self.hangs.set()
        self.waiting = threading.Event()

    def open(self) -> int:
        self.calls.append("open")
        return self.count

    def wait(self, timeout_ms: int) -> list[XidEvent]:
        _ = timeout_ms
        if self.failures:
            self.failures -= 1
            raise NvmlUnavailable("GPU is lost")
        self.waiting.set()
        self.hangs.wait(20)
        found, self.events = self.events, []
        return found

    def close(self) -> None:
        self.calls.append("close")


class Hurried(SystemClock):
    """A clock that does not wait, and notes how long it should have."""

    def __init__(self) -> None:
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)


class Listening:
    """A watch that runs, and what it reported."""

    def __init__(self) -> None:
        self.session = Session()
        self.clock = Hurried()
        self.inventory: GpuInventory | None = GpuInventory()
        self.published: asyncio.Queue[XidEvent] = asyncio.Queue()
        self.watch = XidListener(
            self.session,
            ProbeThread("events test"),
            self.clock,
            inventory=lambda: self.inventory,
            on_event=self.published.put_nowait,
        )
        self.task = asyncio.create_task(self.watch.run())

    async def waits(self) -> None:
        """Wait until it waits for events."""
        self.session.waiting.clear()
        assert await asyncio.to_thread(self.session.waiting.wait, 10)


@pytest.fixture
async def listening() -> AsyncIterator[Listening]:
    """Yield a watch over a driver that is in order."""
    made = Listening()
    yield made
    made.session.hangs.set()
    made.task.cancel()
    await asyncio.wait({made.task})


async def test_events_are_reported_as_they_come(listening: Listening):
    """The event that the wait returns is handed on, and the wait goes on."""
    for _ in range(3):
        listening.session.events = [EVENT]
        async with asyncio.timeout(60):
            assert await listening.published.get() == EVENT
    assert listening.session.calls == ["open"]


async def test_it_gives_way_while_nvml_starts_from_the_beginning(listening: Listening):
    """A restart of NVML finds the event set closed; then it is opened on the new NVML."""
    await listening.waits()
    async with listening.watch.alone():
        assert listening.session.calls == ["open", "close"]
        listening.inventory = GpuInventory(driver_version="new")
    await listening.waits()
    assert listening.session.calls == ["open", "close", "open"]


async def test_an_nvml_that_is_replaced_is_listened_to_again(listening: Listening):
    """Another inventory is another NVML; none at all means that there is nothing to ask."""
    await listening.waits()
    listening.inventory = None
    async with asyncio.timeout(60):
        while listening.session.calls != ["open", "close"]:
            await asyncio.sleep(0)
    listening.inventory = GpuInventory()
    await listening.waits()
    assert listening.session.calls == ["open", "close", "open"]


async def test_a_hung_wait_is_not_waited_for(listening: Listening):
    """A wait that does not come back delays other tasks only briefly."""
    await listening.waits()
    listening.session.hangs.clear()
    await listening.waits()
    async with asyncio.timeout(60), listening.watch.alone():
        assert listening.session.calls == ["open"]


async def test_failures_are_tried_again_less_and_less_often(listening: Listening):
    """Each failure doubles the pause, up to a bound; the event set is closed in between."""
    listening.session.failures = 7
    async with asyncio.timeout(60):
        while listening.session.calls.count("open") < 8:
            await asyncio.sleep(0)
    pauses = [each for each in listening.clock.pauses if each >= 1]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


async def test_a_driver_without_events_is_left_alone(listening: Listening):
    """Where no GPU reports events nothing is waited for, until NVML is another."""
    await listening.waits()
    listening.session.count = 0
    listening.inventory = GpuInventory(driver_version="old")
    async with asyncio.timeout(60):
        while listening.session.calls.count("close") < 2:
            await asyncio.sleep(0)
    listening.session.count = 1
    listening.inventory = GpuInventory(driver_version="new")
    await listening.waits()
    assert listening.session.calls == ["open", "close"] * 2 + ["open"]
