"""What is known of instance types, and which offerings a launch may take. Pure.

A launch names providers in order, each with types (abstract ones stand for several), regions, zones
and a market. Laid out, they are the offerings to choose from, in the order of preference.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from schemas.launch_offers import Choice, Offer, Offering
from schemas.saga_params import LaunchSpec
from services.provisioner.provider_client.provider_calls import ProviderTraits

OTHERS: Final = "*"
OFFERINGS_MAX: Final = 512
"""Of one launch; what comes after that is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An offering that a launch may take."""

    offering: Offering
    position: int
    """In the order of preference, from 0."""
    max_price: float = 0.0
    fallback: bool = False
    """On-demand, where spot is wanted: only once the launch has waited for that."""


@dataclass(frozen=True, slots=True)
class OfferingCatalogue:
    """Instance types by the providers that are configured."""

    types: InstanceTypes
    sites: Mapping[str, ProviderTraits]

    def kind(self, provider: str) -> str:
        """The plugin behind a provider's name."""
        return self.sites[provider].kind if provider in self.sites else provider

    def concrete(self, provider: str, name: str) -> tuple[str, ...]:
        """The types that a name stands for at a provider; none where it has nothing like that.

        Where types are called as one likes, as on machines of one's own, it is a name like others.
        """
        kind = self.kind(provider)
        meant = self.types.abstract.get(name, {})
        found = meant.get(provider) or meant.get(kind, ())
        any_name = any(OTHERS in self.types.types.get(key, {}) for key in (provider, kind))
        return found or ((name,) if not meant or any_name else ())

    def abstract(self, provider: str, instance_type: str) -> tuple[str, ...]:
        """The abstract names that a type goes by."""
        return tuple(
            name for name in self.types.abstract if instance_type in self.concrete(provider, name)
        )

    def spec(self, provider: str, instance_type: str) -> TypeSpec | None:
        """What is known of a type; what the provider's own name is given for counts first."""
        for key in (provider, self.kind(provider)):
            known = self.types.types.get(key, {})
            if found := known.get(instance_type, known.get(OTHERS)):
                return found
        return None

    def model(self, provider: str, instance_type: str) -> str:
        """What quota counts a type under: its GPU's model, or the type itself."""
        spec = self.spec(provider, instance_type)
        return spec.gpu if spec is not None and spec.gpu else instance_type

    def price(self, offering: Offering) -> float | None:
        """Dollars per hour as the catalogue has it; None: it does not know."""
        spec = self.spec(offering.provider, offering.instance_type)
        if spec is None:
            return None
        if offering.market == "spot":
            # Free is free on every market.
            return spec.spot_dollars_per_hour if spec.dollars_per_hour != 0 else 0.0
        return spec.dollars_per_hour


def choice_of(launch: LaunchSpec) -> Choice:
    """The launch's choice, or what an older one says by provider, region and zones."""
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
    """What a launch may take, in order; on-demand instead of spot comes after all of spot."""
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
    if market == "spot" and not site.spot:
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
    """Each region's zones, in the order of the zones; a zone of no region counts in all of them."""
    if not zones:
        yield from ((region, "") for region in regions)
        return
    for zone in zones:
        own = [region for region in regions if region and zone.startswith(region)]
        yield from ((region, zone) for region in own or regions)
