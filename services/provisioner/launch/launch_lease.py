"""Lets one replica at a time request a launch from a provider without idempotency tokens.

Such a provider makes a second instance for a second request. The command of a replica that is cut
off from the bus is delivered to another replica while the first may still be calling the provider.
So each replica holds a lease while it calls, and stops by its own clock before the lease expires.
It also counts its request in the record first: the count shows whether another replica has
requested the launch since.

A request that has already left cannot be stopped. A provider that acts on it later than `list_lag`
after its sender was cut off or killed may make a second instance, which is then removed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from msgspec.structs import replace

from schemas.instance_records import InstanceRecord
from schemas.launch_offers import Offering
from services.bus.leases import Lease
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.primitives.race import race, unless
from services.provisioner.provider_client.provider_errors import ProviderError

PREFIX: Final = "provisioner.launch-"
"""Of the keys in LEASES."""

T = TypeVar("T")

# --- requests counted in the record --------------------------------------------------------------


def may_request(record: InstanceRecord, offering: Offering | None) -> bool:
    """Return whether this offering may still be requested, as the record is now."""
    return record.state == "intended" and record.offering == offering


def count_request(
    record: InstanceRecord, offering: Offering | None, before: int
) -> InstanceRecord | None:
    """Return the record with one more request; None if it is counted, or must not be made.

    `before`: the count at this replica's last request; 0: it has made none.
    """
    if not may_request(record, offering) or before == record.launch_calls > 0:
        return None
    return replace(record, launch_calls=record.launch_calls + 1)


def is_only_requester(count: int, before: int) -> bool:
    """Return whether no other replica has requested it, by the count with this request in it."""
    return count == (before or 1)


# --- the lease -----------------------------------------------------------------------------------


class LaunchLease:
    """Holds the lease on one launch, and keeps it renewed."""

    def __init__(self, lease: Lease, renewal: "asyncio.Task[None]") -> None:
        """`renewal` keeps the lease."""
        self._lease = lease
        self._renewal = renewal

    def confirm(self) -> None:
        """TRANSIENT, and in doubt, where it is lost by now: this process may have been stopped."""
        if not self._lease.held:
            raise ProviderError("TRANSIENT", "the launch lease was lost before the request")

    async def run(self, call: Awaitable[T]) -> T:
        """Run a call; TRANSIENT, and in doubt, where the lease was lost before it returned."""
        running, _ = await unless(self._renewal, race(call, self._lease.lost()))
        if running.cancelled():
            raise ProviderError("TRANSIENT", "the bus was out of reach during the launch request")
        result: T = running.result()
        return result


class LaunchLeases:
    """Takes the launch leases of one replica."""

    def __init__(self, bus: Bus, clock: Clock, replica: str) -> None:
        self._bus = bus
        self._clock = clock
        self._replica = replica

    @asynccontextmanager
    async def acquired(self, launch: str, seconds_max: float) -> AsyncIterator[LaunchLease]:
        """Hold the lease on a launch; TRANSIENT where another replica holds it for so long."""
        lease = Lease(self._bus, self._clock, f"{PREFIX}{launch}", self._replica)
        async with lease.kept() as renewal:
            acquiring = race(lease.acquired(), seconds_max=max(seconds_max, 0.0))
            if (await unless(renewal, acquiring))[0].cancelled():
                raise ProviderError("TRANSIENT", "another replica is requesting this launch")
            yield LaunchLease(lease, renewal)
