"""Loads each pool's scheduler, reports configuration errors at the start, and calls it."""

import asyncio
import logging
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from schemas.launch_offers import Choice
from schemas.settings import SCHEDULER_PLUGINS, PluginSettings, PoolSpec
from services.primitives.errors import ConfigurationError
from services.provisioner.offerings.scheduler import SCORE_SECONDS_MAX, LaunchOption, Scheduler
from services.provisioner.offerings.strategies import STRATEGIES, Priority
from services.settings.plugin_loader import Origin, make_plugin

log = logging.getLogger(__name__)


class Schedulers:
    """The schedulers of all pools."""

    def __init__(self, pools: Mapping[str, PoolSpec], file: Path | None) -> None:
        """Load those of the configuration `file`; raise ConfigurationError where one is wrong."""
        self._made: dict[tuple[str, bytes], Scheduler] = {}
        for spec in pools.values():
            wanted = spec.strategy
            self._made[_key(wanted.type, wanted.options)] = _make(wanted, file, "pool")

    def of(self, choice: Choice) -> Scheduler:
        """Return a launch's scheduler; one that cannot be loaded counts as the pool's order."""
        key = _key(choice.strategy, choice.strategy_options)
        if key not in self._made:
            settings = PluginSettings(type=choice.strategy, options=choice.strategy_options)
            try:
                self._made[key] = _make(settings, None, "bus")
            except ConfigurationError as error:
                # The pool may have been removed from this configuration: capacity comes first.
                log.error("%s; the pool's own order is used instead", error)  # noqa: TRY400
                self._made[key] = Priority(options=Priority.Options())
        return self._made[key]


async def score(scheduler: Scheduler, option: LaunchOption) -> float:
    """Return a scheduler's score; 0 if it returns no number in time."""
    try:
        async with asyncio.timeout(SCORE_SECONDS_MAX):
            found = float(await scheduler.score(option))
    except Exception:
        # A plugin's defect must not keep the pool from having nodes.
        log.exception("scheduler failed", extra={"pool": option.pool})
        return 0.0
    return found if math.isfinite(found) else 0.0


def _key(kind: str, options: Mapping[str, object]) -> tuple[str, bytes]:
    return kind, msgspec.json.encode(options, order="deterministic")


def _make(settings: PluginSettings, file: Path | None, origin: Origin) -> Scheduler:
    made: Scheduler = make_plugin(SCHEDULER_PLUGINS, settings, file, STRATEGIES, origin)
    return made
