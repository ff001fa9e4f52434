"""Publishes events in order and idempotently, across broker outages and agent restarts.

Where the server takes no more of this node for a moment, repeats of faults wait behind all others.

An event is sent as soon as it is put here. If that fails it is written to the spool, and later
events wait behind it until the bus is back. Message IDs make repeats harmless.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from agent.delivery.spool import OutgoingEvent, Spool
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from schemas.headers import TRACEPARENT
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Refused, TooMany
from services.primitives.race import race

log = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
BATCH_MAX: Final = 64
"""Messages in flight at once, so that a burst does not pay a round trip for each."""
RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 1.0
REFUSALS_MAX: Final = 60
"""After so many refusals by the server a message is dropped, so that later ones can pass."""
SPOOL_SECONDS_MAX: Final = 2.0


class AgentOutbox:
    """Queues messages for one sender."""

    def __init__(self, spool: Spool, clock: Clock) -> None:
        """Use `spool` as fallback; sending needs `bus` to be set and `run` to run."""
        self._bus: Bus | None = None
        self._found = asyncio.Event()
        self.dropped = 0
        """Messages dropped because the queue was full."""
        self._spool = spool
        self._thread = ProbeThread("spool")
        self._clock = clock
        self._waiting: deque[OutgoingEvent] = deque()
        self._spooled: set[str] = set()
        self._refusals = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._spool_broken = False

    @property
    def bus(self) -> Bus | None:
        """The bus; None: not connected yet."""
        return self._bus

    @bus.setter
    def bus(self, bus: Bus) -> None:
        """Set the bus and send waiting messages at once."""
        self._bus = bus
        self._found.set()

    def put(self, message: OutgoingEvent) -> None:
        """Queue `message` behind earlier ones, unless it is in the spool already."""
        if message.msg_id in self._spooled:
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self.dropped:
                log.error("%s messages wait to be sent; new ones are dropped", WAITING_MAX)
            self.dropped += 1
            return
        self._waiting.append(message)
        self._idle.clear()
        self._wake.set()

    def take_dropped(self) -> int:
        """Return and reset the number of dropped messages, once the queue has room again."""
        if len(self._waiting) >= WAITING_MAX:
            return 0
        dropped, self.dropped = self.dropped, 0
        return dropped

    @property
    def safe(self) -> bool:
        """Return whether every message is sent or on disk."""
        return all(each.msg_id in self._spooled for each in self._waiting)

    def sent_up_to(self, sequence: int) -> int:
        """Last kernel log sequence whose faults the bus has stored; `sequence` was read last.

        The spool does not count: if it is lost, the kernel log is read again from here.
        """
        unsent = (each.sequence for each in self._waiting if each.sequence >= 0)
        return min(sequence, min(unsent, default=sequence + 1) - 1)

    async def run(self) -> None:
        """Send messages until cancelled."""
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
        """Wait before the next attempt; with `found`, only until a bus is set."""
        await race(self._clock.sleep(seconds), *([self._found.wait()] if found else []))

    async def flush(self, seconds: float) -> None:
        """Wait at most `seconds` until everything is sent; then spool the rest."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            await self._keep()

    async def _send(self) -> bool:
        """Send the first messages; False: some failed."""
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
        if any(isinstance(each, TooMany) for each in results):
            self._waiting = deque(sorted(self._waiting, key=lambda each: each.is_repeat))
        return problem is None

    def _given_up(self, message: OutgoingEvent, error: BaseException | None) -> list[OutgoingEvent]:
        if not isinstance(error, Refused):
            return []
        self._refusals += 1
        if self._refusals < REFUSALS_MAX:
            return []
        self._refusals = 0
        log.error("given up, refused %s times: %s: %s", REFUSALS_MAX, message.msg_id, error)
        return [message]

    async def _forget(self, sent: list[OutgoingEvent]) -> None:
        gone = {each.msg_id for each in sent}
        # Sent messages are nearly always all at the front.
        while self._waiting and self._waiting[0].msg_id in gone:
            gone.discard(self._waiting.popleft().msg_id)
        if gone:
            self._waiting = deque(each for each in self._waiting if each.msg_id not in gone)
        spooled = [each.msg_id for each in sent if each.msg_id in self._spooled]
        if spooled:
            await self._on_disk(lambda: self._spool.remove(spooled))
            self._spooled.difference_update(spooled)

    async def _keep(self) -> None:
        """Spool messages that are only in memory."""
        new = [each for each in self._waiting if each.msg_id not in self._spooled]
        if new and await self._on_disk(lambda: self._spool.add(new)):
            self._spooled.update(each.msg_id for each in new)

    async def _restore(self) -> None:
        found: list[OutgoingEvent] = []
        if not await self._on_disk(lambda: found.extend(self._spool.restore())):
            return
        if found:
            log.info("%s messages of an earlier run wait to be sent", len(found))
        self._spooled.update(each.msg_id for each in found)
        # A fault read again from the kernel log may be here twice; it keeps its first position.
        new = [each for each in self._waiting if each.msg_id not in self._spooled]
        self._waiting = deque([*found, *new])
        self._wake.set()

    async def _on_disk(self, call: Callable[[], Any]) -> bool:
        """Run a call of the spool; False: the disk failed, and messages stay in memory."""
        try:
            await self._thread.call(call, SPOOL_SECONDS_MAX)
        except (OSError, sqlite3.Error, ProbeHung) as error:
            if not self._spool_broken:
                log.error("the spool does not work, faults wait in memory: %s", error)  # noqa: TRY400
            self._spool_broken = True
            return False
        self._spool_broken = False
        return True


async def _publish(bus: Bus, message: OutgoingEvent) -> BusError | None:
    headers = {TRACEPARENT: message.trace} if message.trace else None
    try:
        await bus.publish(message.subject, message.data, msg_id=message.msg_id, headers=headers)
    except BusError as error:
        return error
    return None
