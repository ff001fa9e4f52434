"""Knows the plugins that are installed, and the options of those that a configuration names."""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from agent.maintenance.diagnostics.health_check_conformance import TAKEN
from schemas.settings import (
    ALERT_CHANNEL_PLUGINS,
    AUTHENTICATOR_PLUGINS,
    AUTOSCALER_PLUGINS,
    HEALTH_CHECK_PLUGINS,
    METRICS_SOURCE_PLUGINS,
    NOTIFIER_PLUGINS,
    PROVIDER_PLUGINS,
    REMEDIATOR_PLUGINS,
    SCHEDULER_PLUGINS,
    PluginSettings,
    Settings,
)
from services.pool_manager.autoscaling.autoscaler_plugins import AUTOSCALERS, SOURCES
from services.pool_manager.planner.remediator import BUILT_IN
from services.provisioner.offerings.strategies import STRATEGIES
from services.settings.plugin_loader import load_plugin

OWN: Final[Mapping[str, Mapping[str, type[Any]]]] = {
    AUTOSCALER_PLUGINS: AUTOSCALERS,
    METRICS_SOURCE_PLUGINS: SOURCES,
    REMEDIATOR_PLUGINS: BUILT_IN,
    SCHEDULER_PLUGINS: STRATEGIES,
}
"""Group of entry points -> the plugins that need none."""
SECTIONS: Final[Mapping[str, str]] = {
    "providers": PROVIDER_PLUGINS,
    "notifier": NOTIFIER_PLUGINS,
    "authenticators": AUTHENTICATOR_PLUGINS,
    "alerts": ALERT_CHANNEL_PLUGINS,
    "autoscaling": AUTOSCALER_PLUGINS,
    "metrics": METRICS_SOURCE_PLUGINS,
}
"""Section of the configuration -> its group of entry points."""


def taken_names(group: str) -> frozenset[str]:
    """Return the names of a group's plugins, Navarch's own and those that are installed."""
    agents = TAKEN if group == HEALTH_CHECK_PLUGINS else frozenset[str]()
    installed = (each.name for each in entry_points(group=group))
    return agents.union(OWN.get(group, ()), installed)


def known_options() -> dict[str, dict[str, type[Any]]]:
    """Section -> type -> its options, of every installed plugin that can be loaded."""
    found: dict[str, dict[str, type[Any]]] = {}
    for section, group in SECTIONS.items():
        kinds = dict(OWN.get(group, {}))
        for each in entry_points(group=group):
            try:
                kinds[each.name] = each.load()
            except (ImportError, AttributeError):
                continue  # its own library is not installed
        options = ((name, getattr(kind, "Options", None)) for name, kind in kinds.items())
        found[section] = {name: each for name, each in options if each is not None}
    return found


def loaded_options(settings: Settings, file: Path) -> dict[str, Any]:
    """Return the path of each plugin of a configuration -> its options, with their defaults."""
    return {
        path: load_plugin(group, plugin, file, OWN.get(group, {}))[1]
        for path, group, plugin in _plugins(settings)
    }


def _plugins(
    settings: Settings,
) -> Iterator[tuple[str, str, PluginSettings]]:
    for name, each in settings.providers.items():
        yield f"providers.{name}", PROVIDER_PLUGINS, each
    for name, each in settings.notifiers.items():
        yield f"notifiers.{name}", NOTIFIER_PLUGINS, each
    yield "notifier", NOTIFIER_PLUGINS, settings.notifier
    for name, each in settings.authenticators.items():
        yield f"authenticators.{name}", AUTHENTICATOR_PLUGINS, each
    for number, channel in enumerate(settings.alerts):
        yield f"alerts.{number}", ALERT_CHANNEL_PLUGINS, channel
    for name, spec in settings.pools.items():
        yield f"pools.{name}.strategy", SCHEDULER_PLUGINS, spec.strategy
        remediation = spec.health.remediation
        yield f"pools.{name}.health.remediation", REMEDIATOR_PLUGINS, remediation
