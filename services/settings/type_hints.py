"""What a struct's types say of a place in it: for errors that name what could be written there."""

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin


def _bare(kind: Any) -> Any:
    """A type without its bounds, and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if isinstance(kind, UnionType):
        others = [each for each in get_args(kind) if each is not NoneType]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def kind_at(kind: Any, path: Iterable[str | int]) -> Any:
    """The type at a path in a struct; None where the struct does not say."""
    for part in path:
        kind = _bare(kind)
        if isinstance(part, int):
            kind = next(iter(get_args(kind)), None)
            continue
        hints = getattr(kind, "__annotations__", {})
        for base in getattr(kind, "__mro__", ()):
            hints = getattr(base, "__annotations__", {}) | hints
        kind = hints.get(part, None)
    return _bare(kind)


def words_of(kind: Any) -> list[str]:
    """The words that a Literal allows, or a union with one."""
    if isinstance(kind, str):
        return [kind] if kind else []
    return [word for part in get_args(kind) for word in words_of(part)]
