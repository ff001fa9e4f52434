"""Yields a histogram's buckets for a scrape, each with its newest exemplar."""

from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import Exemplar, HistogramMetricFamily


def add_buckets(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    bounds: Sequence[float],
    counts: Sequence[int],
    total: float,
    exemplars: Sequence[Exemplar | None],
) -> None:
    """Add one series; `counts` of each bucket alone, the one above all bounds last."""
    names = [*map(str, bounds), "+Inf"]
    shown = list(zip(names, map(float, accumulate(counts)), exemplars, strict=True))
    family.add_metric(labels, shown, total)  # type: ignore[arg-type]
