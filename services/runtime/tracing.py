"""Traces: one replacement is one trace, carried from message to message in `traceparent`.

Spans are made by opentelemetry-sdk and exported over OTLP where an endpoint is configured. Without
one a span's record would have no reader, so only its ids are made: they travel on the bus and in
the logs all the same.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from schemas.headers import TRACEPARENT
from services.bus.port import Headers
from services.primitives.redaction import redacted

_propagator = TraceContextTextMapPropagator()

VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-[0-9a-f]{2}"
)
"""What of W3C's `traceparent` we write; one that says more is as good as none."""
_unrecorded: ContextVar[str] = ContextVar("traceparent", default="")
"""The traceparent of a span that is not recorded."""


class Tracing:
    """Makes spans for one service."""

    def __init__(
        self,
        service: str,
        processor: SpanProcessor | None = None,
        ids: IdGenerator | None = None,
    ) -> None:
        """Export through `processor`, or nowhere; `ids` None: at random."""
        # Its creator closes it; at the interpreter's exit it would be kept until then.
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service}),
            id_generator=ids,
            shutdown_on_exit=False,
        )
        if processor is not None:
            self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("navarch")
        self._recording = processor is not None
        self._ids = ids or RandomIdGenerator()

    @contextmanager
    def span(self, name: str, headers: Headers, **attributes: str | int) -> Iterator[None]:
        """Work caused by a message with these headers."""
        if not self._recording:
            token = _unrecorded.set(self._child(headers.get(TRACEPARENT, "")))
            try:
                yield
            finally:
                _unrecorded.reset(token)
            return
        with self._tracer.start_as_current_span(
            name,
            context=_propagator.extract(dict(headers)),
            kind=trace.SpanKind.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                # The library would export the exception with its traceback as they are.
                text = redacted(f"{type(error).__name__}: {error}")
                span.set_status(trace.StatusCode.ERROR, text)
                raise

    def _child(self, parent: str) -> str:
        """A span of ids alone; sampled, so that a service that does export goes on with it.

        Made for every message, so it is spelt out: the library's own way takes six times as
        long.
        """
        known = _PARENT.fullmatch(parent)
        trace_id = known[1] if known else f"{self._ids.generate_trace_id():032x}"
        return f"00-{trace_id}-{self._ids.generate_span_id():016x}-01"

    def close(self) -> None:
        """Send what is buffered."""
        self._provider.shutdown()


def current_headers() -> dict[str, str]:
    """Headers that make the next message a child of the current span; empty outside of one."""
    if own := _unrecorded.get():
        return {TRACEPARENT: own}
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier


def trace_labels(headers: Headers) -> dict[str, str]:
    """The trace that a message belongs to, as labels of an exemplar; empty: it is in none."""
    known = _PARENT.fullmatch(headers.get(TRACEPARENT, ""))
    return {"trace_id": known[1], "span_id": known[2]} if known else {}


def traceparent() -> str:
    """Return the current span's traceparent; empty outside of one."""
    return current_headers().get(TRACEPARENT, "")


def otlp_processor(endpoint: str) -> SpanProcessor | None:
    """Return the exporter for an endpoint; None where there is none.

    Where none is given, OpenTelemetry's variables may name one.
    """
    if not (endpoint or any(map(os.environ.get, VARIABLES))):
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )

    return BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint or None))
