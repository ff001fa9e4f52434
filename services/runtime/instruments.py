"""Counters and gauges of a process itself: consumers, dead letters, liveness of its loop."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Instruments:
    """What every service measures about its own work."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register in `registry`, a fresh one where none is given."""
        self.registry = registry or CollectorRegistry()
        self.handled = Counter(
            "navarch_messages_total",
            "Messages settled, by outcome: done, unknown, invalid, retried, dead",
            ["durable", "outcome"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "navarch_message_seconds",
            "Time from taking a message to settling it",
            ["durable"],
            registry=self.registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30),
        )
        self.lag_messages = Gauge(
            "navarch_consumer_lag_messages",
            "Messages that wait behind the last one taken",
            ["durable"],
            registry=self.registry,
        )
        self.lag_seconds = Gauge(
            "navarch_consumer_lag_seconds",
            "Age of the last message taken",
            ["durable"],
            registry=self.registry,
        )
