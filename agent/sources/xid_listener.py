"""Listens for NVML's XID events in a thread, while a driver is present.

The second XID source: where it is unavailable (old driver, missing permission, a lost GPU) the
agent continues without it. The wait is bounded, and no other task waits for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

from agent.observations import GpuInventory, XidEvent
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from agent.sources.nvml import NvmlUnavailable
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

WAIT_MS: Final = 1_000
WAITS: Final = 5
"""One after the other, while there is no event and NVML stays the same."""
WAIT_SECONDS_MAX: Final = 8.0
"""A wait that takes longer than this hangs."""
OPEN_SECONDS_MAX: Final = 10.0
START_SECONDS: Final = 0.25
"""Interval of checking whether NVML is open."""
ALONE_SECONDS_MAX: Final = 1.5
"""How long a restart of NVML waits for this listener to stop."""
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0


class EventSession(Protocol):
    """The part of `NvmlEvents` that is used here."""

    def open(self) -> int:
        """Register for events; return the number of GPUs."""

    def wait(self, timeout_ms: int) -> list[XidEvent]:
        """Wait for XIDs."""

    def close(self) -> None:
        """Stop receiving events."""


class XidListener:
    """Waits for XIDs until cancelled."""

    def __init__(
        self,
        session: EventSession,
        probe: ProbeThread,
        clock: Clock,
        *,
        inventory: Callable[[], GpuInventory | None],
        on_event: Callable[[XidEvent], None],
    ) -> None:
        """Listen in `probe`'s thread while NVML stays the one that gave `inventory`."""
        self._session = session
        self._probe = probe
        self._clock = clock
        self._inventory = inventory
        self._on_event = on_event
        self._yielding = False
        self._closed = asyncio.Event()
        self._closed.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep away from NVML, which restarts only when no session uses it."""
        self._yielding = True
        try:
            async with asyncio.timeout(ALONE_SECONDS_MAX):
                await self._closed.wait()
        except TimeoutError:
            log.warning("NVML restarts although waiting for its XIDs hangs")
        try:
            yield
        finally:
            self._yielding = False

    async def run(self) -> None:
        """Listen again whenever it ends, with a longer pause after each failure."""
        pause = RETRY_SECONDS
        while True:
            began = self._clock.monotonic()
            try:
                await self._listen()
            except NvmlUnavailable as error:
                log.info("no XIDs from NVML just now: %s", error)
            except ProbeHung as error:
                log.warning("waiting for XIDs from NVML hangs: %s", error)
            else:
                continue
            if self._clock.monotonic() - began > RETRY_SECONDS_MAX:
                pause = RETRY_SECONDS
            await self._clock.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS_MAX)

    async def _listen(self) -> None:
        """Listen until NVML is restarted by the GPU monitor or delivers no more events."""
        inventory = await self._wait_for_nvml()
        self._closed.clear()
        try:
            count = await self._probe.call(self._session.open, OPEN_SECONDS_MAX)
            log.info("NVML reports XIDs of %s GPUs", count)
            wait = partial(self._wait, inventory)
            while count and not self._yielding and self._inventory() is inventory:
                for event in await self._probe.call(wait, WAIT_SECONDS_MAX):
                    self._on_event(event)
        finally:
            if not self._probe.hung:
                await self._probe.call(self._session.close, OPEN_SECONDS_MAX)
                self._closed.set()
        while not self._yielding and self._inventory() is inventory:
            # This driver has no events; another one may.
            await self._clock.sleep(RETRY_SECONDS)

    def _wait(self, inventory: GpuInventory) -> list[XidEvent]:
        """Wait in the probe's thread, so that the agent wakes seldom while nothing happens."""
        for _ in range(WAITS):
            events = self._session.wait(WAIT_MS)
            if events or self._yielding or self._inventory() is not inventory:
                return events
        return []

    async def _wait_for_nvml(self) -> GpuInventory:
        while self._yielding or (inventory := self._inventory()) is None:
            await self._clock.sleep(START_SECONDS)
        return inventory
