"""Finds each pool's Autoscaler and MetricsSource, and says at the start what is wrong with one."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from schemas.pool_records import PoolRecord
from schemas.settings import (
    AUTOSCALER_PLUGINS,
    METRICS_SOURCE_PLUGINS,
    PluginSettings,
    PoolSpec,
    Settings,
)
from services.pool_manager.autoscaling.autoscalers import (
    Autoscaler,
    Composite,
    PoolState,
    Predictive,
    Queue,
    Reactive,
    Recommendation,
    Scheduled,
)
from services.pool_manager.autoscaling.guarded_autoscaler import (
    SOURCE_CONTRACT,
    GuardedSource,
    guarded_autoscaler,
)
from services.pool_manager.autoscaling.metrics_sources import MetricsSource
from services.pool_manager.autoscaling.sources.combined_source import CombinedSource
from services.pool_manager.autoscaling.sources.http_source import HttpSource
from services.pool_manager.autoscaling.sources.kubernetes_source import KubernetesSource
from services.pool_manager.autoscaling.sources.prometheus_source import PrometheusSource
from services.pool_manager.autoscaling.sources.ray_source import RaySource
from services.pool_manager.autoscaling.sources.slurm_source import SlurmSource
from services.primitives.errors import ConfigurationError
from services.runtime.plugin_host import PluginHost
from services.settings.plugin_loader import Origin, load_plugin, locate, make_plugin, setting_error
from services.settings.problem_list import ProblemList

log = logging.getLogger(__name__)

AUTOSCALERS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "reactive": Reactive,
        "queue": Queue,
        "scheduled": Scheduled,
        "predictive": Predictive,
        "composite": Composite,
    }
)
SOURCES: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "http": HttpSource,
        "prometheus": PrometheusSource,
        "slurm": SlurmSource,
        "kubernetes": KubernetesSource,
        "ray": RaySource,
        "combined": CombinedSource,
    }
)
DEPTH_MAX: Final = 4
"""Of autoscalers within others, and of sources."""

Raw = dict[str, Any]


class Found:
    """The autoscaler of a pool, and where its queue is known from."""

    kind: str = ""
    autoscaler: Autoscaler | None = None
    source: MetricsSource | None = None

    def __init__(
        self,
        spec: PoolSpec,
        pool: str,
        file: Path | None,
        *,
        origin: Origin = "pool",
        plugins: PluginHost | None = None,
    ) -> None:
        """Load what `spec` names; ConfigurationError where that is wrong.

        `origin`: of `autoscaling`; `metrics` is always from this process's configuration.
        """
        self.autoscaling = spec.autoscaling
        if spec.autoscaling is None:
            return
        plugins = plugins or PluginHost()
        make = partial(located_autoscaler, spec.autoscaling, pool, file, origin)
        self.autoscaler = make()
        self.kind = str(spec.autoscaling["type"])
        self._guard = guarded_autoscaler(plugins, self.autoscaler, self.kind, pool, make)
        if spec.metrics is not None:
            self.source = source_of(spec.metrics, f"pools.{pool}.metrics", file, plugins)

    @property
    def may_wait(self) -> bool:
        """Return whether asking it may take long: what is asked is not of Navarch alone."""
        return self.autoscaler is not None and (self._guard.outside or self.source is not None)

    async def recommend(self, state: PoolState) -> Recommendation:
        """Ask the autoscaler; PluginFailedError where it does not answer as it should."""
        found: Recommendation = await self._guard.call("recommend", state)
        return found


def check_autoscaling(spec: PoolSpec, pool: str, file: Path | None, problems: ProblemList) -> None:
    """Check the autoscaler and the metrics source of a pool; no source is made."""
    if spec.autoscaling is not None:
        with problems.collecting():
            located_autoscaler(spec.autoscaling, pool, file)
    if spec.metrics is not None:
        with problems.collecting():
            check_source(spec.metrics, f"pools.{pool}.metrics", file)


def located_autoscaler(
    raw: Raw, pool: str, file: Path | None, origin: Origin = "pool"
) -> Autoscaler:
    """The autoscaler of a pool; an error has the place in `file`."""
    try:
        return autoscaler_of(raw, f"pools.{pool}.autoscaling", file, origin)
    except ConfigurationError as error:
        raise locate(error, file) from error


class Finder:
    """Finds the autoscaler and the source of each pool."""

    def __init__(
        self, settings: Settings, file: Path | None, plugins: PluginHost | None = None
    ) -> None:
        """Load those of the configuration `file`; raise ConfigurationError where one is wrong."""
        self._settings = settings
        self._file = file
        self._plugins = plugins or PluginHost()
        self._made = {
            name: Found(spec, name, file, plugins=self._plugins)
            for name, spec in settings.pools.items()
        }

    def of(self, record: PoolRecord) -> Found | None:
        """Return what a pool has, as its record says; None where that cannot be loaded here.

        A record has only the type of its metrics source: the source is the configuration's.
        """
        spec, known = record.spec, self._made.get(record.name)
        if known and known.autoscaling == spec.autoscaling:
            return known
        pool = self._settings.pools.get(record.name)
        metrics = self._settings.defaults.get("metrics") if pool is None else pool.metrics
        if spec.metrics is None:
            metrics = None
        spec = msgspec.structs.replace(spec, metrics=metrics)
        try:
            found = Found(spec, record.name, self._file, origin="bus", plugins=self._plugins)
        except ConfigurationError as error:
            log.error("pool %s: %s; its size is left alone", record.name, error)  # noqa: TRY400
            return None
        self._made[record.name] = found
        return found

    async def close(self) -> None:
        """Give back what the sources hold."""
        for each in self._made.values():
            if each.source is not None:
                await each.source.close()


def autoscaler_of(
    raw: Raw, at: str, file: Path | None, origin: Origin = "pool", depth: int = 0
) -> Autoscaler:
    """Make an autoscaler of the settings at `at`, and those within it."""
    if depth > DEPTH_MAX:
        raise ConfigurationError(f"more than {DEPTH_MAX} autoscalers deep; flatten them", key=at)
    settings = _settings(raw, at)
    kind, options = load_plugin(AUTOSCALER_PLUGINS, settings, file, AUTOSCALERS, origin)

    problems = ProblemList()

    def part(inner: Raw | None, place: str) -> Autoscaler | None:
        if inner is not None:
            with problems.collecting():
                return autoscaler_of(inner, f"{at}.{place}", file, origin, depth + 1)
        return None

    if kind is Composite:
        inner = [
            (each, part(each, f"autoscalers.{n}")) for n, each in enumerate(options.autoscalers)
        ]
        problems.raise_found()
        named = [(str(each.get("type", "")), made) for each, made in inner if made is not None]
        return Composite(options=options, parts=named)
    if kind is Scheduled:
        periods = enumerate(options.schedule)
        parts = [part(each.autoscaler, f"schedule.{n}.autoscaler") for n, each in periods]
        fallback = part(options.fallback, "fallback")
        problems.raise_found()
        return Scheduled(options=options, parts=parts, fallback=fallback)
    if kind is Predictive:
        fallback = part(options.fallback, "fallback")
        problems.raise_found()
        return Predictive(options=options, fallback=fallback)
    made: Autoscaler = make_plugin(AUTOSCALER_PLUGINS, settings, file, AUTOSCALERS, origin)
    return made


def source_of(
    raw: Raw, at: str, file: Path | None, plugins: PluginHost | None = None, depth: int = 0
) -> MetricsSource:
    """Make the metrics source of the settings at `at`, and those within it, with guards."""
    if parts := _source_parts(raw, at, file, depth):
        return CombinedSource(
            [source_of(each, place, file, plugins, depth + 1) for place, each in parts]
        )
    settings = _settings(raw, at, file)
    make = partial(make_plugin, METRICS_SOURCE_PLUGINS, settings, file, SOURCES, "pool")
    made: MetricsSource = make()
    if plugins is None:
        return made
    return GuardedSource(plugins.guard(SOURCE_CONTRACT, made, settings.type, at, make=make))


def check_source(raw: Raw, at: str, file: Path | None, depth: int = 0) -> None:
    """Check the metrics source at `at`, and those within it; nothing is made."""
    problems = ProblemList()
    for place, each in _source_parts(raw, at, file, depth):
        with problems.collecting():
            check_source(each, place, file, depth + 1)
    problems.raise_found()


def _source_parts(raw: Raw, at: str, file: Path | None, depth: int) -> list[tuple[str, Raw]]:
    """The sources within the one at `at`, whose options are right; empty: it is none of several."""
    if depth > DEPTH_MAX:
        raise setting_error(at, f"more than {DEPTH_MAX} sources deep; flatten them", file)
    settings = _settings(raw, at, file)
    _, options = load_plugin(METRICS_SOURCE_PLUGINS, settings, file, SOURCES, "pool")
    if not isinstance(options, CombinedSource.Options):
        return []
    return [(f"{at}.sources.{n}", each) for n, each in enumerate(options.sources)]


def _settings(raw: Raw, at: str, file: Path | None = None) -> PluginSettings:
    kind = raw.get("type")
    if not isinstance(kind, str) or not kind:
        raise setting_error(at, "`type` is missing; add it", file)
    options = {key: value for key, value in raw.items() if key != "type"}
    return PluginSettings(type=kind, options=options, path=at)
