"""Finds a plugin by entry-point name or by `module:Class`, and checks its options.

A plugin is a class with an inner msgspec struct `Options`; it is constructed with `options=` and
what the service gives to every plugin of its kind. Nothing needs to be registered with the core.

`module:Class` imports a module, so only this process's own configuration may name one. Settings
that were received over the bus name installed plugins by entry point.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from schemas.settings import PluginSettings
from services.primitives.errors import ConfigurationError, ConfigurationErrors
from services.primitives.redaction import register_secrets
from services.settings.configuration_text import read_text
from services.settings.dialect import translate
from services.settings.references import resolve_options
from services.settings.setting_paths import resolve_paths
from services.settings.yaml_document import Document, Path_, convert, path_of, read_document

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

NO_FILE: Final = "(built-in configuration)"
FILES_MAX: Final = 4
"""Parsed texts that are kept."""

_registered: Final[dict[tuple[str, str], type[Any]]] = {}
"""Group and name -> the class, of plugins of the program that runs the services itself."""

Origin = Literal["section", "pool", "bus"]
"""Where a plugin's settings are from: a section of the configuration, whose `${NAME}` are resolved;
a pool of the configuration, whose `${NAME}` are resolved here; or a message or record."""
ENTRY_POINT_ONLY: Final = (
    "module:Class is read only from a service's own configuration, and this was received over the "
    "bus; install the plugin's package in every service and write its entry-point name"
)


def load_plugin(
    group: str,
    settings: PluginSettings,
    file: Path | None,
    built_in: Mapping[str, type[Any]] = MappingProxyType({}),
    origin: Origin = "section",
) -> tuple[type[Any], Any]:
    """Return the plugin's class and its options; raise ConfigurationError saying what is known.

    `file` is the configuration that named it, for lines in error messages; None: there is none.
    `built_in`: names that need no entry point.
    """
    document = _document(file)
    path = path_of(settings.path)
    if origin == "bus" and ":" in settings.type:
        raise document.error((*path, "type"), f"{settings.type}: {ENTRY_POINT_ONLY}")
    found = _find(group, settings.type, document, path, built_in)
    kind = getattr(found, "Options", None)
    if kind is None:
        raise document.error((*path, "type"), f"{settings.type} has no `Options` struct")
    given = settings.options
    if origin == "pool":
        given = resolve_options(document, given, path, os.environ)
    options = convert(document, given, kind, path)
    register_secrets(options)
    return found, options if file is None else resolve_paths(options, file.parent)


def make_plugin(
    group: str,
    settings: PluginSettings,
    file: Path | None,
    built_in: Mapping[str, type[Any]] = MappingProxyType({}),
    origin: Origin = "section",
    **given: Any,
) -> Any:
    """Construct the plugin with its options and `given`.

    Whatever its constructor raises becomes a ConfigurationError with the plugin's place.
    """
    kind, options = load_plugin(group, settings, file, built_in, origin)
    try:
        return kind(options=options, **given)
    except ConfigurationError as error:
        raise locate(error, file) from error
    except Exception as error:
        problem = f"{settings.type} cannot be constructed: {str(error) or type(error).__name__}"
        raise _document(file).error((*path_of(settings.path), "type"), problem) from error


def locate(error: ConfigurationError, file: Path | None) -> ConfigurationError:
    """Add the configuration's file and line to an error that names only the key."""
    if file is None or error.file:
        return error
    document = _document(file)
    found = [document.error(path_of(each.key), each.problem) for each in error.errors]
    return found[0] if len(found) == 1 else ConfigurationErrors(found)


def setting_error(key: str, problem: str, file: Path | None) -> ConfigurationError:
    """The error of one setting, with file and line where there is a file."""
    return locate(ConfigurationError(problem, key=key), file)


def plugin_class(group: str, settings: PluginSettings, file: Path | None) -> type[Any]:
    """Return the plugin's class alone, whatever its options lack."""
    found = _find(group, settings.type, _document(file), path_of(settings.path), {})
    if getattr(found, "Options", None) is None:
        raise ConfigurationError(f"{settings.type} has no `Options` struct")
    return found


@contextmanager
def registered(group: str, name: str, plugin: type[Any]) -> Iterator[None]:
    """Have a name mean a class of this program while the block runs, as an entry point would.

    Raise ConfigurationError where the name is taken.
    """
    if (group, name) in _registered or name in _entry_points(group, tuple(sys.path)):
        raise ConfigurationError(f"there is a plugin of {group} named {name!r} already")
    _registered[group, name] = plugin
    try:
        yield
    finally:
        del _registered[group, name]


def _document(file: Path | None) -> Document:
    if file is None:
        return Document(NO_FILE, {})
    return _parsed(str(file), read_text(file))


@lru_cache(maxsize=FILES_MAX)
def _parsed(file: str, text: str) -> Document:
    """The document of a text: every plugin of a configuration asks for the same."""
    return translate(read_document(file, text)).document


@cache
def _entry_points(group: str, _: tuple[str, ...]) -> Mapping[str, "EntryPoint"]:
    """Installed plugins of a group, looked up once for each search path."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - keeps command lines quick

    return {each.name: each for each in entry_points(group=group)}


def _find(
    group: str,
    name: str,
    document: Document,
    path: Path_,
    built_in: Mapping[str, type[Any]],
) -> type[Any]:
    if name in built_in:
        return built_in[name]
    if (group, name) in _registered:
        return _registered[group, name]
    known = _entry_points(group, tuple(sys.path))
    try:
        if name in known:
            loaded: type[Any] = known[name].load()
            return loaded
        if ":" in name:
            module, _, attribute = name.partition(":")
            found: type[Any] = getattr(import_module(module), attribute)
            return found
    except (ImportError, AttributeError) as error:
        problem = f"{name} cannot be loaded: {error}"
        if isinstance(error, ModuleNotFoundError):
            problem += "; install its package beside Navarch, or put its folder on PYTHONPATH"
        raise document.error((*path, "type"), problem) from error
    names = sorted({*known, *built_in, *(each for place, each in _registered if place == group)})
    near = "".join(f"did you mean {each!r}? Else " for each in get_close_matches(name, names, 1))
    raise document.error(
        (*path, "type"),
        f"no {group} named {name!r} (known: {', '.join(names) or 'none'}); "
        f"{near}install its package, or write module:Class",
    )
