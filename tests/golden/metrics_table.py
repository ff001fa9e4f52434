"""Builds the table of docs/metrics.md from schemas/metric_catalogue.py. A test compares them."""

from typing import Final

from schemas.metric_catalogue import METRICS, MetricSpec
from tests.golden.catalogue import HERE

PAGE: Final = HERE.parents[1] / "docs" / "metrics.md"
BEGIN: Final = "<!-- begin: written by python -m tests.golden -->\n"
END: Final = "<!-- end -->\n"
HEADER: Final = (
    "| metric | type | unit | labels | exported by | meaning |\n|---|---|---|---|---|---|\n"
)


def _row(spec: MetricSpec) -> str:
    cells = (
        f"`{spec.name}`",
        *(spec.type, spec.unit, ", ".join(spec.labels), spec.exporter, spec.help),
    )
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |")


def page(written: str) -> str:
    """The page with the table that the catalogue declares."""
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{HEADER}{''.join(map(_row, METRICS))}\n{END}{after}"
