"""Alerts that have begun, and what each channel has of them: bucket ALERTS."""

import hashlib
from typing import Annotated, Final, Literal, get_args

import msgspec

from schemas.enums import AlertKind
from schemas.messages import Record
from schemas.value_limits import Name, UtcTime

TTL_SECONDS: Final = 8 * 86_400
"""A day longer than any alert lasts without news: a last resort."""

KEY_CHARS_MAX: Final = 1_024
DEDUP_CHARS_MAX: Final = 255
"""Of the key under which PagerDuty and Opsgenie know an alert."""
NOTE_CHARS_MAX: Final = 500
"""Of a note, or a reason, that an operator gives."""

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""The least severe first."""


SILENCE_SECONDS_MAX: Final = 7 * 86_400
"""A silence has an end."""
SilenceSeconds = Annotated[int, msgspec.Meta(ge=0, le=SILENCE_SECONDS_MAX)]


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An alert is one notification to operators."""

    severity: Severity
    title: str
    text: str
    """What happened, why, and what to do; whole sentences."""
    pool: str = ""
    """Empty for an alert about the fleet's own services."""
    node: str = ""
    kind: AlertKind
    """The event behind it."""
    fault: str = ""
    """Fault signature, where the event has one."""
    key: str
    """The same for the same condition; channels deduplicate by it."""
    event: str
    """ID of the event behind it."""
    time: UtcTime
    """Of that event."""
    since: UtcTime | None = None
    """When the condition began; None: with this event."""
    acknowledged_by: Name = ""
    """The operator who has taken it on."""
    assigned_to: Name = ""
    """Who is to look after it, as an operator says."""
    silenced_until: UtcTime | None = None
    """Channels are sent no news of it until then; None: it is not silenced."""
    silenced_by: Name = ""
    """The operator who has silenced it."""
    resolved: bool = False
    """The condition with this key is over."""

    @property
    def began(self) -> UtcTime:
        """Return when the alert's condition began."""
        return self.since or self.time

    def is_silent(self, now: UtcTime) -> bool:
        """Return whether it is silenced now."""
        return self.silenced_until is not None and now < self.silenced_until


class ChannelState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records what one channel has sent about an alert."""

    event: str
    """The last event that it was sent."""
    receipt: str = ""
    """What it needs to update the message, and returned when it sent it."""
    ended: bool = False


class OpenAlertRecord(Record, frozen=True, kw_only=True):
    """ALERTS `<hash of the alert's key>`: an alert, until every channel has its end."""

    alert: str
    """Its key, as channels get it."""
    sequence: int
    """Where its last event is in EVENTS: only a later one can end the alert."""
    at: UtcTime
    """When that event was stored."""
    opened: Alert | None = None
    ended: Alert | None = None
    """Its end; None: it lasts."""
    only: str = ""
    """The one channel that it is sent to; empty: those whose route it matches."""
    channels: dict[str, ChannelState] = {}
    """Name of a channel -> what it has."""


class AlertAcknowledge(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Take on an open alert (`order.acknowledge-alert.<user>`)."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)]
    reason: Annotated[str, msgspec.Meta(max_length=NOTE_CHARS_MAX)] = ""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""


class AlertUpdate(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Silence, assign or annotate an open alert (`order.update-alert.<user>`)."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX)]
    silence_seconds: SilenceSeconds = 0
    """For how long channels are sent no news of it; 0: as it is."""
    assign_to: Name = ""
    """Who is to look after it; empty: as it is."""
    note: Annotated[str, msgspec.Meta(max_length=NOTE_CHARS_MAX)] = ""
    """Shown in every channel; the reason, where the alert is silenced or assigned."""
    by: Name = ""
    """The gateway's caller; it counts in an order of the gateway alone."""

    def __post_init__(self) -> None:
        """Refuse what changes nothing, and two changes at once."""
        if self.silence_seconds and self.assign_to:
            raise ValueError("silence it or assign it, not both at once")
        if not (self.silence_seconds or self.assign_to or self.note):
            raise ValueError("say for how long it is silenced, to whom it is assigned, or a note")


def alert_key(alert: str) -> str:
    """Key of an alert's record; an alert's own key may have characters that no key may."""
    return hashlib.sha256(alert.encode()).hexdigest()[:32]


def dedup_key(alert: str) -> str:
    """Return the key by which vendors deduplicate an alert: its own, within their limit."""
    if len(alert) <= DEDUP_CHARS_MAX:
        return alert
    return hashlib.sha256(alert.encode()).hexdigest()
