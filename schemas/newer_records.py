"""Reads records of a newer release, as far as this release knows their fields. Pure.

A pool's settings are read strictly, so that a typing error in a configuration does not pass. They
are also part of its record, where a key that is not known is of a newer release: during an upgrade
both read and write it.
"""

from functools import cache
from typing import Any

from msgspec import inspect


def without_unknown(value: Any, kind: type) -> Any:
    """A decoded JSON value without the keys that `kind` does not have."""
    return _known(value, _described(kind))


@cache
def _described(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def _known(value: Any, kind: inspect.Type) -> Any:
    match kind:
        case inspect.Metadata():
            return _known(value, kind.type)
        case inspect.UnionType():
            for each in kind.types:
                value = _known(value, each)
        case inspect.StructType() if isinstance(value, dict):
            fields = {each.encode_name: each.type for each in kind.fields}
            tag = {kind.tag_field} if kind.tag_field else set()
            return {
                name: _known(each, fields[name]) if name in fields else each
                for name, each in value.items()
                if name in fields or name in tag
            }
        case inspect.DictType() if isinstance(value, dict):
            return {name: _known(each, kind.value_type) for name, each in value.items()}
        case inspect.VarTupleType() | inspect.ListType() if isinstance(value, list):
            return [_known(each, kind.item_type) for each in value]
    return value
