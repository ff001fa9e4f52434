"""Who alone may ask for a launch, where its provider knows no idempotency tokens.

Such a provider makes a second instance for whoever asks a second time. Commands are kept from
other replicas by signs of progress. Of one that is cut off from the bus no signs come: its command
is given to another while it may still be asking. So whoever asks holds a lease on the launch, and
stops asking, by its own clock, before the lease can be anybody else's.

What this cannot stop is a request that has left: a provider that acts on it later than `list_lag`
after its sender was cut off, or killed, may make an instance beside another's. That one goes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from services.bus.leases import Lease
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.provider_client.provider_errors import ProviderError

PREFIX: Final = "launch-"
"""Of the keys in LEASES."""

T = TypeVar("T")


class LaunchLease:
    """A launch that nobody else asks for meanwhile."""

    def __init__(self, lease: Lease, keeping: "asyncio.Task[None]") -> None:
        """Go by this lease, which `keeping` renews."""
        self._lease = lease
        self._keeping = keeping

    async def gained(self, seconds_max: float) -> None:
        """Wait until it is ours; TRANSIENT where it is another's for so long."""
        if not await self._while(self._lease.acquired(), seconds_max):
            raise ProviderError("TRANSIENT", "another replica asks for it just now")

    async def asking(self, call: Awaitable[T]) -> T:
        """Ask; TRANSIENT, and in doubt, where the claim was lost before there was an answer."""
        asked = asyncio.ensure_future(call)
        lost = asyncio.ensure_future(self._lease.lost())
        try:
            await self._first(asked, lost)
        finally:
            await _end(asked, lost)
        if asked.cancelled():
            raise ProviderError("TRANSIENT", "the bus was out of reach while it was asked for")
        return asked.result()

    async def _while(self, waited: Awaitable[None], seconds_max: float) -> bool:
        waiting = asyncio.ensure_future(waited)
        try:
            await self._first(waiting, seconds_max=max(seconds_max, 0.0))
        finally:
            await _end(waiting)
        return not waiting.cancelled()

    async def _first(
        self, *awaited: "asyncio.Future[Any]", seconds_max: float | None = None
    ) -> None:
        """Wait for one of them; raise what keeps the lease from being kept."""
        await asyncio.wait(
            {*awaited, self._keeping}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED
        )
        if self._keeping.done():
            self._keeping.result()


class LaunchLeases:
    """Claims of one replica."""

    def __init__(self, bus: Bus, clock: Clock, replica: str) -> None:
        """Contend for them as `replica`."""
        self._bus = bus
        self._clock = clock
        self._replica = replica

    @asynccontextmanager
    async def alone(self, launch: str, seconds_max: float) -> AsyncIterator[LaunchLease]:
        """Be the only one who may ask for a launch; TRANSIENT where another is for so long."""
        lease = Lease(self._bus, self._clock, f"{PREFIX}{launch}", self._replica)
        keeping = asyncio.create_task(lease.keep())
        claim = LaunchLease(lease, keeping)
        try:
            await claim.gained(seconds_max)
            yield claim
        finally:
            await _end(keeping)
            await lease.release()


async def _end(*tasks: "asyncio.Future[Any]") -> None:
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
