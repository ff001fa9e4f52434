"""A registry's metrics as text: OpenMetrics with exemplars where the scraper takes it.

The event loop, which alone changes the values, reads them, and a thread writes the text.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from services.primitives.coalesce import Joined
from services.runtime.gauge_table import GaugeTable

REST_SECONDS_MAX: Final = 0.1
OPEN_METRICS: Final = "application/openmetrics-text"
VERSION: Final = "version=1.0.0"
"""Of OpenMetrics, whatever later one a scraper accepts besides."""

# A second series of every counter and histogram, which Prometheus does not need.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Collected(Collector):
    """Metrics as they were at one moment."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterator[Metric]:
        """Return the metrics that the library writes."""
        return (each for each in self._metrics if not isinstance(each, GaugeTable))

    def text(self, encode: Callable[[Collector], bytes]) -> bytes:
        """All of them; what `encode` writes has the end of the text."""
        tables = [each.text() for each in self._metrics if isinstance(each, GaugeTable)]
        return "".join(tables).encode() + encode(self)


class SharedExposition:
    """Writes the text once for all who ask for it at once, and at most half of the time."""

    def __init__(
        self, registry: CollectorRegistry, refresh: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`refresh` is called before the values are read."""
        self._registry = registry
        self._refresh = refresh
        self._written = Joined(self._write, rest_seconds_max=REST_SECONDS_MAX)

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the text, and its content type, for a scraper that sends this `Accept`."""
        kind = content_type(accept)
        return await self._written(kind), kind

    async def _write(self, kind: str) -> bytes:
        if self._refresh is not None:
            await self._refresh()
        return await _written(self._registry, kind)


def content_type(accept: str) -> str:
    """Return the type of the text for a scraper that sends this `Accept`: one of a few. Pure."""
    try:
        kind = choose_encoder(accept)[1]
    except (TypeError, ValueError):  # of a version that is no number
        return choose_encoder("")[1]
    if kind.startswith(OPEN_METRICS) and VERSION not in kind.split("; "):
        return choose_encoder(f"{OPEN_METRICS}; {VERSION}")[1]
    return kind


async def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the text as of now, and its content type, for a scraper that sends this `Accept`."""
    kind = content_type(accept)
    return await _written(registry, kind), kind


async def _written(registry: CollectorRegistry, kind: str) -> bytes:
    encode, _ = choose_encoder(kind)
    return await asyncio.to_thread(Collected(registry.collect()).text, encode)
