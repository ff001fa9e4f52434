"""Gives one replica an exclusive right: a key with a TTL, created exclusively and renewed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from schemas.lease_records import LeaseRecord
from schemas.topology import LEASES
from services.bus.port import Bus
from services.bus.record_bucket import RecordBucket
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict, NavarchError
from services.primitives.race import race, unless

log = logging.getLogger(__name__)

LEASE_TTL_SECONDS: Final = 3
RENEW_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 0.2
"""Before work that ended by itself is started again."""

Work = Callable[[], Awaitable[object]]


class Lease:
    """A name that one holder has; lost at the latest `LEASE_TTL_SECONDS` after its holder died."""

    def __init__(self, bus: Bus, clock: Clock, name: str, holder: str) -> None:
        """Contend for `name` as `holder`."""
        self._bus = bus
        self._records = RecordBucket(bus, LEASES, LeaseRecord, lambda _: LEASE_TTL_SECONDS)
        self._clock = clock
        self._name = name
        self._holder = holder
        self._revision = 0
        self._until = 0.0
        self._keeping: asyncio.Task[None] | None = None
        self._users = 0
        self._turned = asyncio.Event()
        """Set after each renewal, and when it is given back: waiting tasks look again."""

    @property
    def held(self) -> bool:
        """Return whether the lease is ours, by our own clock, with the TTL not yet over."""
        return self._revision > 0 and self._clock.monotonic() < self._until

    async def acquired(self) -> None:
        """Wait until it is held."""
        while not self.held:
            self._turned.clear()
            await self._turned.wait()

    async def lost(self) -> None:
        """Wait until it is not held: another has it, or its time is over without renewal."""
        while self.held:
            self._turned.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until - self._clock.monotonic()):
                    await self._turned.wait()

    async def keep(self) -> None:
        """Acquire and renew for ever."""
        while True:
            await self._step()
            # Always: the lease may have expired and been acquired again within one step.
            self._turned.set()
            await self._clock.sleep(RENEW_SECONDS)

    async def _step(self) -> None:
        had = self._revision > 0
        try:
            # A read while another holds it: a refused write would cost a request to the leader.
            if not had and await self._bus.get(LEASES, self._name) is not None:
                return
            asked = self._clock.monotonic()
            record = LeaseRecord(holder=self._holder, since=self._clock.now())
            self._revision = await self._records.write(self._name, record, self._revision)
        except Conflict:
            self._revision = 0
        except BusError:
            return
        else:
            # Counted from before the request: never longer than the server counts.
            self._until = asked + LEASE_TTL_SECONDS
        if had != (self._revision > 0):
            log.info("lease %s", "lost" if had else "acquired", extra={"lease": self._name})

    async def release(self) -> None:
        """Give it back, so that the next holder need not wait for the TTL."""
        if self._revision:
            with suppress(BusError):
                await self._bus.delete(LEASES, self._name, revision=self._revision)
            self._revision = 0
            self._turned.set()

    @asynccontextmanager
    async def kept(self) -> "AsyncIterator[asyncio.Task[None]]":
        """Contend for it in a task, which is yielded; the last of several users gives it back."""
        if self._keeping is None:
            self._keeping = asyncio.create_task(self.keep())
        keeping = self._keeping
        self._users += 1
        try:
            yield keeping
        finally:
            self._users -= 1
            if self._users == 0:
                self._keeping = None
                keeping.cancel()
                await asyncio.wait([keeping])
                await self.release()


async def while_held(lease: Lease, clock: Clock, work: Work) -> None:
    """Contend for the lease and work while it is held; work that ends is started again."""
    async with lease.kept() as keeping:
        while True:
            await unless(keeping, lease.acquired())
            working, _ = await unless(keeping, race(work(), lease.lost()))
            if not working.cancelled() and (error := working.exception()) is not None:
                log.warning("work under the lease ended", exc_info=error)
            if lease.held:
                await clock.sleep(AGAIN_SECONDS)


async def repeat_while_held(
    lease: Lease,
    clock: Clock,
    work: Work,
    *,
    every_seconds: float,
    look_seconds: float,
    on_lost: Callable[[], None] = lambda: None,
) -> None:
    """Work as soon as a lease, which another task keeps, is held, and then at an interval."""
    due = 0.0
    while True:
        if not lease.held:
            due = 0.0
            on_lost()
        elif clock.monotonic() >= due:
            due = clock.monotonic() + every_seconds
            try:
                await work()
            except NavarchError as error:
                log.warning("put off", extra={"reason": str(error)})
            except Exception:
                # Of the work alone: what else the service does must not end with it.
                log.exception("failed; tried again in %g s", every_seconds)
        await clock.sleep(look_seconds)
