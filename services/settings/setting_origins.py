"""The effective configuration: each value, and where it is from."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from schemas.duration import Duration, written_duration
from schemas.settings import PluginSettings
from services.primitives.redaction import is_secret
from services.settings.settings_file import (
    NATS_VARIABLES,
    PORT_VARIABLE,
    REPLICAS_VARIABLE,
    Configuration,
)
from services.settings.yaml_document import Path_

HIDDEN: Final = "(secret)"
DEFAULT: Final = "default"
NOT_SHOWN: Final[frozenset[Path_]] = frozenset({("defaults",)})
"""Shown with each pool that has them."""
VARIABLES: Final[Mapping[Path_, str]] = {
    ("http", "port"): PORT_VARIABLE,
    ("nats", "replicas"): REPLICAS_VARIABLE,
    **{("nats", key): variable for key, variable in NATS_VARIABLES.items()},
}


class Explained(NamedTuple):
    """Explains where one value comes from."""

    path: Path_
    value: str
    origin: str
    """`line 7`, `line 7, as scaling.cooldown_period`, `default`, or a variable's name."""


def explain(
    configuration: Configuration,
    environment: Mapping[str, str],
    options: Mapping[str, Any],
) -> list[Explained]:
    """Return every effective value; `options` holds those of plugins, with their defaults."""
    walk = _Walk(configuration, environment, options)
    return list(walk.struct((), configuration.settings))


class _Walk:
    def __init__(
        self,
        configuration: Configuration,
        environment: Mapping[str, str],
        options: Mapping[str, Any],
    ) -> None:
        self._document = configuration.document
        self._environment = environment
        self._options = options

    def struct(self, path: Path_, value: msgspec.Struct) -> Iterator[Explained]:
        for field in msgspec.structs.fields(value):
            inside = (*path, field.encode_name)
            if inside in NOT_SHOWN:
                continue
            found = getattr(value, field.name)
            if is_secret(field.type) and found:
                yield Explained(inside, HIDDEN, self._origin(inside))
            else:
                yield from self._value(inside, found)

    def _value(self, path: Path_, value: Any) -> Iterator[Explained]:
        if isinstance(value, PluginSettings):
            yield from self._plugin(path, value)
        elif isinstance(value, msgspec.Struct):
            yield from self.struct(path, value)
        elif path[-1] == "metrics" and isinstance(value, dict):
            options = {key: each for key, each in value.items() if key != "type"}
            yield from self._plugin(
                path, PluginSettings(type=str(value.get("type")), options=options)
            )
        elif isinstance(value, dict) and value:
            for key, each in value.items():
                yield from self._value((*path, key), each)
        elif isinstance(value, tuple) and any(isinstance(each, msgspec.Struct) for each in value):
            for number, each in enumerate(value):
                yield from self._value((*path, number), each)
        else:
            yield Explained(path, _text(value), self._origin(path))

    def _plugin(self, path: Path_, plugin: PluginSettings) -> Iterator[Explained]:
        yield Explained((*path, "type"), plugin.type, self._origin((*path, "type")))
        inside = tuple(plugin.path.split(".")) if plugin.path else path
        options = self._options.get(".".join(map(str, path)))
        if options is None:  # not loaded here: only the names of its options are known to be safe
            for key in plugin.options:
                yield Explained((*inside, key), "…", self._origin((*inside, key)))
        else:
            yield from self.struct(inside, options)

    def _origin(self, path: Path_) -> str:
        if (variable := VARIABLES.get(path)) and self._environment.get(variable):
            return variable
        path = tuple(int(part) if str(part).isdecimal() else part for part in path)
        written = self._document.written(path)
        if self._is_written(path):
            line = f"line {self._document.line(path)}"
            return line if written == path else f"{line}, as {'.'.join(map(str, written))}"
        return DEFAULT

    def _is_written(self, path: Path_) -> bool:
        value: Any = self._document.value
        for number, part in enumerate(path):
            if isinstance(value, str):
                return number == len(path) - 1 and part == "type"  # a plugin by its name alone
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return ("defaults", *path[2:]) == self._document.written(path)
        return True


def _text(value: Any) -> str:
    if isinstance(value, Duration):
        return written_duration(value)
    return msgspec.json.encode(value, enc_hook=str).decode()
