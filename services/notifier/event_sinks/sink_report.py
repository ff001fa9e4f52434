"""What operators learn of a sink: metrics, and what fails in it until it is over."""

from datetime import datetime, timedelta
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from schemas.fleet_queries import CurrentFailure
from schemas.metric_catalogue import SINK_EVENTS, SINK_OLDEST, SINK_PENDING
from services.runtime.failure_register import FailureRegister

Outcome = Literal["delivered", "filtered", "refused", "expired", "too-large", "invalid"]

FAILING_SECONDS: Final = 60.0
"""A receiver that has failed for so long is reported."""
BEHIND: Final = timedelta(minutes=10)
"""A sink whose oldest event has waited for so long is reported."""
SHOWN: Final = timedelta(hours=1)
"""How long an event that was skipped is reported: nothing that happens later undoes it."""


class SinkMeters:
    """The metrics of all sinks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(*SINK_EVENTS.declared, registry=registry)
        self.pending = Gauge(*SINK_PENDING.declared, registry=registry)
        self.oldest = Gauge(*SINK_OLDEST.declared, registry=registry)


class SinkReport:
    """One sink's."""

    def __init__(self, name: str, failures: FailureRegister, meters: SinkMeters) -> None:
        self._name = name
        self._about = f"event sink {name}"
        self._failures = failures
        self._meters = meters
        self._failing_since: float | None = None
        self._error = ""
        self._skipped = 0
        self._skipped_at: datetime | None = None
        self._last_skip = ""
        self.oldest: datetime | None = None
        """When the oldest event that waits was stored; None: none does."""

    def count(self, outcome: Outcome) -> None:
        """Count an event that needs no more."""
        self._meters.events.labels(self._name, outcome).inc()

    def works(self) -> None:
        """Take note that the receiver answers."""
        self._failing_since = None

    def fails(self, error: str, at: float) -> None:
        """Take note that nothing can be delivered."""
        self._error = error
        if self._failing_since is None:
            self._failing_since = at

    def skip(self, event: str, reason: str, now: datetime) -> None:
        """Take note of an event that is never delivered."""
        self._skipped += 1
        self._skipped_at, self._last_skip = now, f"{event}: {reason}"

    def publish(self, now: datetime, at: float, pending: int) -> None:
        """Set the metrics, and report what fails; `pending`: events that wait."""
        self._meters.pending.labels(self._name).set(pending)
        waited = now - self.oldest if self.oldest else timedelta(0)
        self._meters.oldest.labels(self._name).set(max(waited.total_seconds(), 0.0))
        if self._skipped_at is not None and now - self._skipped_at >= SHOWN:
            self._skipped, self._skipped_at = 0, None
        found = [self._undelivered(at, waited), self._refused()]
        self._failures.update(self._about, [each for each in found if each is not None])

    def end(self) -> None:
        """Report nothing more: another replica delivers."""
        self._failures.update(self._about, ())
        for gauge in (self._meters.pending, self._meters.oldest):
            gauge.remove(self._name)

    def _undelivered(self, at: float, waited: timedelta) -> CurrentFailure | None:
        if self._failing_since is not None and at - self._failing_since >= FAILING_SECONDS:
            reason = f"events are not delivered: {self._error}"
            remedy = (
                "check its entry under `event_sinks` and its receiver; what waits is delivered in "
                "order once it works, unless it is older than `max_age` by then"
            )
        elif waited >= BEHIND:
            reason = "it is behind: the oldest event has waited for more than 10 minutes"
            remedy = (
                "see navarch_sink_pending_events; `mode: batch` delivers more in the same time, "
                "and `events` and `pools` deliver less"
            )
        else:
            return None
        return CurrentFailure(
            failure="sink-undelivered", about=self._about, reason=reason, remedy=remedy
        )

    def _refused(self) -> CurrentFailure | None:
        if self._skipped_at is None:
            return None
        return CurrentFailure(
            failure="sink-refused",
            about=self._about,
            reason=f"{self._skipped} events were skipped, the last of them {self._last_skip}",
            remedy=(
                "correct the receiver, or leave such events out with `events`; they are not sent "
                "again, and `navarch events` has them"
            ),
        )
