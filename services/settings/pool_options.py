"""Options of a provider that one of a pool's entries may set otherwise for its own nodes.

A plugin names them as `per_pool`. They are checked with the configuration, and again where a launch
uses them, which may be long after.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.duration import decode_hook
from schemas.settings import PROVIDER_PLUGINS, PluginSettings, PoolSpec
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import plugin_class
from services.settings.provider_choices import Problem


def option_problem(spec: PoolSpec, providers: Mapping[str, PluginSettings]) -> Problem | None:
    """Options of an entry that its provider has not, or takes from no pool."""
    for number, each in enumerate(spec.providers):
        if each.options and each.name in providers:
            try:
                plugin = plugin_class(PROVIDER_PLUGINS, providers[each.name], None)
            except ConfigurationError:
                return None  # the provider itself is wrong, which is reported
            known = pool_option_names(plugin)
            for name in sorted(each.options.keys() - known):
                some = ", ".join(sorted(known)) or "none"
                text = f"is no option that a pool may set for {each.name!r} (those are: {some})"
                return ("providers", number, "options", name), text
            try:
                msgspec.convert(each.options, per_pool_type(plugin), dec_hook=decode_hook)
            except ValueError as error:
                return ("providers", number, "options"), str(error)
    return None


def with_pool_options(plugin: type[Any], options: Any, changes: Mapping[str, Any]) -> Any:
    """Return a provider's options with an entry's own; ValueError says what is wrong with them."""
    if not changes:
        return options
    given = msgspec.convert(changes, per_pool_type(plugin), dec_hook=decode_hook)
    found = {name: each for name in changes if (each := getattr(given, name)) is not msgspec.UNSET}
    return msgspec.structs.replace(options, **found)


def pool_option_names(plugin: type[Any]) -> frozenset[str]:
    """Return the names of the options that a plugin takes from pools."""
    found: frozenset[str] = getattr(plugin, "per_pool", frozenset())
    return found


def per_pool_type(plugin: type[Any]) -> type[msgspec.Struct]:
    """Return a struct of these options, each of which may be missing."""
    names = pool_option_names(plugin)
    fields = [
        (each.name, each.type | msgspec.UnsetType, msgspec.UNSET)
        for each in msgspec.structs.fields(plugin.Options)
        if each.name in names
    ]
    return msgspec.defstruct(
        f"{plugin.__name__}PoolOptions", fields, kw_only=True, forbid_unknown_fields=True
    )
