"""Decides whether a process sends its metrics; what sends them is loaded only then."""

import os
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from services.primitives.clock import Clock

if TYPE_CHECKING:
    from services.runtime.metric_push import MetricPush

VARIABLES: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def metric_push(
    endpoint: str, service: str, replica: str, registry: CollectorRegistry, clock: Clock
) -> "MetricPush | None":
    """Return what sends metrics.

    None where no collector is configured, here or in the environment.
    """
    if not (endpoint or any(map(os.environ.get, VARIABLES))):
        return None
    from services.runtime.metric_push import MetricPush  # noqa: PLC0415

    return MetricPush(endpoint, service, replica, registry, clock)
