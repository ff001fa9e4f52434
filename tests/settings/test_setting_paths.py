"""Paths of a configuration are beside its file, wherever the command runs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.cli.plugin_options import known_options
from services.settings.setting_paths import resolve_paths

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
