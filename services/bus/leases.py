"""What only one replica may do at a time: a key with a TTL, created exclusively and renewed."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from schemas.lease_records import LeaseRecord
from schemas.messages import encode
from schemas.topology import LEASES
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.errors import BusError, Conflict

log = logging.getLogger(__name__)

LEASE_TTL_SECONDS: Final = 3
RENEW_SECONDS: Final = 1.0


class Lease:
    """A name that one holder has; lost at the latest `LEASE_TTL_SECONDS` after its holder died."""

    def __init__(self, bus: Bus, clock: Clock, name: str, holder: str) -> None:
        """Contend for `name` as `holder`."""
        self._bus = bus
        self._clock = clock
        self._name = name
        self._holder = holder
        self._revision = 0
        self._until = 0.0
        self._turned = asyncio.Event()
        """Set after each renewal, and when it is given back: whoever waits looks again."""

    @property
    def held(self) -> bool:
        """Whether the lease is ours, by our own clock, with the TTL not yet over."""
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
            # Whatever came of it: its time may have run out, and begun anew, within one step.
            self._turned.set()
            await self._clock.sleep(RENEW_SECONDS)

    async def _step(self) -> None:
        asked = self._clock.monotonic()
        value = encode(LeaseRecord(holder=self._holder, since=self._clock.now()))
        had = self._revision > 0
        try:
            if had:
                self._revision = await self._bus.update(
                    LEASES, self._name, value, self._revision, ttl_seconds=LEASE_TTL_SECONDS
                )
            else:
                self._revision = await self._bus.create(
                    LEASES, self._name, value, ttl_seconds=LEASE_TTL_SECONDS
                )
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
