"""Each metric is declared once, and the page has all of them."""

from schemas.metric_catalogue import METRICS
from tests.golden.metrics_table import PAGE, page


def test_page_matches_the_catalogue() -> None:
    """docs/metrics.md has the table that `python -m tests.golden` writes."""
    written = PAGE.read_text("utf-8")
    assert written == page(written), "docs/metrics.md is out of date; run: python -m tests.golden"


def test_each_name_is_declared_once() -> None:
    """A name has one declaration, and a counter's ends in `_total`."""
    names = [each.name for each in METRICS]
    assert len(names) == len(set(names))
    assert [] == [e.name for e in METRICS if e.type == "counter" and not e.name.endswith("_total")]
