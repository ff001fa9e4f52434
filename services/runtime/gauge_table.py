"""Holds the gauges of a fleet without an object for each. Pure.

10,000 nodes have 350,000 series. The library would make one object of each and take ten seconds for
their text.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import Metric, Sample

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

    def each(self) -> Iterator[Sample]:
        """One object for each, as the library has them, made when it is read."""
        for key, value in self.values.items():
            yield Sample(self.name, dict(zip(self.labels, key, strict=True)), value)

    @property
    def samples(self) -> list[Sample]:
        """Return all samples at once."""
        return list(self.each())

    @samples.setter
    def samples(self, _: object) -> None:
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
