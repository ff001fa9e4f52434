"""docs/configuration.md: every key of the configuration with its type, default and meaning (pure).

navarch config schema --markdown > docs/configuration.md
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from schemas.duration import Duration
from schemas.settings import AlertRoute, PluginSettings, Settings
from services.settings.setting_values import as_yaml, default_of, example_of
from services.settings.settings_schema import SCALARS, Plugins, attribute_docs

_INTRODUCTION: Final = """\
# The configuration

This page is written by `navarch config schema --markdown > docs/configuration.md` from the code;
change the docstrings of the settings, not this. One YAML file configures every service:

```yaml
providers:
  simulated: {type: local}
pools:
  training:
    provider: simulated
    instance_type: fake-8x-h100
    min_nodes: 2
    max_nodes: 4
```

`navarch config validate FILE` names every error with its line, `navarch config explain FILE` prints
every effective value with its origin. A duration is `30s`, `10m`, `1h30m` or a number of seconds;
paths are relative to the file. Keys of `defaults:` apply to every pool that does not set them. A
default of `required` has to be in the file. An example is a value in YAML; some need another key
beside them, which the meaning names.
"""
PLUGINS: Final = (
    ("providers", "providers.NAME", "A cloud, or machines of your own"),
    ("notifier", "notifier", "The workload system; more under `notifiers.NAME`"),
    ("authenticators", "authenticators.NAME", "A way to know the gateway's callers"),
    ("alerts", "alerts[]", "A channel, beside the keys of its route"),
    ("autoscaling", "pools.NAME.autoscaling", "How the pool follows its load"),
    ("metrics", "pools.NAME.metrics", "Where an autoscaler reads the load"),
)


def settings_page(plugins: Plugins) -> str:
    """Return the text of docs/configuration.md, for these plugins."""
    parts = [_INTRODUCTION, *_blocks(Settings, ""), *_blocks(AlertRoute, "alerts[]")]
    for section, path, text in PLUGINS:
        for name, options in sorted(plugins.get(section, {}).items()):
            title = f"## `{path}`: `type: {name}`\n\n{text}.\n"
            parts.append(f"{title}\n{_table(options)}" if _fields(options) else title)
            parts += _plugin_blocks(options, path, name)
    return "\n".join(parts)


def _plugin_blocks(options: type[Any], path: str, name: str) -> Iterator[str]:
    """A section for each block of keys in a plugin's options, which belongs to its type alone."""
    for field in _fields(options):
        inner, many = block_of(types.type_info(field.type))
        if inner is not None:
            for block in _blocks(inner, f"{path}.{field.encode_name}{many}"):
                yield block.replace("\n", f": `type: {name}`\n", 1)


def _blocks(kind: type[Any], path: str) -> Iterator[str]:
    """A section for this block, then one for each block in it."""
    title = f"`{path}`" if path else "Top level"
    words = " ".join((kind.__doc__ or "").split())
    yield f"## {title}\n\n{words}\n\n{_table(kind)}"
    for field in _fields(kind):
        inner, many = block_of(types.type_info(field.type))
        if inner is not None:
            below = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _blocks(inner, f"{below}{many}")


def _fields(kind: type[Any]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def block_of(info: Any) -> tuple[type[Any] | None, str]:
    """The block of keys that a value is or consists of, and where: `[]`, `.NAME`."""
    match info:
        case types.StructType() if not issubclass(info.cls, PluginSettings):
            return info.cls, ""
        case types.UnionType():
            found = (block_of(each) for each in info.types)
            return next((each for each in found if each[0] is not None), (None, ""))
        case types.VarTupleType():
            inner, below = block_of(info.item_type)
            return inner, f"[]{below}"
        case types.DictType():
            inner, below = block_of(info.value_type)
            return inner, f".NAME{below}"
        case types.Metadata():
            return block_of(info.type)
        case _:
            return None, ""


def _table(kind: type[Any]) -> str:
    docs = attribute_docs(kind)
    rows = "".join(
        f"| `{each.encode_name}` | {_type(types.type_info(each.type))} | {_default(each)} "
        f"| {_example(kind, each)} | {_cell(docs.get(each.name) or _words_of(each))} |\n"
        for each in _fields(kind)
    )
    return f"| key | type | default | example | meaning |\n|---|---|---|---|---|\n{rows}"


def _words_of(field: msgspec.structs.FieldInfo) -> str:
    """What the block behind a key says of itself, for a key that says nothing."""
    inner, _ = block_of(types.type_info(field.type))
    return (inner.__doc__ or "").strip().split("\n")[0] if inner is not None else ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    found = default_of(field)
    if found is None or found in ("", [], {}):
        return ""
    try:
        return f"`{_cell(found if isinstance(found, str) else json.dumps(found))}`"
    except TypeError:
        return ""


def _example(kind: type[Any], field: msgspec.structs.FieldInfo) -> str:
    found = example_of(kind, field)
    return "" if found is None else f"`{_cell(as_yaml(found))}`"


def _type(info: Any) -> str:
    match info:
        case types.Metadata():
            return _type(info.type)
        case types.StructType():
            return "plugin" if issubclass(info.cls, PluginSettings) else "section"
        case types.UnionType():
            names = (_type(each) for each in info.types)
            return " or ".join(dict.fromkeys(each for each in names if each != "null"))
        case types.VarTupleType() | types.ListType():
            return f"list of {_type(info.item_type)}"
        case types.DictType():
            return f"map of {_type(info.value_type)}"
        case types.LiteralType():
            return " or ".join(f"`{each}`" for each in info.values if each != "")
        case types.EnumType():
            return " or ".join(f"`{each.value}`" for each in info.cls)
        case types.CustomType() if info.cls is Duration:
            return "duration"
        case _:
            return _bounded(info)


def _bounded(info: Any) -> str:
    low, high = getattr(info, "ge", None), getattr(info, "le", None)
    limits = f", {low} to {high}" if low is not None and high is not None else ""
    least = f", at least {low}" if low is not None and high is None else ""
    return f"{SCALARS.get(type(info), 'any')}{limits}{least}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
