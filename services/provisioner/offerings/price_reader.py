"""Reads prices, capacity and quotas from the providers, and stores the last answer of each.

The replica that sweeps does it. Where a provider does not answer, its last prices remain, with
their age; where it has none, those of the catalogue apply. A quota that it did not report counts as
having room.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from schemas.messages import decoder
from schemas.offering_records import OfferingQuota, PricesRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS
from services.bus.bucket_mirror import readable
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.offerings.offering_catalogue import (
    OFFERINGS_MAX,
    OfferingCatalogue,
    candidates,
)
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError
from services.settings.provider_choices import choices_of

log = logging.getLogger(__name__)

READ_SECONDS: Final = 300.0
POLL_SECONDS: Final = 2.0
TYPES_MAX: Final = 100
"""Instance types in one call."""

_pool: Final = decoder(PoolRecord)


class PriceReader:
    """Keeps the stored prices current."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        offerings: OfferingStore,
        providers: Providers,
        catalogue: OfferingCatalogue,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._offerings = offerings
        self._providers = providers
        self._catalogue = catalogue

    async def run(self, lease: Lease) -> None:
        """Read prices whenever they are due and this replica holds the lease."""
        names = [name for name, each in self._providers.calls.items() if each.reports_offerings]
        await repeat_while_held(
            lease,
            self._clock,
            lambda: self.read_prices(names),
            every_seconds=READ_SECONDS,
            look_seconds=POLL_SECONDS if names else READ_SECONDS,
        )

    async def read_prices(self, names: Sequence[str]) -> None:
        """Read the prices and quotas of each of these once."""
        if not names:
            return
        known = (await self._offerings.records()).prices
        pools = await self._pools()
        for name in names:
            old = known.get(name)
            quotas_at = self._clock.now()
            quotas = await self._quotas(name, pools)
            try:
                quoted = await self._providers.get(name).prices(self._types(name, pools))
            except ProviderError as error:
                log.warning("no prices", extra={"provider": name, "reason": str(error)})
                found = old or PricesRecord(provider=name, at=quotas_at)
                found = msgspec.structs.replace(found, error=str(error))
            else:
                found = PricesRecord(provider=name, at=self._clock.now(), prices=tuple(quoted))
            if old is None and not found.prices and not quotas:
                continue
            await self._offerings.put_prices(
                msgspec.structs.replace(found, quotas=quotas, quotas_at=quotas_at)
            )

    async def _quotas(self, name: str, pools: Iterable[PoolRecord]) -> tuple[OfferingQuota, ...]:
        """Return the quotas of what pools may launch at a provider; none where it cannot say."""
        offerings = {
            each.offering: None
            for pool in pools
            for choice in choices_of(pool.spec)
            for each in candidates(choice, self._catalogue)
            if each.offering.provider == name
        }
        try:
            return tuple(await self._providers.get(name).quotas(tuple(offerings)[:OFFERINGS_MAX]))
        except ProviderError as error:
            log.warning("no quotas", extra={"provider": name, "reason": str(error)})
            return ()

    def _types(self, name: str, pools: Iterable[PoolRecord]) -> tuple[str, ...]:
        """Return the types of a provider that pools may launch."""
        found: dict[str, None] = {}
        for pool in pools:
            for provider, instance_type in provider_types(pool):
                if provider == name:
                    found.update(dict.fromkeys(self._catalogue.concrete(name, instance_type)))
        return tuple(found)[:TYPES_MAX]

    async def _pools(self) -> list[PoolRecord]:
        entries = await self._bus.entries(POOLS, pool_key("*"))
        return [record for _, record in readable(entries, _pool)]


def provider_types(pool: PoolRecord) -> Iterable[tuple[str, str]]:
    """Return each provider that a pool names, with its type there."""
    spec = pool.spec
    if not spec.providers:
        yield spec.provider, spec.instance_type
    for each in spec.providers:
        yield each.name, each.instance_type or spec.instance_type
