"""Sends a process's metrics to an OpenTelemetry collector, with the same names and labels."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry, Counter, core

from schemas.metric_catalogue import METRIC_PUSHES
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.gauge_table import GaugeTable

SCOPE: Final = InstrumentationScope("navarch")
POINTS_MAX: Final = 5_000
"""Of one request: about 1 MB."""
LE: Final = "le"
"""Label of a bucket: its upper bound."""
log = logging.getLogger(__name__)

PUSH_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 5.0
"""Of one request, with its repetitions; the end of the process waits so long at most."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When counting began, and when it was read, in nanoseconds since 1970."""

    started: int
    read: int


@dataclass(slots=True)
class _Series:
    """A histogram's samples of one set of labels."""

    labels: dict[str, str]
    buckets: list[core.Sample] = field(default_factory=list)
    total: float = 0.0


def requests(
    families: Iterable[core.Metric], resource: Resource, moment: Moment
) -> Iterator[MetricsData]:
    """Everything, at most POINTS_MAX points (and one family's part more) at once."""
    held: list[Metric] = []
    points = 0
    for family in families:
        for part in _parts(family, moment):
            held.append(part)
            points += len(part.data.data_points)
            if points >= POINTS_MAX:
                yield _request(held, resource)
                held, points = [], 0
    if held:
        yield _request(held, resource)


def _request(metrics: Sequence[Metric], resource: Resource) -> MetricsData:
    scope = ScopeMetrics(SCOPE, tuple(metrics), "")
    return MetricsData((ResourceMetrics(resource, (scope,), ""),))


def _parts(family: core.Metric, moment: Moment) -> Iterator[Metric]:
    """One family, in parts of at most POINTS_MAX points."""
    cumulative, name = AggregationTemporality.CUMULATIVE, family.name
    points: Iterator[Any]
    match family.type:
        case "histogram":
            points = (_histogram_point(each, moment) for each in _series(family))
        case "counter":
            name = f"{family.name}_total"
            counted = (each for each in family.samples if each.name == name)
            points = (_point(each, moment) for each in counted)
        case _:
            found = family.each() if isinstance(family, GaugeTable) else family.samples
            points = (_point(each, moment) for each in found)
    while part := tuple(islice(points, POINTS_MAX)):
        data: Gauge | Sum | Histogram = Gauge(part)
        if family.type == "histogram":
            data = Histogram(part, cumulative)
        elif family.type == "counter":
            data = Sum(part, cumulative, is_monotonic=True)
        yield Metric(name, family.documentation, "", data)


def _point(sample: core.Sample, moment: Moment) -> NumberDataPoint:
    exemplars = [_exemplar(sample.exemplar, moment)] if sample.exemplar else []
    value = float(sample.value)
    return NumberDataPoint(sample.labels, moment.started, moment.read, value, exemplars)


def _series(family: core.Metric) -> Iterable[_Series]:
    found: dict[tuple[tuple[str, str], ...], _Series] = {}
    for sample in family.samples:
        labels = {key: value for key, value in sample.labels.items() if key != LE}
        series = found.setdefault(tuple(sorted(labels.items())), _Series(labels))
        if sample.name.endswith("_bucket"):
            series.buckets.append(sample)
        elif sample.name.endswith("_sum"):
            series.total = sample.value
    return found.values()


def _histogram_point(series: _Series, moment: Moment) -> HistogramDataPoint:
    counts = [0, *(int(each.value) for each in series.buckets)]
    exemplars = [_exemplar(each.exemplar, moment) for each in series.buckets if each.exemplar]
    return HistogramDataPoint(
        attributes=series.labels,
        start_time_unix_nano=moment.started,
        time_unix_nano=moment.read,
        count=counts[-1],
        sum=series.total,
        bucket_counts=[after - before for before, after in pairwise(counts)],
        explicit_bounds=[float(each.labels[LE]) for each in series.buckets[:-1]],
        min=None,  # type: ignore[arg-type]
        max=None,  # type: ignore[arg-type]
        exemplars=exemplars,
    )


def _exemplar(found: core.Exemplar, moment: Moment) -> Exemplar:
    at = int(float(found.timestamp) * 1e9) if found.timestamp else moment.read
    trace, span = (int(found.labels.get(key, "0"), 16) for key in ("trace_id", "span_id"))
    return Exemplar({}, found.value, at, span or None, trace or None)


class MetricPush:
    """Sends a registry's metrics again and again."""

    def __init__(
        self, endpoint: str, service: str, replica: str, registry: CollectorRegistry, clock: Clock
    ) -> None:
        """An empty `endpoint` is that of the environment."""
        self._exporter = OTLPMetricExporter(endpoint=endpoint or None, timeout=TIMEOUT_SECONDS)
        self._resource = Resource.create({"service.name": service, "service.instance.id": replica})
        self._registry = registry
        self._clock = clock
        self._started = self._nanoseconds()
        self._failing = False
        self._pushes = Counter(*METRIC_PUSHES.declared, registry=registry)

    async def run(self) -> None:
        """Send at once and at every interval, until cancelled."""
        while True:
            await self.push()
            await self._clock.sleep(PUSH_SECONDS)

    async def push(self) -> None:
        """Send once; a failure is counted, and logged when it begins and ends."""
        families = tuple(self._registry.collect())
        problem = await asyncio.to_thread(self._send, families)
        self._pushes.labels("failed" if problem else "done").inc()
        if problem and not self._failing:
            log.warning("metrics are not sent: %s", problem)
        elif self._failing and not problem:
            log.info("metrics are sent again")
        self._failing = bool(problem)

    def _send(self, families: Sequence[core.Metric]) -> str:
        """Send in requests of a bounded size; why that failed, or nothing."""
        moment = Moment(self._started, self._nanoseconds())
        try:
            for each in requests(families, self._resource, moment):
                if self._exporter.export(each) is not MetricExportResult.SUCCESS:
                    return "the collector did not take them"
        except Exception as error:  # noqa: BLE001 - whatever it is, the service goes on
            return redacted(f"{type(error).__name__}: {error}")
        return ""

    def _nanoseconds(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)
