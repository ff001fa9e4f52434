"""Loads each pool's scheduler, reports configuration errors at the start, and calls it."""

import logging
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from schemas.launch_offers import Choice
from schemas.plugin_kinds import SCHEDULER
from schemas.settings import SCHEDULER_PLUGINS, PluginSettings, PoolSpec
from services.primitives.errors import ConfigurationError
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract
from services.provisioner.offerings.scheduler import LaunchOption, Scheduler
from services.provisioner.offerings.strategies import STRATEGIES
from services.runtime.plugin_host import PluginHost
from services.settings.plugin_loader import Origin, make_plugin

log = logging.getLogger(__name__)
CONTRACT: Final = PluginContract(kind=SCHEDULER, protocols=(Scheduler,))


class Schedulers:
    """Holds the schedulers of all pools."""

    def __init__(
        self,
        pools: Mapping[str, PoolSpec],
        file: Path | None,
        plugins: PluginHost | None = None,
    ) -> None:
        """Load those of the configuration `file`; raise ConfigurationError where one is wrong."""
        self._plugins = plugins or PluginHost()
        self._made: dict[tuple[str, bytes], GuardedPlugin] = {}
        for spec in pools.values():
            wanted = spec.strategy
            self._made[_key(wanted.type, wanted.options)] = self._guarded(wanted, file, "pool")

    def _guarded(
        self, settings: PluginSettings, file: Path | None, origin: Origin
    ) -> GuardedPlugin:
        make = partial(_make, settings, file, origin)
        options = ", ".join(f"{name}: {value}" for name, value in sorted(settings.options.items()))
        return self._plugins.guard(CONTRACT, make(), settings.type, options, make=make)

    def of(self, choice: Choice) -> GuardedPlugin:
        """Return a launch's scheduler; one that cannot be loaded counts as the pool's order."""
        key = _key(choice.strategy, choice.strategy_options)
        if key not in self._made:
            settings = PluginSettings(type=choice.strategy, options=choice.strategy_options)
            try:
                self._made[key] = self._guarded(settings, None, "bus")
            except ConfigurationError as error:
                # The pool may have been removed from this configuration: capacity comes first.
                log.error("%s; the pool's own order is used instead", error)  # noqa: TRY400
                priority = PluginSettings(type="priority")
                self._made[key] = self._guarded(priority, None, "bus")
        return self._made[key]


async def score(scheduler: GuardedPlugin, option: LaunchOption) -> float:
    """Return a scheduler's score; 0 if it returns no number in time."""
    try:
        found = float(await scheduler.call("score", option))
    except PluginFailedError:
        # A plugin's defect must not keep the pool from having nodes.
        return 0.0
    return found if math.isfinite(found) else 0.0


def _key(kind: str, options: Mapping[str, object]) -> tuple[str, bytes]:
    return kind, msgspec.json.encode(options, order="deterministic")


def _make(settings: PluginSettings, file: Path | None, origin: Origin) -> Scheduler:
    made: Scheduler = make_plugin(SCHEDULER_PLUGINS, settings, file, STRATEGIES, origin)
    return made
