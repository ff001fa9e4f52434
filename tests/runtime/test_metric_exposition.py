"""Metrics as text: what the library would write, in both formats."""

import socket
from http import HTTPStatus

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from services.runtime.gauge_table import GaugeTable
from services.runtime.metric_exposition import exposition
from services.runtime.process_http import HttpEndpoint

TEXTS = st.text(max_size=6)
VALUES = st.dictionaries(
    st.tuples(TEXTS, TEXTS), st.floats(allow_nan=False, allow_infinity=False), max_size=6
)


class One(Collector):
    """Collects a single given metric."""

    def __init__(self, metric) -> None:
        self._metric = metric

    def collect(self):
        yield self._metric

    def describe(self):
        return ()


def registry(metric) -> CollectorRegistry:
    """Return a registry with a table and a counter."""
    found = CollectorRegistry()
    found.register(One(metric))
    Counter("c_total", "Counts", ["x"], registry=found).labels("1").inc(2, {"trace_id": "ab"})
    return found


def samples(families) -> set[tuple[str, str, str, float]]:
    """Name, type, labels and value of every sample."""
    return {
        (each.name, family.type, str(sorted(each.labels.items())), each.value)
        for family in families
        for each in family.samples
    }


@given(VALUES)
async def test_a_table_is_what_the_library_would_write(values) -> None:
    """The text is the same whatever the table's labels contain."""
    table = GaugeTable("g", "Gauges", ("a", "b"), values)
    family = GaugeMetricFamily("g", "Gauges", labels=["a", "b"])
    for labels, value in values.items():
        family.add_metric(labels, value)
    assert table.samples == family.samples
    text, _ = await exposition(registry(table), "")
    expected = generate_latest(registry(family)).decode()
    assert samples(text_string_to_metric_families(text.decode())) == samples(
        text_string_to_metric_families(expected)
    )
    text, _ = await exposition(registry(table), "application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    found = list(open_families(text.decode()))
    assert len([each for family in found for each in family.samples]) == len(values) + 1


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/openmetrics-text;version=1.0.0,text/plain;q=0.5", "application/openmetrics"),
        ("text/plain", "text/plain"),
        ("*/*", "text/plain"),
        ("application/openmetrics-text;version=nonsense", "text/plain"),
        ("application/openmetrics-text;version=1.0.0;escaping=nonsense", "application/openmetrics"),
        ("\xff;;,=", "text/plain"),
    ],
)
async def test_a_scraper_gets_what_it_accepts(accept: str, kind: str) -> None:
    """Exemplars are in OpenMetrics alone; a header that makes no sense is answered."""
    table = GaugeTable("g", "Gauges", (), {(): 1.0})

    async def ready() -> str:
        return ""

    endpoint = HttpEndpoint(socket.create_server(("127.0.0.1", 0)), registry(table), ready)
    transport = httpx.ASGITransport(endpoint._server.config.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        answer = await client.get("/metrics", headers={"Accept": accept.encode("latin-1")})
    endpoint.close()
    assert answer.status_code == HTTPStatus.OK
    assert answer.headers["Content-Type"].startswith(kind)
    assert ("trace_id" in answer.text) == ("openmetrics" in answer.headers["Content-Type"])
    assert "_created" not in answer.text
