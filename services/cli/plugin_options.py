"""The options of the plugins that a configuration names, and of all that are installed."""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

from schemas.settings import (
    ALERT_CHANNEL_PLUGINS,
    AUTHENTICATOR_PLUGINS,
    AUTOSCALER_PLUGINS,
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

SECTIONS: Final[Mapping[str, tuple[str, Mapping[str, type[Any]]]]] = {
    "providers": (PROVIDER_PLUGINS, {}),
    "notifier": (NOTIFIER_PLUGINS, {}),
    "authenticators": (AUTHENTICATOR_PLUGINS, {}),
    "alerts": (ALERT_CHANNEL_PLUGINS, {}),
    "autoscaling": (AUTOSCALER_PLUGINS, AUTOSCALERS),
    "metrics": (METRICS_SOURCE_PLUGINS, SOURCES),
}
"""Section of the configuration -> its entry points, and the plugins that need none."""


def known_options() -> dict[str, dict[str, type[Any]]]:
    """Section -> type -> its options, of every installed plugin that can be loaded."""
    found: dict[str, dict[str, type[Any]]] = {}
    for section, (group, built_in) in SECTIONS.items():
        kinds = dict(built_in)
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
        path: load_plugin(group, plugin, file, built_in)[1]
        for path, group, built_in, plugin in _plugins(settings)
    }


def _plugins(
    settings: Settings,
) -> Iterator[tuple[str, str, Mapping[str, type[Any]], PluginSettings]]:
    nothing: Mapping[str, type[Any]] = {}
    for name, each in settings.providers.items():
        yield f"providers.{name}", PROVIDER_PLUGINS, nothing, each
    for name, each in settings.notifiers.items():
        yield f"notifiers.{name}", NOTIFIER_PLUGINS, nothing, each
    yield "notifier", NOTIFIER_PLUGINS, nothing, settings.notifier
    for name, each in settings.authenticators.items():
        yield f"authenticators.{name}", AUTHENTICATOR_PLUGINS, nothing, each
    for number, channel in enumerate(settings.alerts):
        yield f"alerts.{number}", ALERT_CHANNEL_PLUGINS, nothing, channel
    for name, spec in settings.pools.items():
        yield f"pools.{name}.strategy", SCHEDULER_PLUGINS, STRATEGIES, spec.strategy
        remediation = spec.health.remediation
        yield f"pools.{name}.health.remediation", REMEDIATOR_PLUGINS, BUILT_IN, remediation
