"""The plan of `navarch up` has instances, offerings and prices."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.offering_records import OfferingView as Offer
from services.cli.commands.up_command import idle_setting, plan_text, read_settings
from services.cli.text.launch_plan import LaunchRequest, PlanError, catalogue_offerings, plan
from services.primitives.errors import NavarchError
from services.settings.instance_type_file import load_instance_types
from services.settings.settings_file import parse_settings, requested_pool

REQUEST = LaunchRequest(name="mine", gpus=8, type="h100")
KINDS = {"aws": "aws", "lambda": "lambda", "gcp": "gcp"}
H100: dict[str, Any] = {"gpus": 8, "gpu": "H100", "abstract": ("h100-8x",)}
OFFERS = [
    Offer(provider="aws", region="us-east-1", instance_type="p5", dollars_per_hour=55.0, **H100),
    Offer(provider="aws", region="us-west-2", instance_type="p5", dollars_per_hour=57.0, **H100),
    Offer(provider="lambda", region="a", instance_type="8x", dollars_per_hour=23.0, **H100),
    Offer(provider="gcp", region="c", instance_type="a3", **H100),
    Offer(provider="lambda", region="a", instance_type="1x", gpus=1, gpu="H100"),
    Offer(provider="aws", instance_type="p4d", gpus=8, gpu="A100", dollars_per_hour=22.0),
    Offer(provider="aws", instance_type="p4de", gpus=8, gpu="A100-80GB", dollars_per_hour=27.0),
    Offer(provider="aws", instance_type="p5", market="spot", dollars_per_hour=20.0, **H100),
]


def test_the_cheapest_offering_with_capacity_is_first() -> None:
    """The others follow; those without a known price or capacity are last."""
    found = plan(REQUEST, OFFERS, KINDS)
    full = [
        replace(each, state="exhausted") if each.provider == "lambda" else each for each in OFFERS
    ]
    without = plan(REQUEST, full, KINDS)

    assert [("lambda", "a"), ("aws", "us-east-1"), ("aws", "us-west-2"), ("gcp", "c")] == [
        (each.provider, each.region) for each in found.offers
    ]
    assert (1, 8, 23.0) == (found.nodes, found.gpus, found.dollars_per_hour)
    assert ["aws", "aws", "gcp", "lambda"] == [each.provider for each in without.offers]


def test_the_pool_may_fall_back_on_every_offering_of_the_plan() -> None:
    """Offerings are in order of cost; instances get agent and credentials through user data."""
    spec = plan(replace(REQUEST, gpus=16), OFFERS, KINDS).spec

    assert [
        {"name": "lambda", "instance_type": "8x", "regions": ["a"]},
        {"name": "aws", "instance_type": "p5", "regions": ["us-east-1", "us-west-2"]},
        {"name": "gcp", "instance_type": "a3", "regions": ["c"]},
    ] == spec["providers"]
    assert ("cost", 0, 2, 8, "auto") == tuple(
        spec[key] for key in ("strategy", "min_nodes", "max_nodes", "gpu_count", "user_data")
    )


@pytest.mark.parametrize(
    ("changes", "first", "nodes"),
    [
        ({"gpus": 3}, "1x", 3),
        ({"gpus": 24}, "8x", 3),
        ({"each": 1}, "1x", 8),
        ({"type": "a100"}, "p4d", 1),
        ({"type": "A100-80GB"}, "p4de", 1),
        ({"type": "h100-8x"}, "8x", 1),
        ({"type": "p4de"}, "p4de", 1),
        ({"provider": "gcp"}, "a3", 1),
        ({"region": "us-west-2"}, "p5", 1),
        ({"market": "spot"}, "p5", 1),
        ({"max_price": 60.0, "provider": "aws"}, "p5", 1),
    ],
)
def test_a_request_finds_its_offering(changes: dict[str, Any], first: str, nodes: int) -> None:
    """A request names a model, an abstract type or an instance type.

    The largest instances that divide the number of GPUs are taken.
    """
    found = plan(replace(REQUEST, **changes), OFFERS, KINDS)

    assert (first, nodes) == (found.offers[0].instance_type, found.nodes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"gpus": 12, "type": "a100"},
            "12 GPUs are not a whole number of instances: a100 has",
        ),
        ({"type": "b300"}, "no on-demand b300: there are a100, a100-80gb, h100 (providers: aws, l"),
        ({"max_price": 1.0}, "no on-demand h100: there are"),
        ({"provider": "azure"}, "no on-demand h100 at azure"),
        ({"gpus": 12, "each": 8}, "mine has nodes of 8 GPUs each, and 12 is not a multiple"),
        ({"name": "My_Cluster"}, "--name: "),
        ({"gpus": 0}, "--gpus: "),
    ],
)
def test_a_request_without_offering_names_those_that_exist(
    changes: dict[str, Any], says: str
) -> None:
    """The refusal comes before any request is sent."""
    with pytest.raises(PlanError) as refused:
        plan(replace(REQUEST, **changes), OFFERS, KINDS)
    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("kinds", "provider", "found"),
    [
        ({"local": "local"}, "", "local"),
        ({"here": "local", "lambda": "lambda"}, "here", "here"),
        ({"here": "local", "lambda": "lambda"}, "", ""),
    ],
)
def test_simulated_gpus_never_replace_those_of_a_cloud(
    kinds: dict[str, str], provider: str, found: str
) -> None:
    """Only if there is no cloud, or if they are requested by name."""
    request = replace(REQUEST, type="h900", gpus=12, provider=provider)
    if not found:
        with pytest.raises(PlanError):
            plan(request, OFFERS, kinds)
        return
    made = plan(request, OFFERS, kinds)
    assert (found, 6, 2) == (made.offers[0].provider, made.gpus, made.nodes)
    assert "user_data" not in made.spec


def test_the_catalogue_is_used_if_the_fleet_does_not_answer() -> None:
    """The catalogue's prices are used, on both markets."""
    types = load_instance_types(parse_settings("x", "{}", {}).instance_types, None)
    offers = catalogue_offerings(types, KINDS)
    found = plan(REQUEST, offers, KINDS)

    there = plan(replace(REQUEST, region="us-south-1"), offers, KINDS).spec["providers"][0]

    assert ["us-south-1"] == there["regions"]
    assert "gpu_8x_h100_sxm5" == found.offers[0].instance_type
    assert {"on-demand", "spot"} == {each.market for each in offers}
    assert "h100-8x" in found.offers[0].abstract


def test_every_plan_is_a_valid_pool() -> None:
    """The configuration's reader accepts it, with the settings of `--set`."""
    said = ["max_price=60", "labels={team: vision}", "health.auto_replace=false", "spares=1"]
    request = replace(REQUEST, market="spot", settings=read_settings(said))
    settings = parse_settings("x", "providers: {aws: {}, lambda: {}, gcp: {}}", {})
    spec = requested_pool("mine", plan(request, OFFERS, KINDS).spec, settings, Path())

    assert ("spot", 60.0, 1, {"team": "vision"}, False) == (
        spec.market,
        spec.max_price,
        spec.spares,
        spec.labels,
        spec.health.auto_replace,
    )


@pytest.mark.parametrize("said", ["spares", "=1", "a=[", "a=1,a.b=2"])
def test_an_invalid_setting_is_refused(said: str) -> None:
    """The error has the given text."""
    with pytest.raises(NavarchError, match="--set "):
        read_settings(said.split(","))


def test_the_plan_shows_prices_known_and_unknown() -> None:
    """Prices are shown per node and in total, with the number of present nodes."""
    text = plan_text(plan(replace(REQUEST, gpus=16), OFFERS, KINDS), {"mine-1-a": "active"})

    assert text.startswith("mine: 2 nodes with 8 GPUs each; it has 1 now\n")
    assert ["first", "lambda", "a", "8x", "on-demand", "23.00", "46.00", "available"] == (
        text.splitlines()[2].split()
    )
    assert ["?", "?"] == text.splitlines()[5].split()[-3:-1]


def test_all_nodes_of_a_pool_are_enrolled_in_the_same_way() -> None:
    """A pool has either offerings with user data or offerings without, not both."""
    other = Offer(provider="cks", instance_type="gd", dollars_per_hour=9.0, **H100)
    kinds = KINDS | {"cks": "coreweave"}
    cheap = plan(REQUEST, [*OFFERS, other], kinds)
    dear = plan(REQUEST, [*OFFERS, replace(other, dollars_per_hour=99.0)], kinds)

    assert (["cks"], False) == ([each.provider for each in cheap.offers], "user_data" in cheap.spec)
    assert "cks" not in {each.provider for each in dear.offers}


def test_an_experiment_ends_by_itself() -> None:
    """`--idle-after` is the pool's setting; what is no time is refused with an example."""
    request = replace(REQUEST, settings=idle_setting("30m"))
    found = plan(request, OFFERS, KINDS).spec
    assert (found["idle_after"], found["min_nodes"]) == ("30m", 0)
    assert idle_setting("") == {}
    with pytest.raises(NavarchError, match="--idle-after: 'soon' is not a duration: write 30s"):
        idle_setting("soon")
