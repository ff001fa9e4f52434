"""Paths of a configuration are beside its file, wherever the command runs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.settings import PATH_MARK, NatsSettings, Settings
from services.cli.plugin_options import known_options
from services.health_monitor.rules.policy_file import policy_path
from services.settings.setting_paths import resolve_paths
from services.settings.settings_file import load_settings

ENDINGS = ("_file", "kubeconfig", "inventory", "directory")
PATHS = [
    (section, name, kind, field.encode_name)
    for section, plugins in known_options().items()
    for name, kind in plugins.items()
    for field in msgspec.structs.fields(kind)
    if field.encode_name.endswith(ENDINGS)
]


@pytest.mark.parametrize(("section", "name", "kind", "key"), PATHS)
def test_a_plugins_path_is_beside_the_configuration(
    section: str, name: str, kind: type[Any], key: str, tmp_path: Path
) -> None:
    """Every option that names a file is one, not a text that the current directory completes."""
    field = next(each for each in msgspec.structs.fields(kind) if each.encode_name == key)
    options = msgspec.defstruct("Options", [(key, field.type)])(**{key: "here/it"})
    resolved = resolve_paths(options, tmp_path)
    assert getattr(resolved, key) == f"{tmp_path}/here/it", f"{section}: {name}"


@pytest.mark.parametrize(
    ("said", "resolved"),
    [("here/it", "{file}/here/it"), ("../it", "{file}/../it"), ("/srv/it", "/srv/it")],
)
def test_the_configurations_own_paths_are_beside_it(
    said: str, resolved: str, tmp_path: Path
) -> None:
    """`data_dir`, the bus's files and a pool's key are found from the file, not from the shell."""
    nats = [
        each.encode_name
        for each in msgspec.structs.fields(NatsSettings)
        if PATH_MARK in str(each.type)
    ]
    assert len(nats) >= 7
    file = tmp_path / "navarch.yaml"
    pool = "provider: local, instance_type: x, min_nodes: 0, max_nodes: 1"
    pool = f"{pool}, ssh_private_key_path: {said}"
    keys = "".join(f"  {key}: {said}\n" for key in nats)
    file.write_text(
        f"data_dir: {said}\nproviders: {{local: {{}}}}\npools: {{a: {{{pool}}}}}\nnats:\n{keys}",
        encoding="utf-8",
    )
    settings = load_settings(file, {})
    spec = settings.pools["a"]
    wanted = resolved.format(file=tmp_path)
    assert settings.data_dir == wanted
    assert spec.ssh_private_key_path == wanted
    assert {key: getattr(settings.nats, key) for key in nats} == dict.fromkeys(nats, wanted)


def test_an_omitted_data_dir_is_beside_the_file(tmp_path: Path) -> None:
    """The default too: two commands in two directories use the same fleet."""
    file = tmp_path / "navarch.yaml"
    file.write_text("providers: {local: {}}\n", encoding="utf-8")
    assert load_settings(file, {}).data_dir == str(tmp_path / Settings().data_dir)


@pytest.mark.parametrize(
    ("said", "found"),
    [("p.yaml", "/etc/navarch/p.yaml"), ("~/p.yaml", "/home/op/p.yaml"), ("/p.yaml", "/p.yaml")],
)
def test_the_health_policy_is_beside_it_too(
    said: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy's path is read as every other: `~` is the home directory."""
    monkeypatch.setenv("HOME", "/home/op")
    assert policy_path(said, Path("/etc/navarch/navarch.yaml")) == Path(found)
