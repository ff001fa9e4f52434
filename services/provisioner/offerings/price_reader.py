"""Asks providers for their prices and their capacity, and keeps what they said last.

One replica does it, the one that sweeps. What a provider cannot say now stays as it was, with its
age; what it never says is the catalogue's.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from schemas.messages import decoder
from schemas.offering_records import PricesRecord
from schemas.pool_records import PoolRecord, pool_key
from schemas.topology import POOLS
from services.bus.leases import Lease, repeat_while_held
from services.bus.port import Bus
from services.primitives.clock import Clock
from services.provisioner.offerings.offering_catalogue import OfferingCatalogue
from services.provisioner.offerings.offering_store import OfferingStore
from services.provisioner.provider_client.provider_calls import Providers
from services.provisioner.provider_client.provider_errors import ProviderError

log = logging.getLogger(__name__)

ASK_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 2.0
TYPES_MAX: Final = 100
"""That a provider is asked for at once."""

_pool: "msgspec.json.Decoder[Any]" = decoder(PoolRecord)


class PriceReader:
    """Keeps prices fresh."""

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        offerings: OfferingStore,
        providers: Providers,
        catalogue: OfferingCatalogue,
    ) -> None:
        """Ask these providers, for what the pools name."""
        self._bus = bus
        self._clock = clock
        self._offerings = offerings
        self._providers = providers
        self._catalogue = catalogue

    async def run(self, lease: Lease) -> None:
        """Ask whenever it is due and the lease is ours, for ever."""
        names = [name for name, each in self._providers.calls.items() if each.has_prices]
        await repeat_while_held(
            lease,
            self._clock,
            lambda: self.ask(names),
            every_seconds=ASK_SECONDS,
            look_seconds=LOOK_SECONDS if names else ASK_SECONDS,
        )

    async def ask(self, names: Sequence[str]) -> None:
        """Ask each of these once."""
        if not names:
            return
        known = (await self._offerings.known()).prices
        pools = await self._pools()
        for name in names:
            old = known.get(name)
            try:
                said = await self._providers.get(name).prices(self._types(name, pools))
            except ProviderError as error:
                log.warning("no prices", extra={"provider": name, "reason": str(error)})
                if old is not None:
                    await self._offerings.say(msgspec.structs.replace(old, error=str(error)))
                continue
            now = self._clock.now()
            await self._offerings.say(PricesRecord(provider=name, at=now, prices=tuple(said)))

    def _types(self, name: str, pools: Iterable[PoolRecord]) -> tuple[str, ...]:
        """The types of a provider that pools may launch."""
        found: dict[str, None] = {}
        for pool in pools:
            for provider, instance_type in provider_types(pool):
                if provider == name:
                    found.update(dict.fromkeys(self._catalogue.concrete(name, instance_type)))
        return tuple(found)[:TYPES_MAX]

    async def _pools(self) -> list[PoolRecord]:
        entries = await self._bus.entries(POOLS, pool_key("*"))
        return [_pool.decode(each.value) for each in entries]


def provider_types(pool: PoolRecord) -> Iterable[tuple[str, str]]:
    """Each provider that a pool names, with its type there."""
    spec = pool.spec
    if not spec.providers:
        yield spec.provider, spec.instance_type
    for each in spec.providers:
        yield each.name, each.instance_type or spec.instance_type
