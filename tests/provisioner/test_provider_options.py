"""Options of the cloud providers, as a configuration gives them."""

import re
from pathlib import Path
from typing import Any

import pytest

from schemas.settings import PluginSettings
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import load_plugin
from services.settings.settings_file import load_settings

AZURE = {
    "subscription": "s",
    "resource_group": "g",
    "location": "eastus",
    "image": "canonical:ubuntu:22_04-lts:latest",
    "subnet": "/subscriptions/s/subnets/nodes",
}


def load(type_: str, options: dict[str, Any]) -> tuple[type[Any], Any]:
    """Return a provider's class and options, loaded by entry point as the provisioner does."""
    given = PluginSettings(type=type_, options=options, path=f"providers.{type_}")
    return load_plugin("navarch.providers", given, None)


@pytest.mark.parametrize(
    ("type_", "options", "named"),
    [
        ("azure", AZURE | {"max_price": 12.5, "timeout": "10s"}, "AzureProvider"),
        ("coreweave", {"kubeconfig": "/f", "taints": [{"key": "gpu"}]}, "CoreWeaveProvider"),
    ],
)
def test_good_options_are_taken(type_: str, options: dict[str, Any], named: str) -> None:
    """Good options are taken, and the provider is found by its short name."""
    kind, given = load(type_, options)
    assert (named, options.keys()) == (kind.__name__, options.keys() & set(dir(given)))


@pytest.mark.parametrize(
    ("type_", "options", "says"),
    [
        ("azure", {"subscription": "s"}, "azure: `resource_group` is missing; add it"),
        ("azure", AZURE | {"admin_user": "Root"}, "admin_user: Expected `str` matching"),
        ("azure", AZURE | {"max_price": -2}, "max_price: must be -1 or more"),
        ("azure", AZURE | {"market": "cheap"}, "market: Invalid enum value 'cheap'"),
        ("azure", AZURE | {"size": "x"}, "azure.size: unknown key; known here: subscription"),
        ("coreweave", {"kubeconfg": "/f"}, "kubeconfg: unknown key; did you mean `kubeconfig`?"),
        ("coreweave", {"taints": [{"key": "gpu", "efect": "x"}]}, "taints.0.efect: unknown key"),
        ("coreweave", {"settle": "soon"}, "settle: 'soon' is not a duration"),
    ],
)
def test_an_option_that_is_wrong_is_named(type_: str, options: dict[str, Any], says: str) -> None:
    """A wrong option is named by its path in the configuration, with what would be right."""
    with pytest.raises(ConfigurationError) as refused:
        load(type_, options)
    assert says in str(refused.value)


DOCS = Path(__file__).resolve().parents[2] / "docs" / "providers.md"
SHOWN = re.findall(r"```yaml\n(providers:.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.split()[1])
def test_every_configuration_that_the_docs_show_is_one(shown: str, tmp_path: Path) -> None:
    """Each shown pool is one, and each provider takes its options; a plugin's are its own."""
    file = tmp_path / "navarch.yaml"
    file.write_text(shown, encoding="utf-8")
    settings = load_settings(file, {})
    for given in settings.providers.values():
        if ":" in given.type:
            continue
        kind, options = load_plugin("navarch.providers", given, file)
        assert isinstance(options, kind.Options)
