"""Finds each pool's Remediator, once, and says at the start what is wrong with one."""

import logging
from pathlib import Path

from schemas.pool_records import PoolRecord
from schemas.settings import REMEDIATOR_PLUGINS, PluginSettings, PoolSpec
from services.pool_manager.planner.remediator import BUILT_IN, AlertOnly, Remediator
from services.primitives.errors import ConfigurationError
from services.settings.plugin_loader import Origin, make_plugin

log = logging.getLogger(__name__)


class Remediators:
    """The remediators of the pools."""

    def __init__(self, pools: dict[str, PoolSpec], file: Path | None) -> None:
        """Load those of the configuration `file`; raise ConfigurationError where one is wrong."""
        self._made = {
            name: (spec.health.remediation, _made(spec.health.remediation, file, "pool"))
            for name, spec in pools.items()
        }

    def of(self, record: PoolRecord) -> Remediator:
        """The remediator of a pool, as its record has it: other replicas decide by that too."""
        wanted = record.spec.health.remediation
        known = self._made.get(record.name)
        if known is not None and known[0] == wanted:
            return known[1]
        try:
            made = _made(wanted, None, "bus")
        except ConfigurationError as error:
            # Of a pool that is not, or not so, in this configuration: nothing is risked.
            log.error("pool %s: %s; its unhealthy nodes are left alone", record.name, error)  # noqa: TRY400
            made = AlertOnly(options=AlertOnly.Options())
        self._made[record.name] = (wanted, made)
        return made


def _made(settings: PluginSettings, file: Path | None, origin: Origin) -> Remediator:
    made: Remediator = make_plugin(REMEDIATOR_PLUGINS, settings, file, BUILT_IN, origin)
    return made
