"""Health checks that other people wrote: found by entry point or named, run each in its thread.

A plugin is a class without arguments of the shape of `HealthCheck`, in the entry-point group
HEALTH_CHECK_PLUGINS of somebody's package, or named as `module:Class`. It may hang, raise or
return nonsense: that fails the check and nothing else.
"""

import asyncio
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from agent.maintenance.diagnostics.findings import DETAIL_CHARS_MAX, Finding
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from schemas.node_events import CheckResult
from schemas.settings import HEALTH_CHECK_PLUGINS
from services.primitives.errors import ConfigurationError

EXTRA_SECONDS: Final = 1.0
"""How much later than the check itself its thread is given up."""


class HealthCheck(Protocol):
    """A check that somebody adds to the agent."""

    name: str
    """`a-z`, `0-9` and `-`."""
    interval_seconds: float
    """How often it is run; 0: once, with the boot checks."""

    async def run(self) -> CheckResult:
        """Look, and say in a sentence what was found."""
        ...


class PluginFailed(Exception):  # noqa: N818 - reads as the state it names
    """A plugin raised something."""


class RunningCheck:
    """A plugin and its thread."""

    def __init__(self, check: HealthCheck) -> None:
        """Run `check` when asked."""
        self.name = str(check.name)
        self.interval_seconds = float(check.interval_seconds)
        self._check = check
        self._thread = ProbeThread(f"health check {self.name}")

    async def run(self, seconds_max: float) -> Finding:
        """Run it, no longer than that."""
        try:
            found = await self._thread.call(
                lambda: self._run(seconds_max), seconds_max + EXTRA_SECONDS
            )
        except (TimeoutError, ProbeHung):
            return Finding(self.name, ok=False, detail=f"not done in {seconds_max:g} s")
        except PluginFailed as error:
            return Finding(self.name, ok=False, detail=str(error)[:DETAIL_CHARS_MAX])
        if not isinstance(found, CheckResult):
            return Finding(self.name, ok=False, detail=f"returned no CheckResult: {found!r:.200}")
        return Finding(self.name, ok=bool(found.ok), detail=str(found.detail)[:DETAIL_CHARS_MAX])

    def _run(self, seconds_max: float) -> Any:
        try:
            return asyncio.run(asyncio.wait_for(self._check.run(), seconds_max))
        except TimeoutError:
            raise
        except BaseException as error:
            # SystemExit and the like are the plugin's failure, too, and not the agent's end.
            raise PluginFailed(f"raised {type(error).__name__}: {error}") from error


def load_checks(named: str) -> Sequence[RunningCheck]:
    """Make the checks that are named: `all` that are installed, `none`, or names with commas."""
    if named == "none":
        return ()
    installed = {each.name: each for each in entry_points(group=HEALTH_CHECK_PLUGINS)}
    names = sorted(installed) if named == "all" else [n.strip() for n in named.split(",") if n]
    return tuple(_made(names, installed))


def _made(names: Sequence[str], installed: dict[str, Any]) -> Iterator[RunningCheck]:
    for name in names:
        if name not in installed and ":" not in name:
            known = ", ".join(sorted(installed)) or "none"
            raise ConfigurationError(
                f"NAVARCH_HEALTH_CHECKS: no health check named {name!r} (installed: {known}); "
                "install its package, or write module:Class"
            )
        try:
            yield RunningCheck(_class(name, installed)())
        except Exception as error:  # a module of somebody else's may raise anything
            raise ConfigurationError(
                f"NAVARCH_HEALTH_CHECKS: {name} cannot be loaded: {type(error).__name__}: {error}"
            ) from error


def _class(name: str, installed: dict[str, Any]) -> Any:
    if name in installed:
        return installed[name].load()
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
