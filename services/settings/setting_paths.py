"""Paths of a configuration: relative ones are beside its file, and `~` is the home directory. Pure.

Options that are paths have the type `FilePath`, in settings and in plugins.
"""

from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec

from schemas.settings import PATH_MARK


def resolve_path(path: str, directory: Path) -> str:
    """A path of a configuration in `directory`; empty stays empty."""
    return str(directory / Path(path).expanduser()) if path else path


def resolve_paths(settings: Any, directory: Path) -> Any:
    """The settings, or a plugin's options, with every path in them resolved."""
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        if isinstance(value, str) and _is_path(field.type):
            changes[field.name] = resolve_path(value, directory)
        elif isinstance(value, msgspec.Struct):
            changes[field.name] = resolve_paths(value, directory)
    return msgspec.structs.replace(settings, **changes) if changes else settings


def _is_path(kind: Any) -> bool:
    if get_origin(kind) is not Annotated:
        return False
    marks = (each.extra for each in get_args(kind)[1:] if isinstance(each, msgspec.Meta))
    return any((mark or {}).get(PATH_MARK) for mark in marks)
