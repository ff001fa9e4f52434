"""Describes a kind's interface to the boundary, and says where a plugin is from."""

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final

from schemas.plugin_kinds import PluginKind
from services.primitives.plugin_answers import declared_type

OWN_PACKAGES: Final = frozenset({"agent", "navarch", "schemas", "services"})
ERROR_CHARS_MAX: Final = 300


@dataclass(frozen=True, kw_only=True)
class PluginContract:
    """Describes the methods of one kind of plugins."""

    kind: PluginKind
    protocols: tuple[type[Any], ...]
    """They declare the methods, and with them the types of their answers."""
    errors: tuple[type[BaseException], ...] = ()
    """Exceptions that are answers: the plugin works."""
    passes: bool = False
    """Any other exception is for the caller too, which repeats the call by its own rules."""
    waits: frozenset[str] = frozenset()
    """Methods that return when something happens: they have no deadline."""
    checks: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Method -> what checks its answer, where a type does not say it."""

    @cached_property
    def _declared(self) -> dict[str, Any]:
        return {}

    def declared(self, method: str) -> Any:
        """Return the type that a method is declared to return; Any: no protocol has it."""
        if method not in self._declared:
            found = next((each for each in self.protocols if hasattr(each, method)), None)
            self._declared[method] = Any if found is None else declared_type(found, method)
        return self._declared[method]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSource:
    """Says where a plugin is from, as operators read it."""

    name: str
    """As the configuration names it."""
    about: str = ""
    """What it is used for: `pool training`."""
    package: str = ""
    version: str = ""

    def text(self, kind: PluginKind) -> str:
        """Return `the autoscaler acme (acme-navarch 1.2)`."""
        package = f" ({self.package} {self.version}".rstrip() + ")" if self.package else ""
        return f"the {kind.name} {self.name}{package}"


def is_outside(plugin: Any) -> bool:
    """Return whether a plugin's class is another package's than Navarch."""
    return type(plugin).__module__.partition(".")[0] not in OWN_PACKAGES


def source_of(plugin: Any, kind: PluginKind, name: str, about: str = "") -> PluginSource:
    """Find the package of a plugin: by its entry point, else by its module."""
    if not is_outside(plugin):
        return PluginSource(name=name, about=about)
    from importlib.metadata import entry_points, packages_distributions, version  # noqa: PLC0415

    module = type(plugin).__module__.partition(".")[0]
    for each in entry_points(group=kind.group, name=name):
        if each.dist is not None:
            return PluginSource(
                name=name, about=about, package=each.dist.name, version=each.dist.version
            )
    found = packages_distributions().get(module) or [""]
    if not found[0]:
        return PluginSource(name=name, about=about, package=f"module {module}")
    return PluginSource(name=name, about=about, package=found[0], version=version(found[0]))


def error_text(error: BaseException, plugin: Any) -> str:
    """Return what a plugin raised, with the last line of its own code."""
    said = str(error)[:ERROR_CHARS_MAX]
    text = type(error).__name__ + (f": {said}" if said else "")
    found = sys.modules.get(type(plugin).__module__)
    own = getattr(found, "__file__", None) or ""
    frames = traceback.extract_tb(error.__traceback__)
    folder = str(PurePath(own).parent)
    its = [each for each in frames if own and each.filename.startswith(folder)]
    if its and is_outside(plugin):
        text += f" ({PurePath(its[-1].filename).name}:{its[-1].lineno})"
    return text
