"""Health check plugins, found by entry point or name, each run in its own thread.

A plugin is a class without arguments that implements `HealthCheck`, in the entry-point group
HEALTH_CHECK_PLUGINS of its package, or named as `module:Class`. If it hangs, raises or returns an
invalid value, only that check fails.
"""

import asyncio
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Protocol

from agent.observations import DETAIL_CHARS_MAX, CheckFinding
from agent.sources.blocking_calls import ProbeHung, ProbeThread
from schemas.node_events import CheckResult
from schemas.settings import HEALTH_CHECK_PLUGINS
from services.primitives.errors import ConfigurationError

EXTRA_SECONDS: Final = 1.0
"""Time after the check's own deadline until its thread is abandoned."""


class HealthCheck(Protocol):
    """Declares the interface of a health check plugin."""

    name: str
    """`a-z`, `0-9` and `-`."""
    interval_seconds: float
    """How often it is run; 0: once, with the boot checks."""

    async def run(self) -> CheckResult:
        """Run the check; `detail` is one sentence."""


class PluginFailed(Exception):  # noqa: N818 - reads as the state it names
    """A plugin raised something."""


class PluginRunner:
    """Runs a plugin in a thread of its own."""

    def __init__(self, check: HealthCheck) -> None:
        self.name = str(check.name)
        self.interval_seconds = float(check.interval_seconds)
        self._check = check
        self._thread = ProbeThread(f"health check {self.name}")

    async def run(self, seconds_max: float) -> CheckFinding:
        """Run the check for at most `seconds_max`."""
        try:
            found = await self._thread.call(
                lambda: self._run(seconds_max), seconds_max + EXTRA_SECONDS
            )
        except (TimeoutError, ProbeHung):
            return CheckFinding(self.name, ok=False, detail=f"not done in {seconds_max:g} s")
        except PluginFailed as error:
            return CheckFinding(self.name, ok=False, detail=str(error)[:DETAIL_CHARS_MAX])
        if not isinstance(found, CheckResult):
            return CheckFinding(
                self.name, ok=False, detail=f"returned no CheckResult: {found!r:.200}"
            )
        return CheckFinding(
            self.name, ok=bool(found.ok), detail=str(found.detail)[:DETAIL_CHARS_MAX]
        )

    def _run(self, seconds_max: float) -> Any:
        try:
            return asyncio.run(asyncio.wait_for(self._check.run(), seconds_max))
        except TimeoutError:
            raise
        except BaseException as error:
            # SystemExit and the like must fail the plugin, not end the agent.
            raise PluginFailed(f"raised {type(error).__name__}: {error}") from error


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
            yield PluginRunner(_class(name, installed)())
        except Exception as error:  # a plugin's module may raise anything
            problem = f"{name} cannot be loaded: {type(error).__name__}: {error}"
            raise ConfigurationError(problem, key="NAVARCH_HEALTH_CHECKS") from error


def _class(name: str, installed: dict[str, Any]) -> Any:
    if name in installed:
        return installed[name].load()
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
