"""Counts what a process itself does: consumers, dead letters, liveness of its loop."""

from collections.abc import Mapping
from importlib import metadata

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from schemas.metric_catalogue import (
    BUILD_INFO,
    CLOCK_AHEAD,
    LAG_MESSAGES,
    LAG_SECONDS,
    MESSAGE_SECONDS,
    MESSAGES,
)
from services.runtime.failure_register import FailureRegister


class Meters:
    """The instruments of one durable: looked up once, used for every message."""

    def __init__(self, instruments: "Instruments", durable: str) -> None:
        self.lag_messages = instruments.lag_messages.labels(durable)
        self.lag_seconds = instruments.lag_seconds.labels(durable)
        self._seconds = instruments.seconds.labels(durable)
        self._handled = instruments.handled
        self._outcomes: dict[str, Counter] = {}
        self._durable = durable

    def settled(self, outcome: str, seconds: float, trace: Mapping[str, str]) -> None:
        """Count a message that was settled after so long, and of which trace it is."""
        counter = self._outcomes.get(outcome)
        if counter is None:
            counter = self._outcomes[outcome] = self._handled.labels(self._durable, outcome)
        counter.inc()
        self._seconds.observe(seconds, dict(trace))


class Instruments:
    """Holds what every service measures about its own work."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register in `registry`, a fresh one where none is given."""
        self.registry = registry or CollectorRegistry()
        self.failures = FailureRegister(self.registry)
        build = Gauge(*BUILD_INFO.declared, registry=self.registry)
        build.labels(metadata.version("navarch")).set(1)
        self.handled = Counter(
            *MESSAGES.declared,
            registry=self.registry,
        )
        self.seconds = Histogram(
            *MESSAGE_SECONDS.declared,
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30),
        )
        self.lag_messages = Gauge(*LAG_MESSAGES.declared, registry=self.registry)
        self.lag_seconds = Gauge(*LAG_SECONDS.declared, registry=self.registry)
        self.clock_ahead_seconds = Gauge(
            *CLOCK_AHEAD.declared,
            registry=self.registry,
        )

    def of(self, durable: str) -> Meters:
        """Return the instruments of one durable."""
        return Meters(self, durable)
