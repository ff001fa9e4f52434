"""Sends a process's metrics to an OpenTelemetry collector, beside what is scraped."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry, Counter, core

from schemas.metric_catalogue import METRIC_PUSHES
from services.primitives.clock import Clock
from services.primitives.redaction import redacted
from services.runtime.metric_translation import Moment, requests

log = logging.getLogger(__name__)

PUSH_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 5.0
"""Of one request, with its repetitions; the end of the process waits so long at most."""


class MetricPush:
    """Sends a registry's metrics again and again."""

    def __init__(
        self, endpoint: str, service: str, replica: str, registry: CollectorRegistry, clock: Clock
    ) -> None:
        """An empty `endpoint` is that of the environment."""
        self._exporter = OTLPMetricExporter(endpoint=endpoint or None, timeout=TIMEOUT_SECONDS)
        self._resource = Resource.create({"service.name": service, "service.instance.id": replica})
        self._registry = registry
        self._clock = clock
        self._started = self._nanoseconds()
        self._failing = False
        self._pushes = Counter(*METRIC_PUSHES.declared, registry=registry)

    async def run(self) -> None:
        """Send at once and at every interval, until cancelled."""
        while True:
            await self.push()
            await self._clock.sleep(PUSH_SECONDS)

    async def push(self) -> None:
        """Send once; a failure is counted, and logged when it begins and ends."""
        families = tuple(self._registry.collect())
        problem = await asyncio.to_thread(self._send, families)
        self._pushes.labels("failed" if problem else "done").inc()
        if problem and not self._failing:
            log.warning("metrics are not sent: %s", problem)
        elif self._failing and not problem:
            log.info("metrics are sent again")
        self._failing = bool(problem)

    def _send(self, families: Sequence[core.Metric]) -> str:
        """Send in requests of a bounded size; why that failed, or nothing."""
        moment = Moment(self._started, self._nanoseconds())
        try:
            for each in requests(families, self._resource, moment):
                if self._exporter.export(each) is not MetricExportResult.SUCCESS:
                    return "the collector did not take them"
        except Exception as error:  # noqa: BLE001 - whatever it is, the service goes on
            return redacted(f"{type(error).__name__}: {error}")
        return ""

    def _nanoseconds(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)
