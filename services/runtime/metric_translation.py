"""Metrics of Prometheus as those of OpenTelemetry, with the same names and labels. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, Final

from opentelemetry.sdk.metrics import Exemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import core

from services.runtime.gauge_table import GaugeTable

SCOPE: Final = InstrumentationScope("navarch")
POINTS_MAX: Final = 5_000
"""Of one request: about 1 MB."""
LE: Final = "le"
"""Label of a bucket: its upper bound."""


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
