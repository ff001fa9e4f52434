"""Health check plugins, found by entry point or name, each run in its own thread.

A plugin is a class without arguments that implements `HealthCheck`, in the entry-point group
HEALTH_CHECK_PLUGINS of its package, or named as `module:Class`. If it hangs, raises or returns an
invalid value, the result of that check is unknown, and nothing is reported of the node.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from agent.observations import DETAIL_CHARS_MAX, CheckFinding
from schemas.node_events import CheckResult
from schemas.plugin_kinds import HEALTH_CHECK
from schemas.settings import HEALTH_CHECK_PLUGINS
from services.primitives.errors import ConfigurationError
from services.primitives.plugin_boundary import GuardedPlugin, PluginFailedError
from services.primitives.plugin_contract import PluginContract, source_of


class HealthCheck(Protocol):
    """Declares the interface of a health check plugin."""

    name: str
    """`a-z`, `0-9` and `-`."""
    interval_seconds: float
    """How often it is run; 0: once, with the boot checks."""

    async def run(self) -> CheckResult:
        """Run the check; `detail` is one sentence."""


CONTRACT: Final = PluginContract(kind=HEALTH_CHECK, protocols=(HealthCheck,))


class PluginRunner:
    """Runs a plugin in a thread of its own."""

    def __init__(self, check: HealthCheck, named: str = "", *, threads: bool = True) -> None:
        """`named`: as the settings name it."""
        self.name = str(check.name)
        self.interval_seconds = float(check.interval_seconds)
        source = source_of(check, HEALTH_CHECK, named or self.name)
        self._plugin = GuardedPlugin(CONTRACT, check, source, threads=threads)

    async def run(self, seconds_max: float) -> CheckFinding:
        """Run the check for at most `seconds_max`."""
        try:
            found: CheckResult = await self._plugin.call("run", seconds=seconds_max)
        except PluginFailedError as error:
            detail = str(error)[:DETAIL_CHARS_MAX]
            return CheckFinding(self.name, ok=False, detail=detail, ran=False)
        return CheckFinding(self.name, ok=found.ok, detail=found.detail[:DETAIL_CHARS_MAX])


def load_checks(named: str) -> Sequence[PluginRunner]:
    """Load health checks: `all` that are installed, `none`, or names with commas."""
    if named == "none":
        return ()
    installed = {each.name: each for each in entry_points(group=HEALTH_CHECK_PLUGINS)}
    names = sorted(installed) if named == "all" else [n.strip() for n in named.split(",") if n]
    return tuple(_load(names, installed))


def _load(names: Sequence[str], installed: dict[str, Any]) -> Iterator[PluginRunner]:
    for name in names:
        if name not in installed and ":" not in name:
            known = ", ".join(sorted(installed)) or "none"
            raise ConfigurationError(
                f"no health check named {name!r} (installed: {known}); install its package, or "
                "write module:Class",
                key="NAVARCH_HEALTH_CHECKS",
            )
        try:
            yield PluginRunner(_class(name, installed)(), name)
        except Exception as error:  # a plugin's module may raise anything
            problem = f"{name} cannot be loaded: {type(error).__name__}: {error}"
            raise ConfigurationError(problem, key="NAVARCH_HEALTH_CHECKS") from error


def _class(name: str, installed: dict[str, Any]) -> Any:
    if name in installed:
        return installed[name].load()
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
