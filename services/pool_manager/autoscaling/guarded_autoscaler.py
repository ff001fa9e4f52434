"""Puts autoscalers and metrics sources behind the boundary of plugins."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from schemas.plugin_kinds import AUTOSCALER, METRICS_SOURCE
from services.pool_manager.autoscaling.autoscalers import Autoscaler
from services.pool_manager.autoscaling.metrics_sources import Load, MetricsSource, SourceError
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract, is_outside
from services.runtime.plugin_host import PluginHost

AUTOSCALER_CONTRACT: Final = PluginContract(kind=AUTOSCALER, protocols=(Autoscaler,))
SOURCE_CONTRACT: Final = PluginContract(
    kind=METRICS_SOURCE, protocols=(MetricsSource,), errors=(SourceError,)
)


def guarded_autoscaler(
    plugins: PluginHost, autoscaler: Autoscaler, name: str, pool: str, make: Callable[[], Any]
) -> GuardedPlugin:
    """Return the guard of a pool's autoscaler; of a combination, by its part from outside."""
    found = next((each for each in parts(autoscaler) if is_outside(each)), None)
    if found is None or found is autoscaler:
        return plugins.guard(AUTOSCALER_CONTRACT, autoscaler, name, f"pool {pool}", make=make)
    kind = type(found)
    name = f"{kind.__module__}:{kind.__qualname__}"
    return plugins.guard(
        AUTOSCALER_CONTRACT, autoscaler, name, f"pool {pool}", make=make, blamed=found
    )


def parts(autoscaler: Autoscaler) -> Iterator[Autoscaler]:
    """Yield an autoscaler and those that it asks."""
    yield autoscaler
    for each in getattr(autoscaler, "inner", ()):
        yield from parts(each)


class GuardedSource:
    """A metrics source; whatever the plugin does is a load or SourceError."""

    def __init__(self, plugin: GuardedPlugin) -> None:
        self._plugin = plugin

    async def load(self, pool: str) -> Load:
        """Ask; SourceError where there is no answer."""
        try:
            found: Load = await self._plugin.call("load", pool)
        except PluginFailedError as error:
            raise SourceError(str(error)) from error
        return found

    async def close(self) -> None:
        """Give back what is held."""
        await self._plugin.close()
