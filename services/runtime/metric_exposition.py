"""A registry's metrics as text: OpenMetrics with exemplars where the scraper takes it.

The event loop, which alone changes the values, reads them, and a thread writes the text.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from services.runtime.gauge_table import GaugeTable

# A second series of every counter and histogram, which Prometheus does not need.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Collected(Collector):
    """Metrics as they were at one moment."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Metric]:
        """Those that the library writes."""
        return (each for each in self._metrics if not isinstance(each, GaugeTable))

    def text(self, encode: Callable[[Collector], bytes]) -> bytes:
        """All of them; what `encode` writes has the end of the text."""
        tables = [each.text() for each in self._metrics if isinstance(each, GaugeTable)]
        return "".join(tables).encode() + encode(self)


async def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The text, and its content type, for a scraper that sends this `Accept`."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is no number
        encode, content_type = choose_encoder("")
    return await asyncio.to_thread(Collected(registry.collect()).text, encode), content_type
