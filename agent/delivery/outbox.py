"""Sends what must not be lost: in order, once in effect, over broker outages and agent restarts.

A message goes out in the same moment it is put here. Where that fails it is written to the spool,
and everything waits its turn behind it until the bus is back. Ids make a repeat harmless.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from agent.delivery.spool import Outgoing, Spool
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from schemas.headers import TRACEPARENT
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Refused
from services.primitives.race import race

log = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
BATCH_MAX: Final = 64
"""Messages on their way at once: a storm must not pay a round trip for each."""
RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 1.0
REFUSALS_MAX: Final = 60
"""A message that the server refuses this often is given up; those behind it wait no longer."""
SPOOL_SECONDS_MAX: Final = 2.0


class Outbox:
    """A queue with one sender."""

    def __init__(self, spool: Spool, clock: Clock) -> None:
        """Fall back on `spool`; nothing is sent before `bus` is set and `run` runs."""
        self._bus: Bus | None = None
        self._found = asyncio.Event()
        self.dropped = 0
        """Messages that found no room any more."""
        self._spool = spool
        self._thread = ProbeThread("spool")
        self._clock = clock
        self._waiting: deque[Outgoing] = deque()
        self._spooled: set[str] = set()
        self._refusals = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._spool_broken = False

    @property
    def bus(self) -> Bus | None:
        """What is sent over; none yet."""
        return self._bus

    @bus.setter
    def bus(self, bus: Bus) -> None:
        """Send what waits, at once."""
        self._bus = bus
        self._found.set()

    def put(self, message: Outgoing) -> None:
        """Send `message` after all that was put here before."""
        if len(self._waiting) >= WAITING_MAX:
            if not self.dropped:
                log.error("%s messages wait to be sent; new ones are dropped", WAITING_MAX)
            self.dropped += 1
            return
        self._waiting.append(message)
        self._idle.clear()
        self._wake.set()

    def take_dropped(self) -> int:
        """How many found no room, once there is room again; counts anew from then on."""
        if len(self._waiting) >= WAITING_MAX:
            return 0
        dropped, self.dropped = self.dropped, 0
        return dropped

    @property
    def safe(self) -> bool:
        """Whether everything put here is sent or on disk."""
        return all(each.msg_id in self._spooled for each in self._waiting)

    def dealt_with(self, sequence: int) -> int:
        """How far the kernel log is safe: sent or on disk, given that `sequence` was read last."""
        for each in self._waiting:
            if each.sequence >= 0 and each.msg_id not in self._spooled:
                return min(sequence, each.sequence - 1)
        return sequence

    async def run(self) -> None:
        """Send for ever."""
        await self._restore()
        pause = RETRY_SECONDS
        while True:
            if not self._waiting:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
            without_bus = self._bus is None
            if await self._send():
                pause = RETRY_SECONDS
                continue
            await self._keep()
            await self._pause(pause, found=without_bus)
            pause = min(pause * 2, RETRY_SECONDS_MAX)

    async def _pause(self, seconds: float, *, found: bool) -> None:
        """Wait before the next try; where there was no bus, only until one is `found`."""
        await race(self._clock.sleep(seconds), *([self._found.wait()] if found else []))

    async def flush(self, seconds: float) -> None:
        """Wait until everything is sent, but no longer than `seconds`; then keep the rest."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            await self._keep()

    async def _send(self) -> bool:
        """Send the first messages; False: some could not be sent now."""
        bus = self.bus
        if bus is None or not bus.connected:
            return False
        batch = [self._waiting[i] for i in range(min(BATCH_MAX, len(self._waiting)))]
        if len(batch) == 1:
            results: Sequence[BaseException | None] = [await _publish(bus, batch[0])]
        else:
            results = await asyncio.gather(*(_publish(bus, each) for each in batch))
        sent = [each for each, error in zip(batch, results, strict=True) if error is None]
        problem = next((error for error in results if error is not None), None)
        if problem is not None:
            log.warning("%s of %s messages wait: %s", len(batch) - len(sent), len(batch), problem)
            sent += self._given_up(batch[0], results[0])
        else:
            self._refusals = 0
        await self._forget(sent)
        return problem is None

    def _given_up(self, message: Outgoing, error: BaseException | None) -> list[Outgoing]:
        if not isinstance(error, Refused):
            return []
        self._refusals += 1
        if self._refusals < REFUSALS_MAX:
            return []
        self._refusals = 0
        log.error("given up, refused %s times: %s: %s", REFUSALS_MAX, message.msg_id, error)
        return [message]

    async def _forget(self, sent: list[Outgoing]) -> None:
        gone = {each.msg_id for each in sent}
        # What is sent stands at the front, nearly always all of it.
        while self._waiting and self._waiting[0].msg_id in gone:
            gone.discard(self._waiting.popleft().msg_id)
        if gone:
            self._waiting = deque(each for each in self._waiting if each.msg_id not in gone)
        spooled = [each.msg_id for each in sent if each.msg_id in self._spooled]
        if spooled:
            await self._on_disk(lambda: self._spool.remove(spooled))
            self._spooled.difference_update(spooled)

    async def _keep(self) -> None:
        """Write to disk what is in memory alone."""
        new = [each for each in self._waiting if each.msg_id not in self._spooled]
        if new and await self._on_disk(lambda: self._spool.add(new)):
            self._spooled.update(each.msg_id for each in new)

    async def _restore(self) -> None:
        found: list[Outgoing] = []
        if not await self._on_disk(lambda: found.extend(self._spool.restore())):
            return
        if found:
            log.info("%s messages of an earlier run wait to be sent", len(found))
        self._spooled.update(each.msg_id for each in found)
        # Read anew from the kernel log, a fault may be here a second time; its place is the first.
        new = [each for each in self._waiting if each.msg_id not in self._spooled]
        self._waiting = deque([*found, *new])
        self._wake.set()

    async def _on_disk(self, call: Callable[[], Any]) -> bool:
        """Run a call of the spool; False: the disk does not do it, and memory must do."""
        try:
            await self._thread.call(call, SPOOL_SECONDS_MAX)
        except (OSError, sqlite3.Error, ProbeHung) as error:
            if not self._spool_broken:
                log.error("the spool does not work, faults wait in memory: %s", error)  # noqa: TRY400
            self._spool_broken = True
            return False
        self._spool_broken = False
        return True


async def _publish(bus: Bus, message: Outgoing) -> BusError | None:
    headers = {TRACEPARENT: message.trace} if message.trace else None
    try:
        await bus.publish(message.subject, message.data, msg_id=message.msg_id, headers=headers)
    except BusError as error:
        return error
    return None
