"""The JSON Schema of the configuration, and what each setting means: for editors and docs."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from schemas.duration import Duration
from schemas.event_sink_settings import EventSinkSpec
from schemas.settings import AlertRoute, PluginSettings, PoolSpec, Settings
from services.settings.setting_values import default_of, example_of

DURATION: Final = {"type": ["string", "number"], "examples": ["30s", "10m", "1h30m"]}
NAMED_PLUGINS: Final = frozenset({"strategy", "remediation"})
"""Settings of a plugin that may be its name alone."""
BOUNDS: Final = (
    ("ge", "minimum"),
    ("le", "maximum"),
    ("gt", "exclusiveMinimum"),
    ("lt", "exclusiveMaximum"),
    ("min_length", "minLength"),
    ("max_length", "maxLength"),
    ("pattern", "pattern"),
)
SCALARS: Final[Mapping[type[Any], str]] = {
    types.BoolType: "boolean",
    types.IntType: "integer",
    types.FloatType: "number",
    types.StrType: "string",
    types.NoneType: "null",
    types.DateTimeType: "string",
}
Plugins = Mapping[str, Mapping[str, type[Any]]]
"""Section (`providers`, `notifier`, `alerts`, `autoscaling`) -> type -> its options."""


def settings_schema(plugins: Plugins) -> dict[str, Any]:
    """Return the schema of a configuration file."""
    schema = _struct(Settings)
    properties = schema["properties"]
    properties["pools"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/pool"}}
    sink = _struct(EventSinkSpec)
    properties["event_sinks"] = {"type": "object", "additionalProperties": sink}
    properties["defaults"] = {"$ref": "#/$defs/pool"}
    named = ("providers", "notifier", "alerts", "authenticators")
    one = {key: _plugin(plugins.get(key, {})) for key in named}
    for key in ("providers", "authenticators"):
        properties[key] = {"type": "object", "additionalProperties": one[key]}
    properties["notifiers"] = {"type": "object", "additionalProperties": one["notifier"]}
    properties["notifier"] = one["notifier"]
    route = _struct(AlertRoute)["properties"]
    items = _plugin(plugins.get("alerts", {}), beside=route)
    properties["alerts"] = {"type": "array", "items": items}
    for key, text in attribute_docs(Settings).items():
        properties[key].setdefault("description", text)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Navarch configuration",
        "$defs": {"pool": _pool(plugins)},
        **schema,
    }


def _pool(plugins: Plugins) -> dict[str, Any]:
    """A pool; what it needs may be in `defaults`, so nothing is required of it alone."""
    pool = {key: each for key, each in _struct(PoolSpec).items() if key != "required"}
    for key in ("autoscaling", "metrics"):
        found = _plugin(plugins.get(key, {}), needs_type=True)
        pool["properties"][key] |= {"anyOf": [found, {"type": "null"}]}
    return pool


def _plugin(
    known: Mapping[str, type[Any]],
    *,
    beside: Mapping[str, Any] | None = None,
    needs_type: bool = False,
) -> dict[str, Any]:
    """A plugin with its options; those of an unknown type are not checked."""
    schema: dict[str, Any] = {"type": "object", "properties": {"type": {"type": "string"}}}
    if needs_type:
        schema["required"] = ["type"]
    if known:
        schema["properties"]["type"] |= {"examples": sorted(known)}
    choices = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": ["type"]},
            "then": {"properties": {**_struct(options)["properties"], **(beside or {})}},
        }
        for name, options in sorted(known.items())
    ]
    return schema | ({"allOf": choices} if choices else {})


def _struct(kind: type[Any]) -> dict[str, Any]:
    docs, properties, required = attribute_docs(kind), dict[str, Any](), list[str]()
    for field in msgspec.structs.fields(kind):
        schema = _schema(types.type_info(field.type))
        if field.name in NAMED_PLUGINS and isinstance(field.default, PluginSettings):
            schema = {"anyOf": [{"type": "string"}, _plugin({}, needs_type=True)]}
        if text := docs.get(field.name):
            schema = {**schema, "description": text}
        if field.required:
            required.append(field.encode_name)
        elif (default := default_of(field)) is not None:
            schema = {**schema, "default": default}
        if "examples" not in schema and (example := example_of(kind, field)) is not None:
            schema = {**schema, "examples": [example]}
        properties[field.encode_name] = schema
    found: dict[str, Any] = {"type": "object", "properties": properties}
    found |= {"required": required} if required else {}
    closed = kind.__struct_config__.forbid_unknown_fields
    return found | ({"additionalProperties": False} if closed else {})


def _schema(info: Any) -> dict[str, Any]:
    match info:
        case types.Metadata():
            return _schema(info.type)
        case types.StructType():
            return _plugin({}) if issubclass(info.cls, PluginSettings) else _struct(info.cls)
        case types.UnionType():
            return {"anyOf": [_schema(each) for each in info.types]}
        case types.VarTupleType() | types.ListType():
            return {"type": "array", "items": _schema(info.item_type)}
        case types.DictType():
            return {"type": "object", "additionalProperties": _schema(info.value_type)}
        case types.LiteralType():
            return {"enum": list(info.values)}
        case types.CustomType() if info.cls is Duration:
            return dict(DURATION)
        case _:
            name = SCALARS.get(type(info))
            return {"type": name, **_bounds(info)} if name else {}


def _bounds(info: Any) -> dict[str, Any]:
    found = ((word, getattr(info, key, None)) for key, word in BOUNDS)
    return {word: value for word, value in found if value is not None}


def attribute_docs(kind: type[Any]) -> Mapping[str, str]:
    """Attribute -> its docstring, one line each, of a struct and those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= dict(_docs(base))
    return found


def _docs(kind: type[Any]) -> Iterator[tuple[str, str]]:
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return
    body = _class_in(source)
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        match text:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield field.target.id, " ".join(words.split())
            case _:
                continue


@cache
def _class_in(source: str) -> ast.ClassDef:
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    return body
