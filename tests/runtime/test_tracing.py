"""Traces that are not recorded: ids alone, that travel on."""

import pytest

from services.runtime.tracing import Tracing, current_headers, otlp_processor, traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("parent", "goes_on"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", True),
        ("", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("00-a-b-01", False),
    ],
)
def test_a_span_goes_on_with_its_parents_trace(parent: str, goes_on: bool) -> None:
    """A span has an id of its own and is sampled; what is no traceparent begins a new trace."""
    tracing = Tracing("test")
    with tracing.span("work", {"traceparent": parent} if parent else {}):
        version, trace, span, flags = traceparent().split("-")
        inside = current_headers()
        with tracing.span("within", inside):
            assert trace == traceparent().split("-")[1]
        assert inside == current_headers()

    assert ("00", "01", 32, 16) == (version, flags, len(trace), len(span))
    assert goes_on == (trace == TRACE)
    assert span != SPAN
    assert {} == current_headers()


@pytest.mark.parametrize(
    ("variable", "sends"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", True),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", True),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", False),
    ],
)
def test_the_environment_can_name_the_collector(
    monkeypatch: pytest.MonkeyPatch, variable: str, sends: bool
) -> None:
    """OpenTelemetry's variable for everything, or for traces alone, does; an empty one is none."""
    monkeypatch.setenv(variable, "")
    assert otlp_processor("") is None
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    processor = otlp_processor("")
    assert sends == (processor is not None)
    if processor is not None:
        processor.shutdown()
