"""Listens to NVML's own XID events, off the loop, as long as there is a driver to listen to.

The second witness: where it cannot be had (old driver, no right, a GPU that is lost) the agent goes
on without it, quietly. The wait is bounded and in a thread of its own, so nothing waits for it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

from agent.sources.blocking_calls import ProbeHung, ProbeThread
from agent.sources.nvml import Inventory, NvmlUnavailable, XidEvent
from services.primitives.clock import Clock

log = logging.getLogger(__name__)

WAIT_MS: Final = 500
WAIT_SECONDS_MAX: Final = 8.0
"""A wait that takes longer than this hangs."""
OPEN_SECONDS_MAX: Final = 10.0
START_SECONDS: Final = 0.25
"""How often to look whether NVML is there."""
ALONE_SECONDS_MAX: Final = 1.5
"""How long whoever starts NVML anew waits for the wait to end."""
RETRY_SECONDS: Final = 1.0
RETRY_SECONDS_MAX: Final = 30.0


class EventSession(Protocol):
    """The part of `NvmlEvents` that is used here."""

    def open(self) -> int:
        """Ask to be told; of how many GPUs."""
        ...

    def wait(self, timeout_ms: int) -> list[XidEvent]:
        """Wait for XIDs."""
        ...

    def close(self) -> None:
        """Be told no more."""
        ...


class XidWatch:
    """Waits for XIDs for ever."""

    def __init__(
        self,
        session: EventSession,
        probe: ProbeThread,
        clock: Clock,
        *,
        inventory: Callable[[], Inventory | None],
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
        """Keep away from NVML, which starts anew only when nobody holds it any more."""
        self._yielding = True
        try:
            async with asyncio.timeout(ALONE_SECONDS_MAX):
                await self._closed.wait()
        except TimeoutError:
            log.warning("NVML is started anew although waiting for its XIDs hangs")
        try:
            yield
        finally:
            self._yielding = False

    async def run(self) -> None:
        """Listen, begin again where that ends, and pause longer each time it fails."""
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
        """Listen until NVML is started anew by whoever samples, or tells no more."""
        inventory = await self._started()
        self._closed.clear()
        try:
            count = await self._probe.call(self._session.open, OPEN_SECONDS_MAX)
            log.info("NVML tells the XIDs of %s GPUs", count)
            while count and not self._yielding and self._inventory() is inventory:
                for event in await self._probe.call(self._wait, WAIT_SECONDS_MAX):
                    self._on_event(event)
        finally:
            if not self._probe.hung:
                await self._probe.call(self._session.close, OPEN_SECONDS_MAX)
                self._closed.set()
        while not self._yielding and self._inventory() is inventory:
            # This driver tells none; another one may.
            await self._clock.sleep(RETRY_SECONDS)

    def _wait(self) -> list[XidEvent]:
        return self._session.wait(WAIT_MS)

    async def _started(self) -> Inventory:
        while self._yielding or (inventory := self._inventory()) is None:
            await self._clock.sleep(START_SECONDS)
        return inventory
