"""Reads the YAML configuration; every error names file, line, key and the remedy.

All that is wrong is reported at once. `dialect` has translated older spellings before.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from schemas.names import InvalidNameError, pool_name
from schemas.settings import PluginSettings, PoolSpec, Settings
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secrets
from services.settings.address_validation import address_problems, bus_urls
from services.settings.alert_routes import alert_settings, event_sinks
from services.settings.configuration_text import read_text
from services.settings.dialect import Note, translate
from services.settings.plain_values import agent_value_problems
from services.settings.pool_validation import budget_problems, own_problems, reference_problems
from services.settings.problem_list import ProblemList
from services.settings.provider_choices import Problem, folded, with_defaults
from services.settings.rack_validation import with_rack
from services.settings.references import resolve_references
from services.settings.setting_paths import resolve_path, resolve_paths
from services.settings.stored_pools import request_problem
from services.settings.window_validation import interval_problems
from services.settings.yaml_document import Document, Path_, convert_all, read_document

NATS_VARIABLES: Final = {
    "url": "NAVARCH_NATS_URL",
    "creds_file": "NAVARCH_NATS_CREDS_FILE",
    "agent_signing_file": "NAVARCH_NATS_AGENT_SIGNING_FILE",
    "tls_ca_file": "NAVARCH_NATS_TLS_CA_FILE",
    "revocation_file": "NAVARCH_NATS_REVOCATION_FILE",
}
"""Key of `nats` -> its variable."""
REPLICAS_VARIABLE: Final = "NAVARCH_NATS_REPLICAS"
REPLICAS_MAX: Final = 5
PORT_VARIABLE: Final = "NAVARCH_HTTP_PORT"
PORT_MAX: Final = 65_535
CREDENTIALS_IN_URL: Final = (
    "has credentials in it, and new nodes, logs and messages have the URL; write "
    "`nats.creds_file`, or `nats.user` and `password: ${NATS_PASSWORD}`, and the URL without them"
)
DEFAULTS: Final = "providers: {local: {}}"
"""Where no file is named: no pool, and a provider to try Navarch with."""
SECTIONS: Final = ("notifier", "alerts")
"""Those that are read before the rest."""
SIZE: Final = {"min_nodes": 0, "max_nodes": 0}
NO_PLUGIN: Final = PluginSettings(type="")


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """The settings with those of the environment; ConfigurationError where one is wrong."""
    named = {key: environment.get(variable) for key, variable in NATS_VARIABLES.items()}
    given: dict[str, Any] = {key: value for key, value in named.items() if value}
    if replicas := environment.get(REPLICAS_VARIABLE):
        if not replicas.isdecimal() or not 0 < int(replicas) <= REPLICAS_MAX:
            problem = f"{replicas} is no number of replicas: use 1 to {REPLICAS_MAX}"
            raise ConfigurationError(problem, key=REPLICAS_VARIABLE)
        given["replicas"] = int(replicas)
    changes: dict[str, Any] = {"nats": msgspec.structs.replace(settings.nats, **given)}
    if port := environment.get(PORT_VARIABLE):
        if not port.isdecimal() or int(port) > PORT_MAX:
            problem = f"{port} is not a port: use 0 to {PORT_MAX}"
            raise ConfigurationError(problem, key=PORT_VARIABLE)
        changes["http"] = msgspec.structs.replace(settings.http, port=int(port))
    settings = msgspec.structs.replace(settings, **changes)
    for section, key, urls in bus_urls(settings):
        if any("@" in _host(url) for url in urls.split(",")):
            raise ConfigurationError(CREDENTIALS_IN_URL, key=f"{section}.{key}")
    return settings


def _host(url: str) -> str:
    try:
        return urlsplit(url.strip()).netloc
    except ValueError:  # an unclosed bracket; connecting reports it
        return ""


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Load a configuration file; raise ConfigurationError for whatever is wrong in it."""
    environment = os.environ if environment is None else environment
    return settings_of(read_file(path), environment)


def read_file(path: Path) -> Document:
    """Read a file's YAML."""
    return read_document(str(path), read_text(path))


def parse_settings(file: str, text: str, environment: Mapping[str, str]) -> Settings:
    """Read settings from a text; ConfigurationError where it is wrong."""
    return settings_of(read_document(file, text), environment)


def settings_of(document: Document, environment: Mapping[str, str]) -> Settings:
    """The same, from a document, or from the part of one that holds a configuration."""
    return read_configuration(document, environment).settings


@dataclass(frozen=True, slots=True)
class Configuration:
    """Settings, and how they were read."""

    settings: Settings
    document: Document
    """In current spelling."""
    notes: tuple[Note, ...]
    """What was translated."""
    problems: tuple[ConfigurationError, ...] = ()
    """What is wrong; the settings are those that could be read."""


def read_configuration(document: Document, environment: Mapping[str, str]) -> Configuration:
    """Read a configuration; ConfigurationError with all that is wrong in it."""
    configuration = inspect_configuration(document, environment)
    problems = ProblemList()
    problems.extend(configuration.problems)
    problems.raise_found()
    return configuration


def inspect_configuration(document: Document, environment: Mapping[str, str]) -> Configuration:
    """Read a configuration, as far as it can be read."""
    if not isinstance(document.value, dict):
        raise document.error((), "must be a mapping of sections: providers, pools, notifier …")
    problems = ProblemList()
    translated = translate(document)
    problems.extend(translated.problems)
    settings = _Reading(translated.document, environment, problems).settings()
    found = tuple(problems.found)
    return Configuration(settings, translated.document, translated.notes, found)


def requested_pool(name: str, raw: dict[str, Any], settings: Settings, directory: Path) -> PoolSpec:
    """Read what a request says of a pool, within what a request may say."""
    text = msgspec.json.encode({"pools": {name: with_defaults(settings.defaults, raw)}}).decode()
    problems = ProblemList()
    translated = translate(read_document(str(directory / "request"), text))
    problems.extend(translated.problems)
    document = translated.document
    path = ("pools", name)
    spec = _Reading(document, {}, problems).pool(name, document.value["pools"][name])
    problems.raise_found()
    assert spec is not None
    if wrong := request_problem(spec, settings.defaults):
        raise document.error((*path, *wrong[0]), wrong[1])
    for wrong in reference_problems(spec, settings, directory):
        raise document.error((*path, *wrong[0]), wrong[1])
    resolved: PoolSpec = resolve_paths(with_rack(spec, settings), directory)
    return resolved


class _Reading:
    """A document as it is read, section by section; what is wrong goes into `problems`."""

    def __init__(
        self, document: Document, environment: Mapping[str, str], problems: ProblemList
    ) -> None:
        self._document = document
        self._environment = environment
        self._problems = problems

    def settings(self) -> Settings:
        """Read everything; what cannot be read has its default."""
        document, problems = self._document, self._problems
        raw = resolve_references(document, document.value, (), self._environment, problems)
        defaults = self._mapping(raw.pop("defaults", {}), ("defaults",))
        named = self._mapping(raw.pop("pools", {}), ("pools",))
        read = {name: self._with_defaults(name, spec, defaults) for name, spec in named.items()}
        directory = Path(document.file).parent
        pools = {
            name: resolve_paths(spec, directory) for name, spec in read.items() if spec is not None
        }
        key = "ssh_private_key_path"
        if isinstance(defaults.get(key), str):
            defaults = {**defaults, key: resolve_path(defaults[key], directory)}
        sections: dict[str, Any] = {"defaults": defaults, "pools": pools}
        providers = self._mapping(raw.pop("providers", {}), ("providers",))
        sections["providers"] = self._plugins("providers", providers)
        if "notifier" in raw:
            with problems.collecting():
                sections["notifier"] = self._notifier(raw.pop("notifier"), ("notifier",))
        notifiers = self._mapping(raw.pop("notifiers", {}), ("notifiers",))
        sections["notifiers"] = self._plugins("notifiers", notifiers)
        authenticators = self._mapping(raw.pop("authenticators", {}), ("authenticators",))
        sections["authenticators"] = self._plugins("authenticators", authenticators)
        if "alerts" in raw:
            with problems.collecting():
                sections["alerts"] = tuple(alert_settings(document, raw.pop("alerts"), named))
        sinks = self._mapping(raw.pop("event_sinks", {}), ("event_sinks",))
        sections["event_sinks"] = event_sinks(document, sinks, named, problems)
        for key in SECTIONS:
            raw.pop(key, None)
        before = len(problems.found)
        settings: Settings = (
            convert_all(document, raw, Settings, (), problems)
            or self._without_problems(Settings, (), raw, before)
            or Settings()
        )
        register_secrets(settings)
        settings = msgspec.structs.replace(settings, **sections)
        settings = resolve_paths(settings, directory)
        self._report((), budget_problems(settings.budget))
        self._report((), address_problems(settings))
        self._report((), agent_value_problems(settings, providers))
        self._report((), interval_problems(settings))
        # What is there and could not be read is known all the same.
        known = msgspec.structs.replace(
            settings,
            providers=dict.fromkeys(providers, NO_PLUGIN) | settings.providers,
            notifiers=dict.fromkeys(notifiers, NO_PLUGIN) | settings.notifiers,
        )
        for name, spec in pools.items():
            found = reference_problems(spec, known, directory)
            self._report(("pools", name), found)
        sized = {name: with_rack(spec, settings) for name, spec in settings.pools.items()}
        settings = msgspec.structs.replace(settings, pools=sized)
        try:
            return with_environment(settings, self._environment)
        except ConfigurationError as error:
            problems.add(error)
            return settings

    def _with_defaults(self, name: str, said: Any, defaults: Mapping[str, Any]) -> PoolSpec | None:
        if said is not None and not isinstance(said, dict):
            self._mapping(said, ("pools", name))
            return None
        said = said or {}
        whole = with_defaults(defaults, said)
        for key in whole.keys() - said.keys():
            self._document.moved["pools", name, key] = ("defaults", key)
        return self.pool(name, whole)

    def pool(self, name: str, raw: dict[str, Any]) -> PoolSpec | None:
        """Read one pool; None where too much of it is wrong."""
        path: Path_ = ("pools", name)
        document, before = self._document, len(self._problems.found)
        try:
            pool_name(name)
        except InvalidNameError as error:
            self._problems.add(document.error(path, str(error)))
        flat = dict(raw)
        with self._problems.collecting():
            health = flat.get("health")
            if isinstance(health, dict) and "remediation" in health:
                here = (*path, "health", "remediation")
                plugin = self._named_plugin(health["remediation"], here)
                flat["health"] = {**health, "remediation": plugin}
        with self._problems.collecting():
            if "strategy" in flat:
                flat["strategy"] = self._named_plugin(flat["strategy"], (*path, "strategy"))
        spec: PoolSpec | None = convert_all(document, flat, PoolSpec, path, self._problems)
        if spec is not None and len(self._problems.found) == before:
            self._report(path, own_problems(spec))
        else:
            spec = self._without_problems(PoolSpec, path, flat, before)
        return folded(spec) if spec is not None else None

    def _without_problems(
        self, kind: type[Any], path: Path_, raw: dict[str, Any], before: int
    ) -> Any:
        """A struct without its keys that are wrong, so that the others are checked further."""
        keys = [each.key.split(".")[len(path) :] for each in self._problems.found[before:]]
        wrong, known = {key[0] for key in keys if key}, kind.__struct_fields__
        left = {key: value for key, value in raw.items() if key in known and key not in wrong}
        least = SIZE if kind is PoolSpec else {}
        return convert_all(self._document, least | left, kind, path, ProblemList())

    def _report(self, path: Path_, found: Iterable[Problem]) -> None:
        for inside, text in found:
            self._problems.add(self._document.error((*path, *inside), text))

    def _mapping(self, value: Any, path: Path_) -> dict[str, Any]:
        if value is None or isinstance(value, dict):
            return value or {}
        self._problems.add(self._document.error(path, "must be a mapping of names"))
        return {}

    def _plugins(self, section: str, named: Mapping[str, Any]) -> dict[str, PluginSettings]:
        found: dict[str, PluginSettings] = {}
        read = self._notifier if section == "notifiers" else self._plugin
        for name, value in named.items():
            with self._problems.collecting():
                found[name] = read(value, (section, name), default_type=name)
        return found

    def _plugin(self, value: Any, path: Path_, *, default_type: str = "") -> PluginSettings:
        if value is not None and not isinstance(value, dict):
            raise self._document.error(path, "must be a mapping of names")
        options = dict(value or {})
        kind = str(options.pop("type", default_type))
        if not kind:
            raise self._document.error(path, "`type` is missing; add it")
        return PluginSettings(type=kind, options=options, path=".".join(map(str, path)))

    def _named_plugin(self, value: Any, path: Path_) -> dict[str, Any]:
        """`remediation: ladder`, or a mapping of `type` and its options."""
        value = {"type": value} if isinstance(value, str) else value
        plugin: dict[str, Any] = msgspec.to_builtins(self._plugin(value, path))
        return plugin

    def _notifier(self, value: Any, path: Path_, *, default_type: str = "") -> PluginSettings:
        """`{type: webhook, webhook: {…}}` as in the seeds, or the options beside the type."""
        plugin = self._plugin(value, path, default_type=default_type)
        if plugin.type not in plugin.options:
            return plugin
        nested = plugin.options[plugin.type]
        if nested is not None and not isinstance(nested, dict):
            raise self._document.error((*path, plugin.type), "must be a mapping of names")
        rest = {key: each for key, each in plugin.options.items() if key != plugin.type}
        inside = f"{plugin.path}.{plugin.type}"
        return msgspec.structs.replace(plugin, options=rest | (nested or {}), path=inside)
