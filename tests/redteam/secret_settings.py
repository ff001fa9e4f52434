"""Every struct of the configuration, so that a new setting is tested without being listed."""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, get_args, get_type_hints

import msgspec

from schemas import settings
from services.pool_manager.autoscaling.autoscaler_plugins import AUTOSCALERS, SOURCES
from services.pool_manager.planner.remediator import BUILT_IN
from services.provisioner.offerings.strategies import STRATEGIES

GROUPS = (settings.PROVIDER_PLUGINS, settings.NOTIFIER_PLUGINS, settings.ALERT_CHANNEL_PLUGINS)
OPTIONS: dict[str, type[msgspec.Struct]] = {
    f"{group}/{each.name}": each.load().Options
    for group in GROUPS
    for each in entry_points(group=group)
} | {
    name: kind.Options
    for group in (AUTOSCALERS, SOURCES, BUILT_IN, STRATEGIES)
    for name, kind in group.items()
}
"""The options of every plugin that ships."""


def structs_in(*kinds: type[msgspec.Struct]) -> list[type[msgspec.Struct]]:
    """Return the given structs and all structs that their fields hold."""
    found: dict[type[msgspec.Struct], None] = {}

    def walk(hint: Any) -> Iterator[type[msgspec.Struct]]:
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            yield hint
        for each in get_args(hint):
            yield from walk(each)

    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found[kind] = None
            for hint in get_type_hints(kind).values():
                waiting += walk(hint)
    return list(found)
