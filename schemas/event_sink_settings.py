"""Settings of event sinks: where events are sent as CloudEvents, which of them, and the limits."""

from typing import Annotated, Final, Literal

import msgspec

from schemas.alert_records import Severity
from schemas.duration import Duration
from schemas.secret_text import SECRET, SecretText
from schemas.topology import SINK_IN_FLIGHT_MAX

SIGNING_CHARS_MIN: Final = 16
SigningSecret = Annotated[str, SECRET, msgspec.Meta(min_length=SIGNING_CHARS_MIN)]


class SinkBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits the size and the delay of one request of `mode: batch`."""

    events: Annotated[int, msgspec.Meta(ge=1, le=SINK_IN_FLIGHT_MAX)] = 100
    """Of one request."""
    bytes: Annotated[int, msgspec.Meta(ge=1_024, le=16_777_216)] = 1_048_576
    """Of all its events; a larger event is sent alone."""


class EventSinkSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configures one event sink."""

    type: Literal["http", "subject"]
    """http: POST to `url`; subject: the NATS subject that docs/event-sinks.md names."""
    url: SecretText = ""
    """Where events are posted."""
    headers: dict[str, SecretText] = {}
    """HTTP headers of each request."""
    secret: SigningSecret = ""
    """Key of the signature; empty: none is sent."""
    mode: Literal["structured", "binary", "batch"] = "structured"
    """How a request has its events, by the HTTP binding of CloudEvents 1.0."""
    batch: SinkBatch = SinkBatch()
    timeout: Duration = Duration(10)
    """Time limit of one request."""
    events: tuple[str, ...] = ()
    """Names of events, as in docs/events.md, or patterns (`saga-*`); empty: every event."""
    min_severity: Severity = "info"
    """Of the alert that the event begins; every other event is info."""
    pools: tuple[str, ...] = ()
    """Names, or patterns (`train-*`); empty: every pool, and the fleet's own services."""
    labels: dict[str, str] = {}
    """Labels with which the event's node was launched, or of its pool; empty: any, and none."""
    begin: Literal["new", "all"] = "new"
    """Where a sink that is new begins: with what happens from then on, or all that EVENTS holds."""
    max_age: Duration = Duration(7 * 86_400)
    """What was not delivered for so long is skipped, and reported; EVENTS holds 30 days at most."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1_024, le=1_048_576)] = 262_144
    """A larger event is skipped, and reported."""
