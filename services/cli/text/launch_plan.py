"""Plans `navarch up`: which offerings, how many nodes, at what price. Pure.

An operator requests GPUs by number and model; instances have 1, 4 or 8 of them. The plan takes the
largest instances that divide the number, and the cheapest offering with known capacity first; the
other offerings remain as fallbacks.
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
"""GPUs of a simulated or local machine."""
ANY_TYPE: Final = ("local", "docker", "ssh", "fake")
"""Provider plugins without a catalogue: they accept any instance type."""
CLOUDS: Final = ("aws", "gcp", "azure", "lambda")
"""Provider plugins whose instances are enrolled through their user data."""


class PlanError(NavarchError):
    """No offering fits the request; the message names those that exist."""


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Describes what the operator requests."""

    name: str
    gpus: int
    type: str
    provider: str = ""
    region: str = ""
    market: Market = "on-demand"
    max_price: float = 0.0
    """Dollars per hour and node; 0: no limit."""
    each: int = 0
    """GPUs of each node that the pool already has; 0: it has none."""
    settings: dict[str, Any] = {}
    """Pool settings in the form of the configuration; they override the plan's."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The offerings to launch and the pool's settings."""

    name: str
    nodes: int
    gpus: int
    """GPUs per node."""
    offers: tuple[OfferingView, ...]
    """In the order in which they are tried."""
    spec: dict[str, Any]

    @property
    def dollars_per_hour(self) -> float | None:
        """Return the price of all nodes at the first offering; None: unknown."""
        price = self.offers[0].dollars_per_hour
        return None if price is None else price * self.nodes


def plan(
    request: LaunchRequest, offerings: Sequence[OfferingView], kinds: Mapping[str, str]
) -> LaunchPlan:
    """Make the plan. `kinds`: the known configured providers, name -> plugin."""
    try:
        pool_name(request.name)
    except InvalidNameError as error:
        raise PlanError(f"--name: {error}") from error
    if request.gpus < 1:
        raise PlanError("--gpus: request at least 1")
    found = [each for each in offerings if _matches(request, each)]
    if request.each and request.gpus % request.each:
        raise PlanError(
            f"{request.name} has nodes of {request.each} GPUs each, and {request.gpus} is not a "
            "multiple; request a multiple, or use another --name"
        )
    fitting = [
        each
        for each in found
        if each.gpus and request.gpus % each.gpus == 0 and request.each in (0, each.gpus)
    ]
    gpus = max((each.gpus for each in fitting), default=0)
    offers = sorted((each for each in fitting if each.gpus == gpus), key=_rank)
    if offers:
        # All nodes of a pool are enrolled in the same way.
        enrolled = _has_user_data(offers[0], kinds)
        offers = [each for each in offers if _has_user_data(each, kinds) == enrolled]
    if not offers:
        gpus = request.each or _divisor(request.gpus)
        offers = _any_type(request, kinds, gpus)
    if not offers:
        raise PlanError(_no_match_reason(request, found, offerings, kinds))
    return LaunchPlan(
        name=request.name,
        nodes=request.gpus // gpus,
        gpus=gpus,
        offers=tuple(offers),
        spec=_spec(request, offers, gpus, request.gpus // gpus, kinds),
    )


def catalogue_offerings(types: InstanceTypes, kinds: Mapping[str, str]) -> list[OfferingView]:
    """The catalogue's offerings at the configured providers, if the provisioner does not answer."""
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


def _matches(request: LaunchRequest, offering: OfferingView) -> bool:
    """Whether an offering has the requested type, location, market and price."""
    named, model = request.type.lower(), offering.gpu.lower()
    of_type = (
        request.type == offering.instance_type
        or named in offering.abstract
        or model == named
        or model.startswith(f"{named}-")
    )
    price = offering.dollars_per_hour
    return (
        of_type
        and offering.market == request.market
        and request.provider in ("", offering.provider)
        # Catalogue entries have no region: they match any.
        and (request.region in ("", offering.region) or not offering.region)
        and (not request.max_price or (price is not None and price <= request.max_price))
    )


def _has_user_data(offering: OfferingView, kinds: Mapping[str, str]) -> bool:
    """Whether an instance of it is enrolled through its user data."""
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


def _any_type(request: LaunchRequest, kinds: Mapping[str, str], gpus: int) -> list[OfferingView]:
    """Offerings of providers that accept any type, unless a cloud could be meant."""
    free = [name for name, kind in kinds.items() if kind in ANY_TYPE]
    if request.provider:
        free = [name for name in free if name == request.provider]
    elif len(free) != len(kinds):
        free = []  # Simulated GPUs must not replace those of a cloud.
    return [
        OfferingView(
            provider=name,
            region=request.region,
            instance_type=request.type,
            market=request.market,
            gpus=gpus,
            dollars_per_hour=0.0,
        )
        for name in free[:1]
    ]


def _divisor(gpus: int) -> int:
    return next(each for each in range(min(gpus, NODE_GPUS_MAX), 0, -1) if gpus % each == 0)


def _spec(
    request: LaunchRequest,
    offers: Sequence[OfferingView],
    gpus: int,
    nodes: int,
    kinds: Mapping[str, str],
) -> dict[str, Any]:
    """The pool's settings in the form of the configuration."""
    choices: dict[str, dict[str, Any]] = {}
    for each in offers:
        choice = choices.setdefault(
            each.provider, {"name": each.provider, "instance_type": each.instance_type}
        )
        region = each.region or request.region
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
    if request.market == "spot":
        spec["market"] = "spot"
    if request.max_price:
        spec["max_price"] = request.max_price
    if _has_user_data(offers[0], kinds):
        spec["user_data"] = "auto"
    return {**spec, **request.settings}


def _no_match_reason(
    request: LaunchRequest,
    found: Sequence[OfferingView],
    offerings: Sequence[OfferingView],
    kinds: Mapping[str, str],
) -> str:
    """Why no offering matches, and which exist."""
    if found:
        sizes = sorted({each.gpus for each in found if each.gpus})
        return (
            f"{request.gpus} GPUs are not a whole number of instances: {request.type} has "
            f"{', '.join(map(str, sizes))} each"
        )
    models = sorted({each.gpu.lower() for each in offerings if each.gpu})
    there = f"there are {', '.join(models)}" if models else "no provider has types with GPUs"
    where = f" at {request.provider}" if request.provider else ""
    known = ", ".join(kinds) or "not known here"
    return (
        f"no {request.market} {request.type}{where}: {there} (providers: {known}); see "
        "navarch offerings --all"
    )
