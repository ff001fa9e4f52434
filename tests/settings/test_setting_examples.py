"""Each key's example in docs/configuration.md is accepted by the loader, in its place."""

import json
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import pytest
from msgspec import inspect as types

from schemas.settings import (
    AUTOSCALER_PLUGINS,
    METRICS_SOURCE_PLUGINS,
    AlertRoute,
    PluginSettings,
    Settings,
)
from services.cli.plugin_options import known_options, loaded_options
from services.pool_manager.autoscaling.autoscaler_plugins import AUTOSCALERS, SOURCES
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import load_plugin
from services.settings.setting_values import example_of
from services.settings.settings_file import load_settings
from services.settings.settings_page import PLUGINS, block_of, settings_page
from services.settings.settings_schema import settings_schema

OPTIONS: Final = known_options()
POOL: Final = {
    "provider": "aws",
    "instance_type": "h100-8x",
    "min_nodes": 0,
    "max_nodes": 16,
}
BASE: Final[Mapping[str, Any]] = {
    "providers": {
        "aws": {"region": "us-east-1"},
        "cluster": {
            "type": "kubernetes",
            "selectors": {"training": "pool=training"},
            "removal": "node-claim",
        },
    },
    "notifiers": {"slurm": {"type": "slurm"}},
    "pools": {"training": POOL},
}
SLURM_REST: Final = {"token_file": "token"}
BESIDE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("event_sinks.NAME", ""): {"type": "http", "url": "http://127.0.0.1/", "mode": "batch"},
    ("notifier", "webhook"): {"drain_status_url": "http://127.0.0.1/"},
    ("notifier.rest", "slurm"): SLURM_REST,
    ("providers.NAME.rest", "slurm"): SLURM_REST,
    ("pools.NAME.metrics.rest", "slurm"): SLURM_REST,
    ("pools.NAME.metrics", "prometheus"): {"pending_jobs": "jobs"},
    ("alerts[]", "slack"): {"token": "xoxb", "channel": "C1"},
    ("pools.NAME.autoscaling.schedule[]", "scheduled"): {"nodes": 4},
}
"""What a block has to have although none of it is required of itself."""
WHOLE_RACKS: Final = {
    "min_nodes": 18,
    "max_nodes": 36,
    "zones": ["us-east-1a"],
    "placement": {"together": "zone", "required": True},
}
NEEDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "PlacementSpec.required": {"together": "zone"},
    "PoolSpec.on_demand_min": {"market": ["spot", "on-demand"]},
    "PoolSpec.rack": WHOLE_RACKS,
    "PoolSpec.setup_commands": {"ssh_private_key_path": "key"},
    "PoolSpec.nodes": {"provider": "cluster"},
    "PoolSpec.driver_version": {"drift": "report"},
    "Options.efa": {"security_groups": ["sg-1"]},
    "Options.capacity_block": {"capacity_reservation": "cr-1"},
    "GcpOptions.provisioning": {"max_run": "24h"},
    "Options.removal": {"region": "us-east-1"},
    "Options.context": {"kubeconfig": "kubeconfig"},
}
"""What a key needs beside it."""
EXCLUDES: Final[Mapping[str, tuple[str, ...]]] = {
    "PoolSpec.providers": ("provider",),
    "SlurmRestOptions.token": ("token_file",),
    "Options.webhook_url": ("token", "channel"),
    "Options.drain": ("drain_status_url",),
    "Period.min_nodes": ("nodes",),
    "Period.max_nodes": ("nodes",),
    "Period.autoscaler": ("nodes",),
}
"""What a key replaces of `BASE` and `BESIDE`."""


class Key(NamedTuple):
    """Describes a key of the page."""

    path: str
    """Of its block, as the page has it."""
    plugin: str
    kind: type[Any]
    field: msgspec.structs.FieldInfo

    @property
    def name(self) -> str:
        """Return the block's type and the key."""
        return f"{self.kind.__name__}.{self.field.encode_name}"


def keys() -> Iterator[Key]:
    """Yield every key of the page."""
    yield from keys_of(Settings, "", "")
    yield from keys_of(AlertRoute, "alerts[]", "log")
    for section, path, _ in PLUGINS:
        for name, options in OPTIONS[section].items():
            yield from keys_of(options, path, name)


def keys_of(kind: type[Any], path: str, plugin: str) -> Iterator[Key]:
    """Yield the keys of a block and of the blocks in it."""
    for field in msgspec.structs.fields(kind):
        yield Key(path, plugin, kind, field)
        inner, many = block_of(types.type_info(field.type))
        if inner is not None:
            yield from keys_of(inner, f"{path}.{field.encode_name}{many}".lstrip("."), plugin)


ALL: Final = tuple(keys())


def test_every_key_has_an_example() -> None:
    """The page has as many rows as keys are tried below, and an example in each."""
    page = settings_page(OPTIONS)
    rows = re.findall(r"^\| (`\w+`) \|.*\| (`.*?`) \| .*? \|$", page, re.MULTILINE)
    assert len(rows) == len(ALL) > 500


def test_every_example_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who copies an example from the page has a configuration that loads."""
    for name in re.findall(r"\$\{(\w+)\}", settings_page(OPTIONS)):
        monkeypatch.setenv(name, "0123456789abcdef")
    file, refused = tmp_path / "navarch.yaml", dict[str, str]()
    for _, block in groupby(ALL, key=lambda each: (each.path, each.plugin)):
        refused |= refused_of(file, list(block))
    assert not refused


def refused_of(file: Path, block: list[Key]) -> dict[str, str]:
    """Keys of a block whose example is refused, and why: half by half, as some exclude others."""
    file.write_text(json.dumps(configuration(block)))
    try:
        load(file)
    except ConfigurationError as error:
        if len(block) == 1:
            return {f"{block[0].path} {block[0].plugin} {block[0].name}": str(error)}
        half = len(block) // 2
        return refused_of(file, block[:half]) | refused_of(file, block[half:])
    return {}


def test_schema_has_the_examples() -> None:
    """An editor offers the same, in the pools too."""
    schema = settings_schema(OPTIONS)
    assert schema["$defs"]["pool"]["properties"]["region"]["examples"] == ["us-east-1"]
    assert schema["properties"]["nats"]["properties"]["replicas"]["examples"] == [3]


def test_plugin_of_another_package_says_its_own_examples() -> None:
    """Examples are in msgspec's metadata; one of another setting's type does not count."""

    class Options(msgspec.Struct):
        site: Annotated[str, msgspec.Meta(examples=["west"])] = ""
        user: int = 0

    site, user = msgspec.structs.fields(Options)
    assert example_of(Options, site) == "west"
    assert example_of(Options, user) is None


def load(file: Path) -> None:
    """Load a file and the options of the plugins that it names."""
    settings = load_settings(file)
    loaded_options(settings, file)
    for spec in settings.pools.values():
        for group, built_in, options in (
            (AUTOSCALER_PLUGINS, AUTOSCALERS, spec.autoscaling),
            (METRICS_SOURCE_PLUGINS, SOURCES, spec.metrics),
        ):
            if options is not None:
                rest = {key: value for key, value in options.items() if key != "type"}
                plugin = PluginSettings(type=options["type"], options=rest)
                load_plugin(group, plugin, file, built_in, "pool")


def configuration(keys: list[Key]) -> dict[str, Any]:
    """A configuration with some keys' examples in their block, and what the block needs besides."""
    whole: dict[str, Any] = deepcopy(dict(BASE))
    path, plugin, kind, _ = keys[0]
    if plugin:
        section, top = next((each, here) for each, here, _ in PLUGINS if path.startswith(here))
        block = at(whole, "", top, plugin)
        block["type"] = plugin
        if path != top:
            fill(block, OPTIONS[section][plugin])
    block = at(whole, "", path, plugin)
    for key in keys:
        for each in EXCLUDES.get(key.name, ()):
            block.pop(each, None)
        block |= NEEDS.get(key.name, {})
    block |= {key.field.encode_name: example_of(kind, key.field) for key in keys}
    fill(block, kind)
    if path.startswith("pools.NAME.providers"):
        del whole["pools"]["training"]["provider"]
    if path == "pools.NAME.rack":
        whole["pools"]["training"] |= WHOLE_RACKS
    if path.startswith("notifier.drain"):
        del whole["notifier"]["drain_status_url"]
    return whole


def fill(block: dict[str, Any], kind: type[Any]) -> None:
    """Give a block the keys that it requires."""
    for field in msgspec.structs.fields(kind):
        if field.required:
            block.setdefault(field.encode_name, deepcopy(example_of(kind, field)))


def at(block: dict[str, Any], above: str, path: str, plugin: str) -> dict[str, Any]:
    """The block at a path below `above`, made where it is missing."""
    first, _, rest = path.partition(".")
    if not first:
        return block
    name = first.removesuffix("[]")
    if name == "NAME":
        name = "training" if above == "pools" else "tried"
    found = block.setdefault(name, {})
    if first.endswith("[]"):
        found = block[name] = found or [{}]
        found = found[0]
    here = f"{above}.{first}".lstrip(".")
    for key, value in BESIDE.get((here, plugin), {}).items():
        found.setdefault(key, value)
    return at(found, here, rest, plugin)
