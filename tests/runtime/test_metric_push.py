"""Metrics that are sent to a collector: the same names, labels and values as those scraped."""

import asyncio
import logging
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.registry import Collector

from services.bus.nats.embedded_server import EmbeddedServer
from services.primitives.clock import SystemClock
from services.primitives.redaction import register_secret
from services.runtime.gauge_table import GaugeTable
from services.runtime.metric_push import MetricPush
from services.runtime.metric_translation import POINTS_MAX
from services.runtime.push_choice import VARIABLES, metric_push
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver
from tests.support.service_process import service_process

TRACE = {"trace_id": "0af7651916cd43dd8448eb211c80319c", "span_id": "b7ad6b7169203331"}


class Table(Collector):
    """Collects a table of many gauges."""

    def __init__(self, count: int) -> None:
        self._values = {(str(i), 'a"\n'): float(i) for i in range(count)}

    def collect(self):
        yield GaugeTable("many", "Gauges", ("i", "text"), self._values)

    def describe(self):
        return ()


def filled(count: int = 3) -> CollectorRegistry:
    """Return a registry with one metric of each type."""
    found = CollectorRegistry()
    found.register(Table(count))
    Counter("c_total", "Counts", ["x"], registry=found).labels("1").inc(2, TRACE)
    Gauge("g", "A gauge", registry=found).set(-1.5)
    histogram = Histogram("h", "Times", ["x"], registry=found, buckets=(1, 5))
    for seconds in (0.5, 3, 3, 100):
        histogram.labels("1").observe(seconds, TRACE)
    histogram.labels("2").observe(1)
    return found


def push_to(receiver: OtlpReceiver, registry: CollectorRegistry) -> MetricPush:
    """Return the push that sends a registry to a receiver."""
    found = metric_push(receiver.url, "test", "test-1", registry, SystemClock())
    assert found is not None
    return found


async def test_what_is_sent_is_what_is_scraped() -> None:
    """Counters are cumulative, buckets count by themselves, exemplars name trace and span."""
    async with otlp_receiver() as receiver:
        await push_to(receiver, filled()).push()
    assert {(each.service, each.instance) for each in receiver.points} == {("test", "test-1")}
    found = {(each.name, each.labels): each for each in receiver.points}
    assert [found["many", (("i", str(i)), ("text", 'a"\n'))].point.as_double for i in range(3)] == [
        *(0, 1, 2)
    ]
    counter = found["c_total", (("x", "1"),)]
    assert (counter.type, counter.point.as_double) == ("sum", 2)
    assert counter.point.exemplars[0].trace_id.hex() == TRACE["trace_id"]
    assert counter.point.exemplars[0].span_id.hex() == TRACE["span_id"]
    assert 0 < counter.point.start_time_unix_nano <= counter.point.time_unix_nano
    assert (found["g", ()].type, found["g", ()].point.as_double) == ("gauge", -1.5)
    histogram = found["h", (("x", "1"),)].point
    assert (histogram.count, histogram.sum) == (4, 106.5)
    assert list(histogram.explicit_bounds) == [1, 5]
    assert list(histogram.bucket_counts) == [1, 2, 1]
    assert len(histogram.exemplars) == 3
    assert list(found["h", (("x", "2"),)].point.bucket_counts) == [1, 0, 0]


async def test_a_large_fleet_is_sent_in_bounded_requests() -> None:
    """A collector refuses bodies of many megabytes."""
    count = 2 * POINTS_MAX + 7
    async with otlp_receiver() as receiver:
        await push_to(receiver, filled(count)).push()
    assert len([each for each in receiver.points if each.name == "many"]) == count
    assert max(receiver.requests) <= POINTS_MAX
    assert len(receiver.requests) == 3


async def test_a_collector_that_fails_is_logged_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next interval tries again; what it misses is in the counters all the same."""
    registry = filled()
    async with otlp_receiver() as receiver:
        push = push_to(receiver, registry)
        receiver.status = 400
        for _ in range(3):
            await push.push()
        receiver.status = 200
        await push.push()
    count = registry.get_sample_value
    assert count("navarch_metric_pushes_total", {"outcome": "failed"}) == 3
    assert count("navarch_metric_pushes_total", {"outcome": "done"}) == 1
    own = [each.getMessage() for each in caplog.records if each.name.endswith("metric_push")]
    assert own == ["metrics are not sent: the collector did not take them"]
    caplog.clear()


@pytest.mark.parametrize("how", ["refused", "hangs", "nonsense"])
async def test_no_collector_ends_or_delays_the_service(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one that is away, nor one that never answers, nor an address that is none."""
    monkeypatch.setattr("services.runtime.metric_push.TIMEOUT_SECONDS", 0.3)
    secret = register_secret("s3cret-of-the-collector")
    caplog.set_level(logging.DEBUG)
    async with otlp_receiver() as receiver:
        receiver.hangs = how == "hangs"
        address = {
            "refused": "http://127.0.0.1:1/",
            "hangs": f"{receiver.url}?",
            "nonsense": "no:/",
        }
        registry = filled()
        target = OtlpReceiver(url=f"{address[how]}{secret}")
        async with asyncio.timeout(10):
            await push_to(target, registry).push()
    outcome = {"outcome": "failed"}
    assert registry.get_sample_value("navarch_metric_pushes_total", outcome) == 1
    own = [each.getMessage() for each in caplog.records if each.name.startswith("services.")]
    assert own
    assert not [each for each in own if secret in each]


@pytest.mark.parametrize("variable", ["", *VARIABLES])
def test_the_environment_can_name_the_collector(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry's variables name it, as for any program; without one nothing is loaded."""
    for each in VARIABLES:
        monkeypatch.delenv(each, raising=False)
    if variable:
        monkeypatch.setenv(variable, "http://127.0.0.1:1")
    found = metric_push("", "test", "test-1", CollectorRegistry(), SystemClock())
    assert (found is not None) == bool(variable)


@pytest.mark.slow
async def test_every_process_sends_its_metrics(server: EmbeddedServer, tmp_path: Path) -> None:
    """One setting makes a service and the gateway send, each under a name of its own."""
    file = tmp_path / "navarch.yaml"
    async with otlp_receiver() as receiver:
        file.write_text(f"metrics: {{otlp_endpoint: '{receiver.url}'}}\n")
        options = ("--config", str(file))
        async with (
            service_process("services.metrics", server.url, *options, seconds_max=60),
            service_process("services.gateway", server.url, *options, seconds_max=60),
        ):
            while {each.service for each in receiver.points} < {"metrics", "gateway"}:
                receiver.arrived.clear()
                await receiver.arrived.wait()
    names = {
        each.service: {p.name for p in receiver.points if p.service == each.service}
        for each in receiver.points
    }
    assert {"navarch_build_info", "navarch_series_left_out"} <= names["metrics"]
    assert "navarch_http_event_streams" in names["gateway"]
    assert all(each.instance.startswith(f"{each.service}-") for each in receiver.points)
