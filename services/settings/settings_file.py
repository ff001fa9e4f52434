"""Reads the YAML configuration; every error names file, line, key and the remedy.

`documents` knows the places of all that is in a file; here is what the sections mean. The two
spellings of pools are folded into one.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from schemas.names import InvalidNameError, pool_name
from schemas.settings import (
    ALIASES,
    BudgetSpec,
    FleetBudgetSpec,
    PluginSettings,
    PoolSpec,
    Settings,
)
from services.primitives.errors import ConfigurationError
from services.primitives.redaction import register_secrets
from services.settings.alert_routes import alert_settings
from services.settings.budget_validation import (
    level_problem,
    quarantine_problem,
    rate_problem,
    rate_window_problem,
)
from services.settings.provider_choices import (
    adopting_problem,
    folded,
    pool_problem,
    unknown_notifier,
    unknown_provider,
    with_defaults,
)
from services.settings.references import resolve_references
from services.settings.setup_validation import birth_problem
from services.settings.stored_pools import request_problem
from services.settings.window_validation import diagnostic_problem, window_problem
from services.settings.workload_name_validation import workload_names_problem
from services.settings.yaml_document import Document, Path_, convert, read_document

FILE_BYTES_MAX: Final = 4 * 1_048_576
DEFAULTS: Final = "providers: {local: {}}"
"""Where no file is named: no pool, and a provider to try Navarch with."""
CREDENTIALS_IN_URL: Final = (
    "has credentials in it, and new nodes, logs and messages have the URL; write "
    "`nats.creds_file`, or `nats.user` and `password: ${NATS_PASSWORD}`, and the URL without them"
)
PORT_MAX: Final = 65_535


def load_settings(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Load a configuration file; raise ConfigurationError for whatever is wrong in it."""
    environment = os.environ if environment is None else environment
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigurationError(f"larger than {FILE_BYTES_MAX} bytes", file=str(path))
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror}", file=str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8: {error}", file=str(path)) from error
    return parse_settings(str(path), text, environment)


def parse_settings(file: str, text: str, environment: Mapping[str, str]) -> Settings:
    """The same, from text."""
    return settings_of(read_document(file, text), environment)


def settings_of(document: Document, environment: Mapping[str, str]) -> Settings:
    """The same, from a document, or from the part of one that holds a configuration."""
    raw = document.value
    if not isinstance(raw, dict):
        raise document.error((), "must be a mapping of sections: providers, pools, notifier …")
    raw = resolve_references(document, raw, (), environment)
    defaults = _mapping(document, raw.pop("defaults", {}), ("defaults",))
    found = _pools(document, raw.pop("pools", {}))
    pools = {
        name: _pool(document, name, with_defaults(defaults, spec), path)
        for name, spec, path in found
    }
    providers = {
        name: _plugin(document, value, ("providers", name), default_type=name)
        for name, value in _mapping(document, raw.pop("providers", {}), ("providers",)).items()
    }
    sections: dict[str, Any] = {"defaults": defaults}
    server = raw.get("server")
    if isinstance(server, dict):
        for old in ("notifier", "coordinator"):
            if old in server:
                sections["notifier"] = _notifier(document, server.pop(old), ("server", old))
    if "notifier" in raw:
        sections["notifier"] = _notifier(document, raw.pop("notifier"), ("notifier",))
    sections["notifiers"] = {
        name: _notifier(document, value, ("notifiers", name), default_type=name)
        for name, value in _mapping(document, raw.pop("notifiers", {}), ("notifiers",)).items()
    }
    if "alerts" in raw:
        sections["alerts"] = tuple(alert_settings(document, raw.pop("alerts"), pools))
    settings: Settings = convert(document, raw, Settings, ())
    register_secrets(settings)
    sections["data_dir"] = str(Path(document.file).parent / settings.data_dir)
    settings = msgspec.structs.replace(settings, pools=pools, providers=providers, **sections)
    _check_budget(document, settings.budget, ())
    _check(document, settings, {name: path for name, _, path in found})
    return _from_server(settings, environment)


def requested_pool(name: str, raw: dict[str, Any], settings: Settings, directory: Path) -> PoolSpec:
    """Read what a request says of a pool, within what a request may say."""
    text = msgspec.json.encode({"pools": {name: with_defaults(settings.defaults, raw)}}).decode()
    document = read_document(str(directory / "request"), text)
    path = ("pools", name)
    spec = _pool(document, name, document.value["pools"][name], path)
    if wrong := request_problem(spec, settings.defaults):
        raise document.error((*path, *wrong[0]), wrong[1])
    _check_pool(document, spec, settings, path)
    return spec


def _from_server(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """Honour an older file's `server:` section, and the environment."""
    server = settings.server
    changes: dict[str, Any] = {}
    if server.health_policy and not settings.health_policy:
        changes["health_policy"] = server.health_policy
    if server.heartbeat_interval is not None:
        changes["agent"] = msgspec.structs.replace(
            settings.agent,
            heartbeat_interval=server.heartbeat_interval,
            heartbeat_ttl=type(server.heartbeat_interval)(3 * server.heartbeat_interval),
        )
    nats = settings.nats
    if url := environment.get("NAVARCH_NATS_URL"):
        nats = msgspec.structs.replace(nats, url=url)
    if file := environment.get("NAVARCH_NATS_CREDS_FILE"):
        nats = msgspec.structs.replace(nats, creds_file=file)
    if file := environment.get("NAVARCH_NATS_AGENT_SIGNING_FILE"):
        nats = msgspec.structs.replace(nats, agent_signing_file=file)
    if file := environment.get("NAVARCH_NATS_REVOCATION_FILE"):
        nats = msgspec.structs.replace(nats, revocation_file=file)
    changes["nats"] = nats
    if port := environment.get("NAVARCH_HTTP_PORT"):
        if not port.isdecimal() or int(port) > PORT_MAX:
            raise ConfigurationError(
                f"{port} is not a port: use 0 to {PORT_MAX}", key="NAVARCH_HTTP_PORT"
            )
        changes["http"] = msgspec.structs.replace(settings.http, port=int(port))
    settings = msgspec.structs.replace(settings, **changes)
    for key, urls in (("nats.url", nats.url), ("agent.bus_url", settings.agent.bus_url)):
        if any("@" in urlsplit(url.strip()).netloc for url in urls.split(",")):
            raise ConfigurationError(CREDENTIALS_IN_URL, key=key)
    return settings


def _mapping(document: Document, value: Any, path: Path_) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise document.error(path, "must be a mapping of names")
    return value


def _pools(document: Document, value: Any) -> list[tuple[str, dict[str, Any], Path_]]:
    """Both spellings: a mapping by name, or a list whose items carry `name`."""
    found: list[tuple[str, dict[str, Any], Path_]] = []
    if isinstance(value, list):
        for i, each in enumerate(value):
            path: Path_ = ("pools", i)
            if not isinstance(each, dict) or "name" not in each:
                raise document.error(path, "a pool in a list needs a `name`; add it")
            found.append((str(each["name"]), {k: v for k, v in each.items() if k != "name"}, path))
    else:
        for name, each in _mapping(document, value, ("pools",)).items():
            found.append((name, _mapping(document, each, ("pools", name)), ("pools", name)))
    seen: set[str] = set()
    for name, _, path in found:
        if name in seen:
            raise document.error(path, f"pool {name!r} is there twice; rename one")
        seen.add(name)
    return found


def _pool(document: Document, name: str, raw: dict[str, Any], path: Path_) -> PoolSpec:
    try:
        pool_name(name)
    except InvalidNameError as error:
        raise document.error(path, str(error)) from error
    flat = dict(raw)
    scaling = flat.pop("scaling", None)
    if scaling is not None:
        flat |= _mapping(document, scaling, (*path, "scaling"))
        for key in scaling:
            document.lines.setdefault(
                (*path, ALIASES.get(key, key)), document.lines[(*path, "scaling", key)]
            )
    flat = _unalias(flat)
    if isinstance(flat.get("health"), dict) and "remediation" in flat["health"]:
        here = (*path, "health", "remediation")
        plugin = _named_plugin(document, flat["health"]["remediation"], here)
        flat["health"] |= {"remediation": plugin}
    if "strategy" in flat:
        flat["strategy"] = _named_plugin(document, flat["strategy"], (*path, "strategy"))
    spec: PoolSpec = convert(document, flat, PoolSpec, path)
    if spec.min_nodes > spec.max_nodes:
        raise document.error(
            (*path, "min_nodes"),
            f"{spec.min_nodes} is above max_nodes {spec.max_nodes}; lower one or raise the other",
        )
    for place, window in enumerate(spec.windows):
        if wrong := window_problem(window, spec.windows[:place]):
            raise document.error((*path, "windows", place, wrong[0]), wrong[1])
    if wrong_place := pool_problem(spec):
        raise document.error((*path, *wrong_place[0]), wrong_place[1])
    if wrong_name := diagnostic_problem(spec.admission.diagnostic):
        raise document.error((*path, "admission", "diagnostic"), wrong_name)
    _check_budget(document, spec.budget, path)
    return folded(spec)


def _check_budget(document: Document, budget: BudgetSpec | FleetBudgetSpec, path: Path_) -> None:
    for key, problem in (
        ("max_unavailable", level_problem(budget.max_unavailable)),
        ("max_replacements", rate_problem(budget.max_replacements)),
        ("max_resets", "" if budget.max_resets is None else rate_problem(budget.max_resets)),
        ("max_quarantined", quarantine_problem(budget.max_quarantined)),
        ("window", rate_window_problem(budget.window)),
    ):
        if problem:
            raise document.error((*path, "budget", key), problem)


def _unalias(value: Any) -> Any:
    if isinstance(value, dict):
        return {ALIASES.get(k, k): _unalias(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_unalias(v) for v in value]
    return value


def _plugin(document: Document, value: Any, path: Path_, *, default_type: str) -> PluginSettings:
    options = dict(_mapping(document, value, path))
    kind = str(options.pop("type", default_type))
    if not kind:
        raise document.error(path, "`type` is missing; add it")
    return PluginSettings(type=kind, options=options, path=".".join(map(str, path)))


def _named_plugin(document: Document, value: Any, path: Path_) -> dict[str, Any]:
    """`remediation: ladder`, or a mapping of `type` and its options."""
    value = {"type": value} if isinstance(value, str) else value
    plugin: dict[str, Any] = msgspec.to_builtins(_plugin(document, value, path, default_type=""))
    return plugin


def _notifier(
    document: Document, value: Any, path: Path_, *, default_type: str = ""
) -> PluginSettings:
    """`{type: webhook, webhook: {…}}` as in the seeds, or the options beside the type."""
    plugin = _plugin(document, value, path, default_type=default_type)
    if plugin.type in plugin.options:
        nested = _mapping(document, plugin.options[plugin.type], (*path, plugin.type))
        rest = {k: v for k, v in plugin.options.items() if k != plugin.type}
        return msgspec.structs.replace(
            plugin, options=rest | nested, path=f"{plugin.path}.{plugin.type}"
        )
    return plugin


def _check(document: Document, settings: Settings, paths: Mapping[str, Path_]) -> None:
    for name, pool in settings.pools.items():
        _check_pool(document, pool, settings, paths[name])


def _check_pool(document: Document, pool: PoolSpec, settings: Settings, path: Path_) -> None:
    if wrong := unknown_provider(pool, settings.providers):
        raise document.error((*path, *wrong[0]), wrong[1])
    if wrong := adopting_problem(pool, settings.providers, settings.mode):
        raise document.error((*path, *wrong[0]), wrong[1])
    if wrong := unknown_notifier(pool, settings.notifiers):
        raise document.error((*path, *wrong[0]), wrong[1])
    if wrong := workload_names_problem(pool, settings.pools.values()):
        raise document.error((*path, *wrong[0]), wrong[1])
    if wrong := birth_problem(pool, settings.nats, Path(document.file).parent):
        raise document.error((*path, *wrong[0]), wrong[1])
