"""Options of a provider that one of a pool's entries may set otherwise for its own nodes. Pure.

A plugin names them as `per_pool`. They are checked with the configuration, and again where a launch
uses them, which may be long after.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.duration import decode_hook


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
