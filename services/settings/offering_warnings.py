"""What a pool asks its providers for and probably will not get. Pure."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from schemas.instance_type_catalogue import InstanceTypes
from schemas.launch_offers import Offer
from schemas.settings import PoolSpec, Settings
from services.settings.provider_choices import choice_of

OTHERS: Final = "*"
NEEDS_ZONES: Final = frozenset({"gcp"})


def offering_warnings(settings: Settings, types: InstanceTypes) -> Iterator[str]:
    """The warnings of all pools."""
    for name, spec in settings.pools.items():
        for offer in choice_of(spec).offers if spec.nodes == "launched" else ():
            configured = settings.providers.get(offer.provider)
            kind = configured.type if configured else ""
            for warning in (_type_warning(offer, kind, types), _zone_warning(spec, offer, kind)):
                if warning:
                    yield f"pool {name}: {warning}"


def _type_warning(offer: Offer, kind: str, types: InstanceTypes) -> str:
    wanted = offer.instance_type
    known = types.types.get(offer.provider, {}) | types.types.get(kind, {})
    if not known or OTHERS in known or wanted in known:
        return ""
    if meant := types.abstract.get(wanted):
        if meant.get(offer.provider) or meant.get(kind):
            return ""
        return (
            f"provider {offer.provider} has no type for {wanted!r}, so it launches none; name one "
            "under `providers:` of the pool, or under `instance_types: abstract:`"
        )
    near = get_close_matches(wanted, [*known, *types.abstract], 1)
    meant_type = f"; did you mean {near[0]}?" if near else ""
    return (
        f"instance type {wanted!r} of provider {offer.provider} is not in the catalogue, so its "
        f"GPUs and price are unknown{meant_type or '; add it under `instance_types: types:`'}"
    )


def _zone_warning(spec: PoolSpec, offer: Offer, kind: str) -> str:
    if kind not in NEEDS_ZONES or offer.zones:
        return ""
    where = "the entry of `providers:`" if spec.providers else "the pool"
    return f"provider {offer.provider} launches nothing without a zone; add `zones` to {where}"
