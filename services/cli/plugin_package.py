"""Writes the package of a new plugin: a plugin that works, and a test that runs its kind's suite.

The texts are in `plugin_templates`: what is in every package, and a plugin and a test of each kind.
"""

import keyword
import re
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from schemas.plugin_kinds import KINDS, PluginKind
from services.primitives.errors import NavarchError

NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
NAME_CHARS_MAX: Final = 50
KIND_NAMES: Final = {each.name.replace(" ", "-"): each for each in KINDS}
"""As the command line spells a kind -> the kind."""


def kind_named(text: str) -> PluginKind:
    """Return a kind by its name; NavarchError with those that there are."""
    if found := KIND_NAMES.get(text):
        return found
    raise NavarchError(f"no kind of plugins {text!r}; there are {', '.join(KIND_NAMES)}")


def check_name(name: str, kind: PluginKind, taken: frozenset[str]) -> None:
    """Raise NavarchError unless a new plugin of the kind may have the name. Pure."""
    if not NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise NavarchError(
            f"{name!r} is no name of a package: write lower case, digits and dashes, a letter "
            f"first, {NAME_CHARS_MAX} characters at most"
        )
    if name in taken:
        raise NavarchError(f"the {kind.name} {name!r} is there already; write another name")


def package_files(kind: PluginKind, name: str) -> dict[str, str]:
    """Return the files of the package -> their texts."""
    base = kind.name.replace(" ", "_")
    module = f"navarch_{name.replace('-', '_')}"
    plugin = "".join(each.capitalize() for each in name.split("-"))
    values = {
        "name": name,
        "kind": kind.name,
        "group": kind.group,
        "module": module,
        "plugin": f"{plugin}Plugin" if keyword.iskeyword(plugin) else plugin,
    }
    texts = {
        "pyproject.toml": "pyproject",
        "README.md": "readme",
        f"{module}.py": base,
        f"test_{module}.py": f"{base}_test",
    }
    return {file: _template(text).substitute(values) for file, text in texts.items()}


def _template(name: str) -> Template:
    file = files(__package__).joinpath("plugin_templates", f"{name}.txt")
    return Template(file.read_text(encoding="utf-8"))


def write_package(texts: dict[str, str], directory: Path) -> None:
    """Write the files into a new directory; NavarchError where there is one already."""
    try:
        directory.mkdir(parents=True)
        for file, text in texts.items():
            (directory / file).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise NavarchError(f"{directory} is there already; name another --directory") from None
    except OSError as error:
        raise NavarchError(f"{directory} cannot be written: {error.strerror or error}") from error
