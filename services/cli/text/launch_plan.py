"""What `navarch up` would do: which machines, where, at what price. Pure.

GPUs are asked for by number and model; machines come with 1, 4 or 8 of them. The plan takes the
largest machines that the number divides by, and of those the cheapest place that has capacity as
far as is known; the others stay the pool's to fall back on.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from schemas.instance_type_catalogue import InstanceTypes
from schemas.launch_offers import Market
from schemas.names import InvalidNameError, pool_name
from schemas.offering_records import OfferingView
from services.primitives.errors import NavarchError

NODE_GPUS_MAX: Final = 8
"""Of one machine that we make ourselves."""
ANY_TYPE: Final = ("local", "docker", "ssh", "fake")
"""Kinds of provider that have no catalogue: they take any name for a type."""
CLOUDS: Final = ("aws", "gcp", "azure", "lambda")
"""Kinds whose machines are told at their first boot how to become a node."""


class PlanError(NavarchError):
    """What is asked for cannot be planned; the text says what can."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for."""

    name: str
    gpus: int
    type: str
    provider: str = ""
    region: str = ""
    market: Market = "on-demand"
    max_price: float = 0.0
    """Dollars per hour of one node; 0: any."""
    each: int = 0
    """GPUs of each node that the pool has already; 0: it has none."""
    settings: dict[str, Any] = {}
    """Of the pool, as they stand in the configuration; they win over the plan's."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done."""

    name: str
    nodes: int
    gpus: int
    """Of one node."""
    offers: tuple[OfferingView, ...]
    """Where they may come from, the one to try first in front."""
    spec: dict[str, Any]

    @property
    def dollars_per_hour(self) -> float | None:
        """Of all nodes, if all come from the first; None: not known."""
        price = self.offers[0].dollars_per_hour
        return None if price is None else price * self.nodes


def plan(wish: Wish, offerings: Sequence[OfferingView], kinds: Mapping[str, str]) -> Plan:
    """Plan it. `kinds`: the configured providers as far as they are known, name -> plugin."""
    try:
        pool_name(wish.name)
    except InvalidNameError as error:
        raise PlanError(f"--name: {error}") from error
    if wish.gpus < 1:
        raise PlanError("--gpus: ask for one at least")
    found = [each for each in offerings if _wanted(wish, each)]
    if wish.each and wish.gpus % wish.each:
        raise PlanError(
            f"{wish.name} has nodes of {wish.each} GPUs each, and {wish.gpus} is no multiple of "
            "that; ask for one that is, or under another name"
        )
    fitting = [
        each
        for each in found
        if each.gpus and wish.gpus % each.gpus == 0 and wish.each in (0, each.gpus)
    ]
    gpus = max((each.gpus for each in fitting), default=0)
    offers = sorted((each for each in fitting if each.gpus == gpus), key=_rank)
    if offers:
        # One pool's machines become nodes in one way.
        told = _is_told(offers[0], kinds)
        offers = [each for each in offers if _is_told(each, kinds) == told]
    if not offers:
        gpus = wish.each or _divisor(wish.gpus)
        offers = _any_type(wish, kinds, gpus)
    if not offers:
        raise PlanError(_nothing(wish, found, offerings, kinds))
    return Plan(
        name=wish.name,
        nodes=wish.gpus // gpus,
        gpus=gpus,
        offers=tuple(offers),
        spec=_spec(wish, offers, gpus, wish.gpus // gpus, kinds),
    )


def listed(types: InstanceTypes, kinds: Mapping[str, str]) -> list[OfferingView]:
    """What the catalogue has at the configured providers, where the fleet itself does not say."""
    found = []
    for provider, kind in kinds.items():
        known = {**types.types.get(kind, {}), **types.types.get(provider, {})}
        for name, spec in known.items():
            if not spec.gpus:
                continue
            meant = {abstract: by.get(kind, ()) for abstract, by in types.abstract.items()}
            offer = OfferingView(
                provider=provider,
                instance_type=name,
                abstract=tuple(each for each, of in meant.items() if name in of),
                gpus=spec.gpus,
                gpu=spec.gpu,
                dollars_per_hour=spec.dollars_per_hour,
            )
            spot = spec.spot_dollars_per_hour
            found += [
                offer,
                msgspec.structs.replace(offer, market="spot", dollars_per_hour=spot),
            ]
    return found


def _wanted(wish: Wish, offering: OfferingView) -> bool:
    """Whether it is of the type, and where it is wanted."""
    named, model = wish.type.lower(), offering.gpu.lower()
    of_type = (
        wish.type == offering.instance_type
        or named in offering.abstract
        or model == named
        or model.startswith(f"{named}-")
    )
    price = offering.dollars_per_hour
    return (
        of_type
        and offering.market == wish.market
        and wish.provider in ("", offering.provider)
        # The catalogue knows no regions: what it has may be had in any.
        and (wish.region in ("", offering.region) or not offering.region)
        and (not wish.max_price or (price is not None and price <= wish.max_price))
    )


def _is_told(offering: OfferingView, kinds: Mapping[str, str]) -> bool:
    """Whether a machine of it is told at its first boot how to become a node."""
    return kinds.get(offering.provider, offering.provider) in CLOUDS


def _rank(offering: OfferingView) -> tuple[bool, bool, float, str, str]:
    price = offering.dollars_per_hour
    known = price if price is not None else 0.0
    return (
        offering.state != "available",
        price is None,
        known,
        offering.provider,
        offering.region,
    )


def _any_type(wish: Wish, kinds: Mapping[str, str], gpus: int) -> list[OfferingView]:
    """Machines of providers that have no types of their own, where nothing else is meant."""
    free = [name for name, kind in kinds.items() if kind in ANY_TYPE]
    if wish.provider:
        free = [name for name in free if name == wish.provider]
    elif len(free) != len(kinds):
        free = []  # Simulated GPUs must not stand in for those of a cloud.
    return [
        OfferingView(
            provider=name,
            region=wish.region,
            instance_type=wish.type,
            market=wish.market,
            gpus=gpus,
            dollars_per_hour=0.0,
        )
        for name in free[:1]
    ]


def _divisor(gpus: int) -> int:
    return next(each for each in range(min(gpus, NODE_GPUS_MAX), 0, -1) if gpus % each == 0)


def _spec(
    wish: Wish, offers: Sequence[OfferingView], gpus: int, nodes: int, kinds: Mapping[str, str]
) -> dict[str, Any]:
    """The pool, as the configuration would say it."""
    choices: dict[str, dict[str, Any]] = {}
    for each in offers:
        choice = choices.setdefault(
            each.provider, {"name": each.provider, "instance_type": each.instance_type}
        )
        region = each.region or wish.region
        if region and choice["instance_type"] == each.instance_type:
            regions = choice.setdefault("regions", [])
            if region not in regions:
                regions.append(region)
    spec: dict[str, Any] = {
        "providers": list(choices.values()),
        "strategy": "cost",
        "min_nodes": 0,
        "max_nodes": nodes,
        "gpu_count": gpus,
    }
    if wish.market == "spot":
        spec["market"] = "spot"
    if wish.max_price:
        spec["max_price"] = wish.max_price
    if _is_told(offers[0], kinds):
        spec["user_data"] = "auto"
    return {**spec, **wish.settings}


def _nothing(
    wish: Wish,
    found: Sequence[OfferingView],
    offerings: Sequence[OfferingView],
    kinds: Mapping[str, str],
) -> str:
    """Why there is nothing to take, and what there is."""
    if found:
        sizes = sorted({each.gpus for each in found if each.gpus})
        return (
            f"{wish.gpus} GPUs cannot be had in whole machines: {wish.type} comes with "
            f"{', '.join(map(str, sizes))} each"
        )
    models = sorted({each.gpu.lower() for each in offerings if each.gpu})
    there = f"there are {', '.join(models)}" if models else "no provider has types with GPUs"
    where = f" at {wish.provider}" if wish.provider else ""
    known = ", ".join(kinds) or "not known here"
    return (
        f"no {wish.market} {wish.type}{where}: {there} (providers: {known}); see "
        "navarch offerings --all"
    )
