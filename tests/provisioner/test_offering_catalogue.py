"""Providers, types, regions, zones and markets are laid out in the order of launches."""

import pytest

from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from schemas.launch_offers import Choice, Offer, Offering
from schemas.saga_params import LaunchSpec
from schemas.settings import PoolSpec, ProviderChoice
from services.provisioner.offerings.offering_catalogue import (
    OfferingCatalogue,
    candidates,
    choice_of,
)
from services.provisioner.provider_client.provider_calls import ProviderTraits
from services.settings.provider_choices import choice_of as choice_of_pool

CATALOGUE = OfferingCatalogue(
    InstanceTypes(
        types={
            "aws": {
                "p5.48xlarge": TypeSpec(gpus=8, gpu="H100", dollars_per_hour=55.0),
                "p5.new": TypeSpec(gpus=8, gpu="H100"),
            },
            "gcp": {"a3": TypeSpec(gpus=8, gpu="H100", dollars_per_hour=88.0)},
            "cheap": {"p5.48xlarge": TypeSpec(gpus=8, gpu="H100", dollars_per_hour=40.0)},
            "local": {"*": TypeSpec(dollars_per_hour=0.0)},
        },
        abstract={
            "h100-8x": {"aws": ("p5.48xlarge", "p5.new"), "gcp": ("a3",)},
            "a10-1x": {"aws": ("g5.xlarge",)},
        },
    ),
    {
        "east": ProviderTraits(kind="aws", region="us-east-1", spot=True),
        "cheap": ProviderTraits(kind="aws", region="us-west-2", market="spot", spot=True),
        "gcp": ProviderTraits(kind="gcp", spot=True, reserved=True),
        "local": ProviderTraits(kind="local"),
    },
)


def laid_out(*offers: Offer, **changes: float) -> list[str]:
    """Return the candidates' names, in order."""
    found = candidates(Choice(offers=offers, **changes), CATALOGUE)  # type: ignore[arg-type]
    assert [each.position for each in found] == list(range(len(found)))
    return [str(each.offering) + (" fallback" if each.fallback else "") for each in found]


CASES = {
    "as an older launch says it": (
        choice_of(LaunchSpec(fleet="f", provider="gcp", instance_type="a3", zones=("b", "a"))),
        ["gcp b a3 on-demand", "gcp a a3 on-demand"],
    ),
    "an abstract type, in the catalogue's order": (
        Choice(offers=(Offer(provider="east", instance_type="h100-8x"),)),
        ["east us-east-1 p5.48xlarge on-demand", "east us-east-1 p5.new on-demand"],
    ),
    "a provider that has nothing like it": (
        Choice(offers=(Offer(provider="gcp", instance_type="a10-1x"),)),
        [],
    ),
    "a provider where types are called as one likes": (
        Choice(offers=(Offer(provider="local", instance_type="h100-8x"),)),
        ["local h100-8x on-demand"],
    ),
    "a reservation where there is one": (
        choice_of_pool(
            PoolSpec(
                min_nodes=1,
                max_nodes=1,
                instance_type="h100-8x",
                market=("reserved", "spot", "on-demand"),
                providers=(
                    ProviderChoice(name="east", instance_type="p5.new"),
                    ProviderChoice(name="gcp", zones=("b",)),
                    ProviderChoice(name="local", market="on-demand"),
                ),
            )
        ),
        [
            "gcp b a3 reserved",
            "east us-east-1 p5.new spot",
            "gcp b a3 spot",
            "east us-east-1 p5.new on-demand",
            "gcp b a3 on-demand",
            "local h100-8x on-demand",
        ],
    ),
    "zones count in their own region": (
        Choice(
            offers=(
                Offer(
                    provider="gcp",
                    instance_type="a3",
                    regions=("us-central1", "us-east4"),
                    zones=("us-east4-a", "us-central1-b", "us-central1-a"),
                ),
            )
        ),
        [
            "gcp us-east4-a a3 on-demand",
            "gcp us-central1-b a3 on-demand",
            "gcp us-central1-a a3 on-demand",
        ],
    ),
    "zones that are numbers count in every region": (
        Choice(
            offers=(Offer(provider="x", instance_type="t", regions=("r", "s"), zones=("1", "2")),)
        ),
        ["x 1 t on-demand", "x 1 t on-demand", "x 2 t on-demand", "x 2 t on-demand"],
    ),
    "no spot where there is none": (
        Choice(offers=(Offer(provider="local", instance_type="t", market="spot"),)),
        [],
    ),
    "a duplicate counts once": (
        Choice(offers=(Offer(provider="gcp", instance_type="a3"),) * 2),
        ["gcp a3 on-demand"],
    ),
}


@pytest.mark.parametrize(("choice", "expected"), CASES.values(), ids=CASES)
def test_offers_are_laid_out_in_order(choice: Choice, expected: list[str]) -> None:
    """The order is that of the offers, then types, then zones."""
    assert [str(each.offering) for each in candidates(choice, CATALOGUE)] == expected


def test_on_demand_instead_of_spot_comes_last() -> None:
    """On-demand comes after all of spot, and only where a wait for spot has an end."""
    spot = Offer(provider="east", instance_type="p5.48xlarge", market="spot")
    other = Offer(provider="gcp", instance_type="a3")
    assert laid_out(spot, other) == ["east us-east-1 p5.48xlarge spot", "gcp a3 on-demand"]
    assert laid_out(spot, other, fallback_seconds=600.0) == [
        "east us-east-1 p5.48xlarge spot",
        "gcp a3 on-demand",
        "east us-east-1 p5.48xlarge on-demand fallback",
    ]


PRICES = {
    "by the kind of provider": ("east", "p5.48xlarge", "on-demand", 55.0),
    "by the provider's own name first": ("cheap", "p5.48xlarge", "on-demand", 40.0),
    "spot is not on demand": ("east", "p5.48xlarge", "spot", None),
    "not known": ("east", "p5.new", "on-demand", None),
    "free whatever it is called": ("local", "anything", "spot", 0.0),
}


@pytest.mark.parametrize(
    ("provider", "instance_type", "market", "expected"), PRICES.values(), ids=PRICES
)
def test_a_price_is_known_or_not(
    provider: str, instance_type: str, market: str, expected: float | None
) -> None:
    """An unknown price is not taken for nothing."""
    offering = Offering(provider=provider, instance_type=instance_type, market=market)  # type: ignore[arg-type]
    assert CATALOGUE.price(offering) == expected


def test_a_type_goes_by_its_abstract_names_and_its_gpu() -> None:
    """Quota is counted by the GPU, where that is known."""
    assert CATALOGUE.abstract("east", "p5.new") == ("h100-8x",)
    assert CATALOGUE.model("east", "p5.new") == "H100"
    assert CATALOGUE.model("east", "m7.large") == "m7.large"
