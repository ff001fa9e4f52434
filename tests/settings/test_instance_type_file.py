"""The catalogue that ships, what a configuration adds to it, and the pools that name it."""

from pathlib import Path

import pytest

from schemas.instance_type_catalogue import InstanceTypes, TypeSpec
from services.primitives.errors import ConfigurationError
from services.settings.instance_type_file import load_instance_types
from services.settings.settings_file import load_settings, parse_settings

ABSTRACT = {"h100-8x", "h100-1x", "a100-8x", "a100-4x", "a100-1x", "a10-1x", "l4-1x"}
NONE = InstanceTypes()


def test_what_ships_is_whole() -> None:
    """Every abstract type has as many GPUs as it says, everywhere, and a price where it is made."""
    found = load_instance_types(NONE, None)
    assert set(found.abstract) > ABSTRACT
    for name, meant in found.abstract.items():
        for kind, types in meant.items():
            has = [found.types[kind][each] for each in types]
            assert {f"{each.gpus}x" for each in has} == {name.rpartition("-")[2]}
            assert all(each.gpu.lower().startswith(name.partition("-")[0]) for each in has)


def test_the_configuration_adds_and_puts_right() -> None:
    """A type or a name that both have is the configuration's; everything else stays."""
    added = InstanceTypes(
        types={"aws": {"p5.48xlarge": TypeSpec(gpus=8, gpu="H100", dollars_per_hour=40.0)}},
        abstract={"ours": {"aws": ("p5.48xlarge",)}},
    )
    found = load_instance_types(added, None)
    assert found.types["aws"]["p5.48xlarge"].dollars_per_hour == 40.0
    assert (
        found.types["aws"]["g6.xlarge"] == load_instance_types(NONE, None).types["aws"]["g6.xlarge"]
    )
    assert found.abstract["ours"] == {"aws": ("p5.48xlarge",)}


HEAD = "providers: {aws: {type: aws}, gcp: {type: gcp}}\n"

CATALOGUE_ERRORS = {
    "a type that is not there": (
        "instance_types:\n  abstract:\n    big:\n      aws: [p9.huge]\n",
        ":5: instance_types.abstract.big.aws: no type 'p9.huge' under `types: aws:`; add it there",
    ),
    "two sizes": (
        "instance_types:\n  abstract:\n    big:\n      aws: [p5.48xlarge, p5.4xlarge]\n",
        ":5: instance_types.abstract.big.aws: names types of [1, 8] GPUs",
    ),
    "nothing": (
        "instance_types:\n  abstract:\n    big: {aws: []}\n",
        ":4: instance_types.abstract.big.aws: names no type",
    ),
}


@pytest.mark.parametrize(("text", "expected"), CATALOGUE_ERRORS.values(), ids=CATALOGUE_ERRORS)
def test_an_error_in_the_catalogue_names_file_line_and_key(
    tmp_path: Path, text: str, expected: str
) -> None:
    """Names without types are found when a service starts, not when it launches."""
    file = tmp_path / "navarch.yaml"
    file.write_text(HEAD + text, encoding="utf-8")
    with pytest.raises(ConfigurationError) as error:
        load_instance_types(load_settings(file, {}).instance_types, file)
    assert str(error.value).startswith(f"{file}{expected}")


POOL = "pools:\n  a:\n    min_nodes: 1\n    max_nodes: 2\n"
POOL_ERRORS = {
    "a price below nothing": (
        "instance_types: {types: {aws: {p5.48xlarge: {dollars_per_hour: -1}}}}\n",
        "n.yaml:2: instance_types.types: must be 0 or more",
    ),
    "no provider": (POOL + "    instance_type: x\n", "n.yaml:3: pools.a: `provider` is missing"),
    "one and several": (
        POOL + "    provider: aws\n    instance_type: x\n    providers: [{name: gcp}]\n",
        "n.yaml:6: pools.a.provider: excludes `providers`; keep one of them",
    ),
    "no type": (
        POOL + "    providers: [{name: gcp}]\n",
        "n.yaml:6: pools.a.providers.0: `instance_type` is missing; add it here, or",
    ),
    "zones of which": (
        POOL + "    instance_type: x\n    zones: [a]\n    providers: [{name: gcp}]\n",
        "n.yaml:7: pools.a.zones: means one provider; name regions and zones under each",
    ),
    "a provider that is not there": (
        POOL + "    instance_type: x\n    providers:\n    - name: gcp\n    - name: gpc\n",
        "n.yaml:7: pools.a.providers: no provider 'gpc' under `providers:` (known: aws, gcp)",
    ),
    "an unknown market": (
        POOL + "    instance_type: x\n    provider: aws\n    market: cheap\n",
        "n.yaml:8: pools.a.market: Invalid enum value 'cheap'",
    ),
}


@pytest.mark.parametrize(("text", "expected"), POOL_ERRORS.values(), ids=POOL_ERRORS)
def test_an_error_in_a_pool_s_providers_names_file_line_and_remedy(
    text: str, expected: str
) -> None:
    """A person goes to the line and knows what to write."""
    with pytest.raises(ConfigurationError) as error:
        parse_settings("n.yaml", HEAD + text, {})
    assert str(error.value).startswith(expected)


def test_providers_are_put_in_order() -> None:
    """Providers are in order of priority, then of their place; the first is the pool's."""
    text = (
        POOL + "    instance_type: h100-8x\n    strategy: cost\n    providers:\n"
        "    - {name: gcp, priority: 2, regions: [us-central1]}\n    - {name: aws, priority: 1}\n"
    )
    pool = parse_settings("n.yaml", HEAD + text, {}).pools["a"]
    assert (pool.provider, [each.name for each in pool.providers]) == ("aws", ["aws", "gcp"])
    assert (pool.strategy.type, pool.strategy.path) == ("cost", "pools.a.strategy")
