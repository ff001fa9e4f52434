"""Alerts that were sent and have not ended: bucket ALERTS."""

import hashlib
from typing import Final

from schemas.messages import Record
from schemas.value_limits import UtcTime

TTL_SECONDS: Final = 7 * 86_400
"""An alert that nothing ended in this time is forgotten."""


class OpenAlertRecord(Record, frozen=True, kw_only=True):
    """ALERTS `<hash of the alert's key>`: an alert whose end will be sent too."""

    alert: str
    """Its key, as channels get it."""
    event: str
    """ID of the event behind it."""
    sequence: int
    """Where that event is in EVENTS: only a later one can end the alert."""
    at: UtcTime
    sent: bool = False
    """False: a replica is sending it."""


def alert_key(alert: str) -> str:
    """Key of an alert's record; an alert's own key may have characters that no key may."""
    return hashlib.sha256(alert.encode()).hexdigest()[:32]
