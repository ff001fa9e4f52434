"""Instance types by provider, and the offerings that a launch may take. Pure.

A launch names providers in order, each with types (abstract ones name several), regions, zones and
a market. Expanded, they are the candidate offerings, in order of preference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from schemas.launch_offers import Choice, Offer, Offering, is_zone_of
from schemas.saga_params import LaunchSpec
from services.provisioner.offerings.offering_blocks import BlockTarget
from services.provisioner.provider_client.provider_calls import ProviderTraits

OTHERS: Final = "*"
OFFERINGS_MAX: Final = 512
"""Of one launch; further ones are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An offering that a launch may take."""

    offering: Offering
    position: int
    """In the order of preference, from 0."""
    max_price: float = 0.0
    fallback: bool = False
    """On-demand instead of spot, which the launch must have waited for first."""


@dataclass(frozen=True, slots=True)
class OfferingCatalogue:
    """Holds the instance types of the configured providers."""

    types: InstanceTypes
    sites: Mapping[str, ProviderTraits]

    def kind(self, provider: str) -> str:
        """Return the plugin of a configured provider."""
        return self.sites[provider].kind if provider in self.sites else provider

    def has_fixed_capacity(self, provider: str) -> bool:
        """Return whether a machine that leaves is room for the next one."""
        return provider in self.sites and self.sites[provider].fixed_capacity

    def concrete(self, provider: str, name: str) -> tuple[str, ...]:
        """Return the types that a name means at a provider; none if it has no such type.

        Where an operator names the types (own machines), any name is a type.
        """
        kind = self.kind(provider)
        meant = self.types.abstract.get(name, {})
        found = meant.get(provider) or meant.get(kind, ())
        any_name = any(OTHERS in self.types.types.get(key, {}) for key in (provider, kind))
        return found or ((name,) if not meant or any_name else ())

    def abstract(self, provider: str, instance_type: str) -> tuple[str, ...]:
        """Return the abstract names that include a type."""
        return tuple(
            name for name in self.types.abstract if instance_type in self.concrete(provider, name)
        )

    def spec(self, provider: str, instance_type: str) -> TypeSpec | None:
        """Return the details of a type; those under the provider's configured name come first."""
        for key in (provider, self.kind(provider)):
            known = self.types.types.get(key, {})
            if found := known.get(instance_type, known.get(OTHERS)):
                return found
        return None

    def model(self, provider: str, instance_type: str) -> str:
        """Return what quota is counted by: the type's GPU model, or the type itself."""
        spec = self.spec(provider, instance_type)
        return spec.gpu if spec is not None and spec.gpu else instance_type

    def target(self, offering: Offering, pool: str, configuration: str = "") -> BlockTarget:
        """Return what a failure of this offering may block."""
        model = self.model(offering.provider, offering.instance_type)
        return BlockTarget(offering=offering, model=model, pool=pool, configuration=configuration)

    def price(self, offering: Offering) -> float | None:
        """Return the catalogue's dollars per hour; None: unknown."""
        spec = self.spec(offering.provider, offering.instance_type)
        if spec is None:
            return None
        if offering.market == "spot":
            # Free is free on every market.
            return spec.spot_dollars_per_hour if spec.dollars_per_hour != 0 else 0.0
        return spec.dollars_per_hour


def choice_of(launch: LaunchSpec) -> Choice:
    """Return the launch's choice; that of an older launch is its provider, region and zones."""
    if launch.choice is not None:
        return launch.choice
    only = Offer(
        provider=launch.provider,
        instance_type=launch.instance_type,
        regions=(launch.region,) if launch.region else (),
        zones=launch.zones,
    )
    return Choice(offers=(only,))


def candidates(choice: Choice, catalogue: OfferingCatalogue) -> tuple[Candidate, ...]:
    """Return what a launch may take, in order; on-demand fallbacks come after all of spot."""
    laid_out = [each for offer in choice.offers for each in _of(offer, catalogue)]
    if choice.fallback_seconds:
        laid_out += [
            (replace(offering, market="on-demand"), price, True)
            for offering, price, _ in laid_out
            if offering.market == "spot"
        ]
    seen: dict[Offering, Candidate] = {}
    for offering, max_price, fallback in laid_out[:OFFERINGS_MAX]:
        if offering not in seen:
            seen[offering] = Candidate(
                offering=offering, position=len(seen), max_price=max_price, fallback=fallback
            )
    return tuple(seen.values())


def _of(offer: Offer, catalogue: OfferingCatalogue) -> Iterator[tuple[Offering, float, bool]]:
    site = catalogue.sites.get(offer.provider, ProviderTraits(kind=offer.provider))
    market = offer.market or site.market
    if (market == "spot" and not site.spot) or (market == "reserved" and not site.reserved):
        return
    for instance_type in catalogue.concrete(offer.provider, offer.instance_type):
        for region, zone in _places(offer.regions or (site.region,), offer.zones):
            offering = Offering(
                provider=offer.provider,
                region=region,
                zone=zone,
                instance_type=instance_type,
                market=market,
            )
            yield offering, offer.max_price, False


def _places(regions: Sequence[str], zones: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pair zones, in their order, with their regions; one of no region pairs with all regions."""
    if not zones:
        yield from ((region, "") for region in regions)
        return
    for zone in zones:
        own = [region for region in regions if is_zone_of(zone, region)]
        yield from ((region, zone) for region in own or regions)
