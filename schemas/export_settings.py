"""Where traces and metrics are sent, beside what is scraped."""

import msgspec

from schemas.secret_text import SecretText


class TracingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configures the OpenTelemetry export, which is off without an endpoint."""

    otlp_endpoint: SecretText = ""
    """`http://collector:4318/v1/traces`; OTEL_EXPORTER_OTLP_ENDPOINT works too."""


class MetricsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metrics that every process sends each minute, as well as what is scraped."""

    otlp_endpoint: SecretText = ""
    """`http://collector:4318/v1/metrics`; empty: nothing is sent, unless
    OTEL_EXPORTER_OTLP_ENDPOINT is set."""
