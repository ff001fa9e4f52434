"""A registry's metrics as text: OpenMetrics with exemplars where the scraper takes it.

The event loop, which alone changes the values, reads them, and a thread writes the text. A fleet
of 10,000 nodes has 350,000 series: of those the library would make an object each and take ten
seconds, so a `GaugeTable` is written here.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import Metric, Sample
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

# A second series of every counter and histogram, which Prometheus does not need.
disable_created_metrics()  # type: ignore[no-untyped-call]

ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class GaugeTable(Metric):
    """The gauges of one name: label values -> value, which is finite."""

    def __init__(
        self,
        name: str,
        documentation: str,
        labels: Sequence[str],
        values: Mapping[tuple[str, ...], float],
    ) -> None:
        """Show `values`, which do not change any more."""
        super().__init__(name, documentation, "gauge")
        self.labels = labels
        self.values = values

    @property
    def samples(self) -> list[Sample]:
        """One object for each, as the library has them."""
        found = ((dict(zip(self.labels, key, strict=True)), n) for key, n in self.values.items())
        return [Sample(self.name, labels, value) for labels, value in found]

    @samples.setter
    def samples(self, _: list[Sample]) -> None:
        """The library's constructor sets an empty list."""

    def text(self) -> str:
        """The same in both formats."""
        escaped = {each: each.translate(ESCAPES) for key in self.values for each in key}
        form = ",".join(f'{each}="%s"' for each in self.labels)
        line = f"{self.name}{{{form}}} %r\n" if self.labels else f"{self.name} %r\n"
        lines = [
            line % (*(escaped[each] for each in key), float(value))
            for key, value in self.values.items()
        ]
        return (
            f"# HELP {self.name} {self.documentation}\n# TYPE {self.name} gauge\n{''.join(lines)}"
        )


class Collected(Collector):
    """Metrics as they were at one moment."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        """Keep them."""
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
