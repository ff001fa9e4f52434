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
from typing import Final, TypeVar

from services.bus.leases import Lease
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.race import race, unless
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

    async def asking(self, call: Awaitable[T]) -> T:
        """Ask; TRANSIENT, and in doubt, where the claim was lost before there was an answer."""
        asked, _ = await unless(self._keeping, race(call, self._lease.lost()))
        if asked.cancelled():
            raise ProviderError("TRANSIENT", "the bus was out of reach while it was asked for")
        answer: T = asked.result()
        return answer


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
        async with lease.kept() as keeping:
            acquiring = race(lease.acquired(), seconds_max=max(seconds_max, 0.0))
            if (await unless(keeping, acquiring))[0].cancelled():
                raise ProviderError("TRANSIENT", "another replica asks for it just now")
            yield LaunchLease(lease, keeping)
