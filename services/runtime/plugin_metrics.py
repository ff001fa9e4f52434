"""Exports what a process knows of its plugins, added up over the places that use each one."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from schemas.metric_catalogue import (
    PLUGIN_BLOCKED,
    PLUGIN_CALLS,
    PLUGIN_FAILURES,
    PLUGIN_WORKS,
    PLUGINS,
)
from schemas.plugin_records import PluginHealth
from services.runtime.plugin_host import PluginHost


class PluginCollector(Collector):
    """Reads the records of a host at each scrape."""

    def __init__(self, plugins: PluginHost) -> None:
        self._plugins = plugins

    def collect(self) -> Iterator[Metric]:
        """Yield the four metrics."""
        added: dict[tuple[str, str], dict[str, float]] = {}
        for each in self._plugins.health():
            row = added.setdefault((each.kind, each.name), {PLUGIN_WORKS.name: 1.0})
            for name, value in _values(each).items():
                least = name == PLUGIN_WORKS.name
                row[name] = min(row[name], value) if least else row.get(name, 0.0) + value
        for spec in PLUGINS:
            family = CounterMetricFamily if spec.type == "counter" else GaugeMetricFamily
            metric = family(spec.name, spec.help, labels=spec.labels)
            for labels, row in added.items():
                metric.add_metric(labels, row[spec.name])
            yield metric


def _values(health: PluginHealth) -> dict[str, float]:
    return {
        PLUGIN_CALLS.name: health.calls,
        PLUGIN_FAILURES.name: health.failures,
        PLUGIN_BLOCKED.name: health.blocked_seconds,
        PLUGIN_WORKS.name: float(health.state == "works"),
    }
