"""Finds each pool's Remediator, once, and says at the start what is wrong with one."""

import logging
from functools import partial
from pathlib import Path

from schemas.pool_records import PoolRecord
from schemas.settings import REMEDIATOR_PLUGINS, PluginSettings, PoolSpec
from services.pool_manager.asked_remediator import CONTRACT, AskedRemediator
from services.pool_manager.planner.remediator import (
    BUILT_IN,
    AlertOnly,
    Remediator,
)
from services.primitives.errors import ConfigurationError
from services.primitives.plugin_boundary import GuardedPlugin
from services.runtime.plugin_host import PluginHost
from services.settings.plugin_loader import Origin, make_plugin

log = logging.getLogger(__name__)


class Remediators:
    """Holds the remediators of the pools."""

    def __init__(
        self, pools: dict[str, PoolSpec], file: Path | None, plugins: PluginHost | None = None
    ) -> None:
        """Load those of the configuration `file`; raise ConfigurationError where one is wrong."""
        self._plugins = plugins or PluginHost()
        self._made = {
            name: (
                spec.health.remediation,
                self._guarded(spec.health.remediation, name, file, "pool"),
            )
            for name, spec in pools.items()
        }

    def of(self, record: PoolRecord) -> Remediator:
        """Return a pool's remediator, as its record has it: other replicas decide by that too."""
        guard = self._guard_of(record)
        found: Remediator = guard.plugin
        return AskedRemediator(guard) if guard.outside or guard.is_out else found

    def _guard_of(self, record: PoolRecord) -> GuardedPlugin:
        wanted = record.spec.health.remediation
        known = self._made.get(record.name)
        if known is not None and known[0] == wanted:
            return known[1]
        try:
            made = self._guarded(wanted, record.name, None, "bus")
        except ConfigurationError as error:
            # Of a pool that is not, or not so, in this configuration: nothing is risked.
            log.error("pool %s: %s; its unhealthy nodes are left alone", record.name, error)  # noqa: TRY400
            alert = AlertOnly(options=AlertOnly.Options())
            made = self._plugins.guard(CONTRACT, alert, "alert", f"pool {record.name}")
        self._made[record.name] = (wanted, made)
        return made

    def _guarded(
        self, settings: PluginSettings, pool: str, file: Path | None, origin: Origin
    ) -> GuardedPlugin:
        make = partial(make_plugin, REMEDIATOR_PLUGINS, settings, file, BUILT_IN, origin)
        return self._plugins.guard(CONTRACT, make(), settings.type, f"pool {pool}", make=make)
