"""Decides what of a pool's settings is stored on the bus, and what a request may say of it.

Everything that is stored can be read by every operator, so a metrics source, whose URL or headers
hold its credentials, is stored by its type alone: each pool-manager has the rest in its own
configuration. A request reads and reaches nothing on the services' hosts that their own
configuration does not name; its `defaults:` apply to requested pools.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from schemas.settings import Mode, PoolSpec, Settings
from services.settings.placeholders import AUTO
from services.settings.plugin_loader import ENTRY_POINT_ONLY
from services.settings.provider_choices import Problem

IN_DEFAULTS: Final = (
    "is read only from the configuration of the services, not from a request; write it under "
    "`defaults:` or `pools:` there and restart them"
)


def stored_spec(spec: PoolSpec) -> PoolSpec:
    """The settings as they are stored in POOLS."""
    if spec.metrics is None:
        return spec
    return msgspec.structs.replace(spec, metrics={"type": spec.metrics.get("type", "")})


def spec_to_store(settings: Settings, pool: str) -> PoolSpec:
    """A configured pool as POOLS has it: in the stricter of its own mode and the fleet's."""
    configured = settings.pools[pool]
    stricter: Mode = "observe" if "observe" in (settings.mode, configured.mode) else "act"
    return msgspec.structs.replace(stored_spec(configured), mode=stricter)


def request_problem(spec: PoolSpec, defaults: Mapping[str, Any]) -> Problem | None:
    """The key that only the configuration may have, and what to do; None: all may be requested."""
    for key in ("ssh_private_key_path", "user_data"):
        value = getattr(spec, key)
        if value not in ("", AUTO, defaults.get(key)):
            return (key,), f"names a file on the provisioner's host, which {IN_DEFAULTS}"
    if spec.metrics is not None and spec.metrics != defaults.get("metrics"):
        return (
            "metrics",
        ), f"is fetched by the pool-manager and may hold secrets: it {IN_DEFAULTS}"
    for path, name in _plugins(spec):
        if ":" in name:
            return (*path, "type"), f"{name}: {ENTRY_POINT_ONLY}"
    return None


def host_files(settings: Settings) -> frozenset[str]:
    """The files that a launch may name, because the configuration does."""
    found = {settings.defaults.get(key) for key in ("ssh_private_key_path", "user_data")}
    for spec in settings.pools.values():
        found |= {spec.ssh_private_key_path, spec.user_data}
    return frozenset(each for each in found if isinstance(each, str) and each)


def _plugins(spec: PoolSpec) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every `type` in the pool's settings, at any depth: composites hold further plugins."""

    def walk(
        value: Any, path: tuple[str | int, ...]
    ) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if isinstance(value, dict):
            if isinstance(value.get("type"), str):
                yield path, value["type"]
            for key, each in value.items():
                yield from walk(each, (*path, key))
        elif isinstance(value, list | tuple):
            for number, each in enumerate(value):
                yield from walk(each, (*path, number))

    yield from walk(
        {
            "autoscaling": spec.autoscaling,
            "strategy": msgspec.to_builtins(spec.strategy),
            "health": {"remediation": msgspec.to_builtins(spec.health.remediation)},
        },
        (),
    )
